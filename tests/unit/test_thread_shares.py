"""Who holds the interpreter's lock, and how much of its time each thread is at work."""

from __future__ import annotations

from collections import Counter

import msgspec
from stack_maker import stack, window

from aitop.model.stacks import GilHold, ThreadState
from aitop.sources.stacks.pace import GilWatch
from aitop.sources.stacks.speedscope import ThreadSamples, parse
from aitop.stacks.view import StackView


def held_by(**threads):
    return [ThreadSamples(name, name == "MainThread", Counter({(0,): count})) for name, count in threads.items()]


def test_the_lock_is_watched_while_others_hold_it_and_rarely_else():
    watch = GilWatch()
    assert watch.due()
    watch.taken(1, held_by(MainThread=30), 50)
    assert [watch.due() for _ in range(14)].count(True) == 2
    watch = GilWatch()
    assert watch.due()
    (main, metrics) = watch.taken(1, held_by(MainThread=10, metrics=30), 50)
    assert (metrics.thread, metrics.samples, metrics.asked, main.main) == ("metrics", 30, 50, True)
    assert [watch.due() for _ in range(4)] == [True, True, True, False]


def test_shares_of_threads_from_windows_that_asked_and_that_did_not():
    loop = stack("user/train.py:3 main | step()")
    waits = stack("user/train.py:9 publish | time.sleep(1)", "std/queue.py get")
    plain = window(
        10.0, (1, "MainThread", True, loop, 20), (1, "metrics", False, waits, 15), (1, "metrics", False, loop, 5)
    )
    asked = msgspec.structs.replace(plain, gil=(GilHold(1, "metrics", False, 25, 50),))

    def shares(*windows):
        return StackView().view(windows, {1: "rank"}, 0.0).threads

    assert [(one.thread, one.gil) for one in shares(plain)] == [("MainThread", None), ("metrics", None)]
    assert [(one.thread, one.gil, one.active) for one in shares(plain, asked)] == [
        ("MainThread", 0.0, 1.0),
        ("metrics", 0.5, 0.25),
    ]


def test_the_kernel_knows_better_than_stacks_whether_a_thread_runs():
    spin = window(10.0, (1, "MainThread", True, stack("user/train.py:3 main"), 20))
    state = ThreadState(pid=1, thread="MainThread", main=True, asked=50, running=10, waits={"network": 40})
    stacks = StackView().view([msgspec.structs.replace(spin, states=(state,))], {1: "rank"}, 0.0)
    assert stacks.threads[0].active == 0.2


def test_the_lone_holder_of_the_lock_is_not_taken_for_the_main_thread():
    file = {
        "profiles": [{"name": 'Thread 77 "metrics"', "samples": [[0], [0]]}],
        "shared": {"frames": [{"name": "publish", "file": "m.py", "line": 3}]},
    }
    _, (one,) = parse(msgspec.json.encode(file), frozenset({"42"}), every_thread=False)
    assert (one.name, one.main) == ("metrics", False)
