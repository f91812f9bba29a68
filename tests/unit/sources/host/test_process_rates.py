"""What is read of a real process: memory that it asks for, and first use of memory that it has already."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from aitop.sources.host.source import HostSource

LARGE = 32 << 20
# Another thread's memory comes from a heap of its own, of which 64 MB are reserved at once.
SCRIPT = f"""
import mmap, sys, threading
private, shared, kept = mmap.mmap(-1, {LARGE}, flags=mmap.MAP_PRIVATE), mmap.mmap(-1, {LARGE}), []
def touch(pages):
    for at in range(0, {LARGE}, 4096):
        pages[at] = 1
def ask():
    kept.extend(b"x" * 50000 for _ in range({LARGE} // 50000))
def share():
    kept.append(mmap.mmap(-1, {LARGE}))
    touch(kept[-1])
def aside():
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
doing = dict(private=lambda: touch(private), shared=lambda: touch(shared), ask=ask, share=share, aside=aside)
for line in sys.stdin:
    doing[line.strip()]()
    print("done", flush=True)
"""


@pytest.mark.parametrize(
    ("does", "newly"), [("private", False), ("shared", False), ("ask", True), ("share", True), ("aside", True)]
)
def test_memory_that_is_asked_for_and_memory_that_is_used_for_the_first_time(does, newly):
    command = [sys.executable, "-S", "-c", SCRIPT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        # The first memory of another thread reserves its heap; from then on it is there.
        for warm_up in ("aside", "ask"):
            print(warm_up, file=child.stdin, flush=True)
            assert child.stdout.readline() == "done\n"
        source = HostSource([child.pid])
        source.open()
        [before] = source.read()[0].processes
        print(does, file=child.stdin, flush=True)
        assert child.stdout.readline() == "done\n"
        [after] = source.read()[0].processes
        child.kill()
    assert after.rss - before.rss > 0.8 * LARGE
    assert (after.mapped - before.mapped > 0.8 * LARGE) is newly


def test_the_first_rates_do_not_count_the_time_in_which_the_tree_was_recognised(monkeypatch):
    """The first look takes long, as for the maps and environments of many processes."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def compute():
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        clock[0] += 0.1

    looks = [compute, lambda: None]
    source = HostSource([os.getpid()], recognise=lambda members: looks.pop(0)())
    source.open()
    source.read()
    compute()
    [process] = source.read()[0].processes
    # The kernel counts in hundredths of a second.
    assert process.cpu == pytest.approx(1.0, abs=0.3)
