"""A process whose interpreter has ended, or has not begun, but which is there: nothing of ours is called in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from attach_targets import STAND_IN, why_no_gdb
from interpreters import VERSIONS, interpreters
from waiting import until

from aitop.attach.attempt import WAYS
from aitop.attach.entrance import deliver
from aitop.attach.refusal import AttachRefused
from aitop.attach.ways import WayIn, gdb

pytestmark = pytest.mark.e2e

# What C libraries do at their end: called last to first, with the exit status (1 is also the output) and a pointer.
ENDS = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.strdup.restype = ctypes.c_void_p
libc.on_exit(libc.getchar, None)
libc.on_exit(libc.dprintf, ctypes.c_void_p(libc.strdup(b"ending\\n")))
sys.exit(1)
"""


Start = Callable[..., subprocess.Popen[str]]
SYS_READ = 0


@pytest.mark.parametrize("version", [version for version in VERSIONS if version in interpreters()])
def test_a_process_that_is_ending_ends_as_it_would_have(start: Start, version: str) -> None:
    ends_as_it_would_have(start, interpreters()[version], WAYS)


def test_gdb_leaves_a_process_alone_that_is_ending(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := why_no_gdb():
        pytest.skip(why)
    monkeypatch.setattr(gdb, "on_x86_64", lambda: False)
    ends_as_it_would_have(start, sys.executable, (gdb.Gdb(),))


def ends_as_it_would_have(start: Start, python: str, ways: Sequence[WayIn]) -> None:
    process = start([python, "-c", ENDS], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    # From its word to the wait there are some microseconds to go.
    until(lambda: Path(f"/proc/{process.pid}/syscall").read_text().startswith(f"{SYS_READ} 0x0 "))
    for action in ("install", "remove"):
        with pytest.raises(AttachRefused, match="its Python has not begun, or is ending") as refusal:
            deliver(process.pid, action, STAND_IN, timeout=0.2, torch=False, ways=ways)
        assert refusal.value.transient
    out, err = process.communicate("\n", timeout=20)
    assert (process.returncode, out, err) == (1, "", "")
