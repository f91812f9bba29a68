"""A process that becomes another program, or ends, leaves its ring behind: the monitor lets go of it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from aitop.sources.ring.reader import HookRing
from aitop.sources.ring.source import HookSource
from aitop.sources.source import SourceError

HOLDS_A_RING = """
import os, sys
from aitop.hook.ring import Ring
ring = Ring("attach")
print("ready", flush=True)
word = sys.stdin.readline()
if word == "exec\\n":
    os.execv(sys.executable, [sys.executable, "-S", "-c", "print('ready', flush=True); input()"])
"""


@pytest.fixture
def holder():
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_RING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_another_program_under_the_same_pid_gets_a_way_in_of_its_own(holder):
    asked = []
    source = HookSource(lambda: [holder.pid], asked.append, asked.append)
    source.open()
    source.read()
    assert asked == []
    holder.stdin.write("exec\n")
    assert holder.stdout.readline() == "ready\n"
    with pytest.raises(SourceError, match="no hook"):
        for _ in range(500):
            source.read()
            time.sleep(0.02)
    assert asked == [holder.pid]
    source.close()


def test_the_ring_of_a_process_that_has_ended_is_outlived(holder):
    ring = HookRing(holder.pid)
    ring.read(time.monotonic())
    assert not ring.outlived
    holder.kill()
    holder.wait()
    assert ring.outlived
    ring.close()
