"""What a bench has started in other sessions is put aside with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
PARENT = f"""
import subprocess, sys, time
sys.path.insert(0, {str(BENCH)!r})
import together
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
shadow = together.beside(*([child.pid] if sys.argv[1] == "named" else []))
print(child.pid, shadow.pid, flush=True)
time.sleep(60)
"""


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def becomes(pid, letters):
    deadline = time.monotonic() + 10
    while state(pid) not in letters and time.monotonic() < deadline:
        time.sleep(0.02)
    return state(pid) in letters


@pytest.mark.parametrize("which", ["named", "all"])
def test_children_stop_and_go_on_with_the_one_that_began_them(which):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, which], stdout=subprocess.PIPE, text=True)
    child, shadow = map(int, parent.stdout.readline().split())
    try:
        os.kill(parent.pid, signal.SIGSTOP)
        assert becomes(child, "T")
        assert state(shadow) != "T"
        os.kill(parent.pid, signal.SIGCONT)
        assert becomes(child, "SR")
        os.kill(parent.pid, signal.SIGSTOP)
        assert becomes(child, "T")
        parent.kill()
        assert becomes(child, "SR")
        assert becomes(shadow, "XZ")
    finally:
        parent.kill()
        parent.wait()
        for pid in (child, shadow):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
