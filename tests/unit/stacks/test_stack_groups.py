"""All threads at once: looked at, and grouped by where they stand."""

import os
import subprocess
import sys

import pytest
from stack_maker import frame, stack

from aitop.engine.live import LiveFeed, Options
from aitop.errors import AitopError
from aitop.model.snapshot import Target
from aitop.model.stacks import StackDump, ThreadStack
from aitop.stacks.groups import stack_groups

GET = stack(
    "std/threading.py:1002 Thread._bootstrap",
    "user/data.py:31 feed | batch = queue.get()",
    "std/queue.py:171 Queue.get",
    "std/threading.py:327 Condition.wait",
)
JOIN = stack("user/train.py:9 <module>", "std/threading.py:1100 Thread.join", "std/threading.py:1120 _wait")
SPIN = stack("user/train.py:5 spin | while True: pass")
FORKED = stack(
    "user/train.py:9 <module> | for x in loader:",
    "std/multiprocessing/process.py BaseProcess._bootstrap",
    "torch/utils/data/_utils/worker.py _worker_loop",
    "std/multiprocessing/queues.py Queue.get",
    "std/multiprocessing/connection.py wait",
    "std/selectors.py select",
)


def dump(*threads):
    """A dump of (pid, thread, main, stack, active)."""
    table = {}
    members = tuple(
        ThreadStack(
            pid=pid, thread=thread, main=main, active=active,
            frames=tuple(table.setdefault(one, len(table)) for one in frames),
        )
        for pid, thread, main, frames, active in threads
    )  # fmt: skip
    return StackDump(time=1.0, frames=tuple(table), threads=members)


def test_equal_stacks_are_one_group_and_the_largest_comes_first():
    first, second = stack_groups(
        dump(
            (7, "MainThread", True, SPIN, True), (9, "t2", False, GET, False),
            (8, "t1", False, GET, False), (8, "t0", False, GET, False),
        )
    )  # fmt: skip
    assert [(member.pid, member.thread) for member in first.members] == [(8, "t0"), (8, "t1"), (9, "t2")]
    assert (first.what, first.where, first.place.line) == ("Queue.get", GET[1], 31)
    assert (second.what, second.place.line, len(second.members)) == ("spin", 5, 1)


def test_another_line_is_another_group_and_threads_at_work_come_first():
    other = [*GET[:1], frame("user/data.py:32 feed"), *GET[2:]]
    assert len(stack_groups(dump((1, "a", False, GET, False), (1, "b", False, other, False)))) == 2
    busy, idle = stack_groups(dump((1, "a", False, GET, False), (2, "b", False, SPIN, True)))
    assert (busy.what, idle.what) == ("spin", "Queue.get")
    assert stack_groups(dump((1, "a", False, [], None))) == (), "a thread without frames"


def test_what_a_fork_inherited_and_our_hook_do_not_count():
    hooked = [*GET[:1], frame("<aitop hook> wrapper"), *GET[1:]]
    started = [*GET[:1], frame("aitop/hook/phases.py wrapper"), *GET[1:]]
    groups = stack_groups(
        dump((1, "a", False, GET, False), (2, "b", False, hooked, False), (3, "c", False, started, False))
    )
    assert [len(group.members) for group in groups] == [3]
    [worker] = stack_groups(dump((3, "MainThread", True, FORKED, False)))
    assert (worker.what, worker.where, worker.place.function) == ("Queue.get", None, "select")
    assert worker.frames[0].function == "BaseProcess._bootstrap"


def test_plumbing_right_under_the_users_line_is_named_by_what_was_called():
    [group] = stack_groups(dump((1, "MainThread", True, JOIN, False)))
    assert (group.what, group.where) == ("Thread.join", JOIN[0])


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
