"""One attach at least to each version of Python that the hook knows, where one is at hand.

Which ones are is decided by tests/interpreters.py; AITOP_TEST_PYTHONS=path:path names more. A stand-in for torch
is enough here: what the hook does with the real one does not depend on the way in.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attach_targets import STAND_IN, Victim, torch_stand_in, unharmed, why_no_gdb
from interpreters import VERSIONS, interpreters
from waiting import line_of

from aitop.attach.attempt import WAYS, Limit
from aitop.attach.entrance import Attachment, begin, deliver
from aitop.attach.refusal import AttachRefused
from aitop.attach.ways import WayIn, gdb
from aitop.sources.process_status import read_status

pytestmark = pytest.mark.e2e

Start = Callable[..., subprocess.Popen[str]]


def python(version: str) -> str:
    """An interpreter of that version; skips where there is none."""
    path = interpreters().get(version)
    if path is None:
        pytest.skip(f"no Python {version} at hand (AITOP_TEST_PYTHONS names interpreters)")
    return path


def in_and_out(victim: Victim, ways: tuple[WayIn, ...] = WAYS) -> Attachment:
    came = deliver(victim.pid, "install", STAND_IN, timeout=20, torch=False, ways=ways)
    assert came.answer == "installed"
    assert deliver(victim.pid, "remove", (), timeout=20, ways=ways).answer == "removed"
    return came


@pytest.mark.parametrize("kind", ["timers", "longsleep"])
@pytest.mark.parametrize("version", VERSIONS)
def test_each_python_is_entered_and_left(start_victim: Callable[..., Victim], version: str, kind: str) -> None:
    victim = start_victim(kind, python=python(version))
    ways = {in_and_out(victim).way for _ in range(3 if kind == "timers" else 1)}
    if version == "3.14" and kind == "timers":
        assert ways == {"remote-debug"}
    unharmed(victim)


@pytest.mark.parametrize("linked", ["static", "shared"])
def test_both_ways_of_linking_python_are_entered(start_victim: Callable[..., Victim], linked: str) -> None:
    path = next((path for name, path in interpreters().items() if name.endswith(linked)), None)
    if path is None:
        pytest.skip(f"no {linked} Python at hand (AITOP_TEST_PYTHONS names interpreters)")
    victim = start_victim("busy", python=path)
    in_and_out(victim)
    unharmed(victim)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_hook_itself_says_in_each_python_whether_torch_is_ready(start: Start, version: str, tmp_path: Path) -> None:
    """The real hook's files are loaded by that Python, from source where its bytecode is another.

    The stand-in is no torch: the hook comes in, looks, answers that torch is still being imported, and does not stay.
    """
    code = torch_stand_in(tmp_path, "print('ready', flush=True)\nwhile not sys.stdin.closed and sum(range(99)): pass")
    process = start([python(version), "-c", code])
    attempt = begin(process.pid)
    try:
        answer = attempt.wait(Limit(time.monotonic() + 20, lambda: attempt._busy.again_at > 0))
        assert answer is None and attempt._busy.again_at > 0, answer or attempt.why_not()
    finally:
        attempt.close()
    assert process.poll() is None


@pytest.mark.parametrize("how", ["variable", "option"])
def test_an_owner_who_switched_pep_768_off_is_obeyed(start: Start, how: str) -> None:
    path = python("3.14")
    # An option that is not on the command line: only the interpreter's own memory tells.
    code = "import os, sys; print('ready', flush=True); sys.stdin.read()"
    if how == "variable":
        environment = {**os.environ, "PYTHON_DISABLE_REMOTE_DEBUG": "1"}
        command = [path, "-c", "import os; os.environ.pop('PYTHON_DISABLE_REMOTE_DEBUG');" + code]
    else:
        environment, command = {**os.environ}, [path, "-X", "disable-remote-debug", "-c", code]
    process = start(command, env=environment, stdin=subprocess.PIPE)
    with pytest.raises(AttachRefused, match="switched remote debugging off") as refusal:
        deliver(process.pid, "install", STAND_IN, timeout=1, torch=False)
    assert refusal.value.state == "denied"
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_gdb_queues_the_line_where_nothing_else_can(
    start_victim: Callable[..., Victim], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := why_no_gdb():
        pytest.skip(why)
    monkeypatch.setattr(gdb, "on_x86_64", lambda: False)
    victim = start_victim("allocating", python=sys.executable)
    came = in_and_out(victim, (gdb.Gdb(),))
    assert came.way == "gdb"
    status = read_status(victim.pid)
    assert status is not None and status.tracer == 0 and status.state in "RS"
    unharmed(victim)


# Mounts and pids of its own, as in a container: what it knows as /tmp is another folder outside.
CONTAINER = """
set -e
mount --make-rprivate /
mount -t tmpfs none {away}
mount --bind {away} /tmp
exec {python} -u -c "import os, sys; print(os.getpid(), flush=True)
while not os.path.exists('/tmp/stop'): sum(range(999))
print(sorted(os.listdir('/tmp')), [m for m in sys.modules if 'aitop' in m])"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces here")
def test_a_target_in_namespaces_of_its_own_is_entered(start: Start, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    script = CONTAINER.format(away=away, python=sys.executable)
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script]
    outer = start(command, wait=False, stderr=subprocess.PIPE)
    if line_of(outer) != "1\n":
        pytest.skip("no namespaces to be had here")
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    inner = int(children[0])
    assert deliver(inner, "install", STAND_IN, timeout=20, torch=False).answer == "installed"
    assert deliver(inner, "remove", (), timeout=20).answer == "removed"
    Path(f"/proc/{inner}/root/tmp/stop").touch()
    assert outer.communicate(timeout=20)[0] == "['stop'] []\n"
    assert outer.returncode == 0
