"""A look at all stacks of a real process, and the way to its files."""

import os
import subprocess
import sys

import pytest

from aitop.engine.live import LiveFeed, Options
from aitop.errors import AitopError
from aitop.model.snapshot import Target
from aitop.sources.foreign_file import readable_path
from aitop.stacks.groups import stack_groups

WAITING = """
import queue, sys, threading
def feed(): queue.Queue().get()
for number in range(3): threading.Thread(target=feed, name=f"feeder-{number}", daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def feed(pid, *, passive=False):
    return LiveFeed([Target(pid=pid, command="python wait.py")], Options(passive=passive))


def test_all_threads_of_a_process_are_seen_and_grouped(tmp_path):
    script = tmp_path / "wait.py"
    script.write_text(WAITING)
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        dump = feed(child.pid).dump()
        child.stdin.close()
    first, main = stack_groups(dump)
    assert (first.what, first.place.line, len(first.members)) == ("Queue.get", 3, 3)
    assert {member.thread for member in first.members} == {"feeder-0", "feeder-1", "feeder-2"}
    assert main.members[0].main and main.members[0].thread == "MainThread"
    assert not any(member.active for member in first.members)


def test_where_stacks_are_off_or_nobody_lives_it_says_so():
    with pytest.raises(AitopError, match="switched off by --passive"):
        feed(os.getpid(), passive=True).dump()
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        ended = feed(child.pid)
        child.wait()
    with pytest.raises(AitopError, match="has ended"):
        ended.dump()


def test_files_are_found_as_the_process_sees_them(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    assert readable_path(os.getpid(), str(file)) == str(file)
    assert readable_path(os.getpid(), os.path.relpath(file)) == str(file)
    assert readable_path(os.getpid(), str(tmp_path / "gone.py")) is None
    assert readable_path(os.getpid(), "<string>") is None
