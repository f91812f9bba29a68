"""What a thread does on its lines: from libraries, from looks at it, and from what the kernel says it waits in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stack_maker import looks, stack, state, window

from aitop.stacks.activity import Parts, ThreadLooks, parts_of_groups
from aitop.stacks.reading import read_stack
from aitop.stacks.view import StackView

TOP = "user/train.py:90 <module>"
PYTHON = stack(TOP, "user/train.py:11 parse")
NATIVE = stack(TOP, "user/train.py:12 main", "torch/nn/functional.py linear")
RECEIVES = "std/multiprocessing/connection.py _ConnectionBase.recv_bytes"
READS = stack(TOP, "user/train.py:13 read")
QUEUE = stack(TOP, "user/train.py:14 take", "std/queue.py Queue.get", "std/threading.py Condition.wait")
PIPE = stack(TOP, "user/train.py:16 main", "std/multiprocessing/queues.py Queue.get", RECEIVES)
FETCH = stack(TOP, "user/train.py:15 fetch", "requests/api.py get", "std/socket.py SocketIO.readinto")


def doing(*samples, cpu=None, gil=None, states=()):
    """Parts of the time of each line (by number) of a main thread with these (stack, count) samples.

    `cpu` and `gil` are (asked, (stack, hits), …) of looks at it.
    """
    seen = window(2.0, *((1, "MainThread", True, frames, count) for frames, count in samples))
    made = [looks(1, kind, asked[0], *asked[1:]) for kind, asked in (("cpu", cpu), ("gil", gil)) if asked is not None]
    for look in made:
        seen = look(seen)
    seen = msgspec.structs.replace(seen, states=tuple(states))
    stacks = StackView().view([seen], {1: "rank"}, 0.0)
    return {line.line: dict(line.parts) for line in stacks.lines}


# --- without looks --------------------------------------------------------------------------------------------------


def test_libraries_tell_what_nobody_looked_at():
    parts = doing((PYTHON, 10), (NATIVE, 10), (QUEUE, 10))
    assert {line: max(shares, key=shares.get) for line, shares in parts.items()} == {
        11: "python",
        12: "native",
        14: "wait-queue",
    }
    assert all(sum(shares.values()) == pytest.approx(1.0) for shares in parts.values())


# --- looks ----------------------------------------------------------------------------------------------------------


def test_a_line_on_which_the_lock_is_held_runs_python():
    """Both lines call a library of arrays; on one of them the lock is held in four of five looks."""
    small = stack(TOP, "user/train.py:21 small", "torch/nn/functional.py linear")
    parts = doing((NATIVE, 50), (small, 50), cpu=(100, (NATIVE, 50), (small, 50)), gil=(100, (NATIVE, 2), (small, 40)))
    assert parts[12]["python"] < 0.1 < 0.7 < parts[21]["python"]


def test_a_long_native_call_is_not_taken_for_the_python_around_it():
    """Below one line a native loop takes most of the time, and the few looks that met the lock met it beside that."""
    loop = stack(TOP, "user/train.py:31 forward", "torch/nn/modules/rnn.py forward")
    around = [stack(TOP, "user/train.py:31 forward", f"torch/nn/modules/module.py call{n}") for n in range(4)]
    samples = ((loop, 96), *((one, 1) for one in around), (PYTHON, 100))
    parts = doing(*samples, gil=(50, (around[0], 2), (around[1], 2), (PYTHON, 25)))
    assert parts[31]["python"] < 0.08
    assert parts[11]["python"] > 0.9


def test_a_line_with_few_looks_borrows_from_lines_that_do_the_same():
    own = [stack(TOP, f"user/train.py:{40 + n} score") for n in range(20)]
    parts = doing((NATIVE, 50), *((one, 2) for one in own), gil=(45, *((one, 2) for one in own[:10])))
    assert min(parts[40 + n]["python"] for n in range(20)) > 0.3
    assert parts[12]["python"] < 0.1


@pytest.mark.parametrize(("asked", "waits"), [(100, True), (5, False)], ids=["many looks", "too few looks"])
def test_a_line_that_is_not_on_a_core_waits(asked, waits):
    parts = doing((PYTHON, 50), (READS, 50), cpu=(asked, (PYTHON, asked // 2)))
    assert parts[11].get("wait", 0.0) < 0.1
    assert parts[13].get("wait", 0.0) > 0.9 if waits else "wait" not in parts[13]


# --- the kernel -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "activity"),
    [
        ("disk", "wait-disk"),
        ("network", "wait-network"),
        ("child", "wait-child"),
        ("sleep", "sleep"),
        ("lock", "wait-lock"),
        ("device", "wait-device"),
        ("native", "native"),
        ("queue", "wait-queue"),
        ("other", "wait"),
    ],
)
def test_the_kernel_says_what_a_line_waits_for(kind, activity):
    parts = doing(
        (PYTHON, 50),
        (READS, 50),
        cpu=(100, (PYTHON, 50)),
        states=[state(1, 100, running=50, **{kind: 50})],
    )
    assert parts[13][activity] > 0.8
    assert parts[11].get(activity, 0.0) < 0.1


def test_a_line_that_reads_a_socket_waits_for_the_network_and_another_for_the_lock():
    parts = doing(
        (PYTHON, 20),
        (READS, 40),
        (FETCH, 40),
        cpu=(100, (PYTHON, 20)),
        states=[state(1, 100, running=20, network=40, lock=40)],
    )
    assert parts[15]["wait-network"] > 0.85 and parts[13]["wait-lock"] > 0.85


def test_a_poll_below_a_service_waits_for_it_whatever_it_polls():
    """A socket with a time limit is polled, and the kernel does not say which descriptors are."""
    parts = doing(
        (READS, 80), (FETCH, 20), cpu=(100, (PYTHON, 0)), states=[state(1, 100, running=0, lock=80, other=20)]
    )
    assert parts[15] == {"wait-network": pytest.approx(1.0, abs=0.05), "python": pytest.approx(0.0), "native": 0.0}
    assert parts[13]["wait-lock"] > 0.9


@pytest.mark.parametrize("others", [1, 3, 7, 11, 29])
def test_what_is_given_to_several_services_adds_up_to_no_more_than_there_is(others):
    """Sums of parts are off by a rounding error, above the whole or below."""
    asks = [stack(TOP, f"user/train.py:{60 + n} ask", "requests/api.py get") for n in range(others)]
    for seconds in range(1, 60):
        waits = {"other": seconds, "lock": 61 - seconds}
        parts = doing(*((one, 7) for one in asks), (READS, 3), states=[state(1, 61, running=0, **waits)])
        assert all(sum(shares.values()) == pytest.approx(1.0) for shares in parts.values())


def test_the_kernel_counts_waits_that_are_too_short_to_be_met():
    """Of a thread that was off its core for half of the time the looks met one wait in five."""
    met = msgspec.structs.replace(state(1, 100, running=80, disk=16, lock=4), counted=0.5)
    parts = doing((PYTHON, 50), (READS, 50), cpu=(100, (PYTHON, 50)), states=[met])
    waits = {kind: sum(0.5 * shares.get(kind, 0.0) for shares in parts.values()) for kind in ("wait-disk", "wait-lock")}
    assert waits["wait-disk"] == pytest.approx(0.4, abs=0.01) and waits["wait-lock"] == pytest.approx(0.1, abs=0.01)
    none_met = msgspec.structs.replace(state(1, 100, running=100), counted=0.5)
    parts = doing((PYTHON, 50), (READS, 50), cpu=(100, (PYTHON, 50)), states=[none_met])
    assert parts[13]["wait"] > 0.9 and parts[11].get("wait", 0.0) < 0.1


@pytest.mark.parametrize(("kind", "activity"), [("lock", "wait-lock"), ("native", "native")])
def test_a_wait_that_a_library_names_stays_one_and_is_not_given_to_other_lines(kind, activity):
    parts = doing((PYTHON, 50), (QUEUE, 50), states=[state(1, 100, running=50, **{kind: 50})])
    assert parts[14] == {"wait-queue": 1.0}
    assert parts[11].get(activity, 0.0) < 0.05


def test_a_process_that_runs_while_it_takes_something_over_copies_and_unpickles_it():
    """The library calls it a wait; the kernel counts more time on a core than the lines beside it can have taken."""
    parts = doing((PYTHON, 10), (PIPE, 50), (QUEUE, 40), states=[state(1, 100, running=40, queue=20, lock=40)])
    assert parts[16]["native"] == pytest.approx(0.6) and parts[16]["wait-queue"] == pytest.approx(0.4)
    assert parts[14] == {"wait-queue": 1.0}, "a queue of threads hands over references"
    assert parts[11]["python"] > 0.9
    # One that runs no longer than its other lines take waits.
    parts = doing((PYTHON, 50), (PIPE, 50), states=[state(1, 100, running=50, queue=50)])
    assert parts[16]["wait-queue"] > 0.95


def test_starting_a_process_pickles_what_it_gets_and_stays_a_start():
    spawn = ("std/multiprocessing/popen_spawn_posix.py Popen._launch", "std/multiprocessing/reduction.py dump")
    started = stack(TOP, "user/train.py:17 main", *spawn)
    parts = doing((PYTHON, 5), (started, 55), (QUEUE, 40), states=[state(1, 100, running=60, lock=40)])
    assert parts[17] == {"spawn": 1.0}


def test_a_line_for_which_a_librarys_threads_compute_computes():
    """A jitted function leaves no frame: its line only waits, for a lock."""
    parts = doing((PYTHON, 20), (READS, 80), states=[state(1, 100, running=20, native=70, lock=10)])
    assert 0.8 * parts[13]["native"] + 0.2 * parts[11]["native"] == pytest.approx(0.7, abs=0.01)
    assert parts[13]["native"] > 0.6


def test_what_is_waited_for_in_one_window_is_not_given_to_the_lines_of_another():
    """While the workers start, the thread waits for their pipe; then it computes without a pause."""
    starts = stack(TOP, "user/train.py:21 main", "std/multiprocessing/popen_spawn_posix.py Popen._launch")
    windows = [
        msgspec.structs.replace(window(time, (1, "MainThread", True, frames, 40)), states=(own,))
        for time, frames, own in (
            (1.0, starts, state(1, 40, running=0, queue=40)),
            (2.0, NATIVE, state(1, 40, running=40)),
        )
    ]
    stacks = StackView().view(windows, {1: "rank"}, 0.0)
    parts = {line.line: dict(line.parts) for line in stacks.lines}
    assert parts[21]["spawn"] == 1.0
    assert parts[12].get("wait-queue", 0.0) == 0.0


def test_array_operations_wait_for_no_file():
    parts = doing((NATIVE, 50), (READS, 50), states=[state(1, 100, running=70, disk=30)])
    assert parts[12].get("wait-disk", 0.0) == 0.0 and parts[13]["wait-disk"] == pytest.approx(0.6, abs=0.01)


def test_without_the_kernel_the_library_below_says_what_is_waited_for():
    parts = doing((PYTHON, 50), (FETCH, 50), cpu=(100, (PYTHON, 50)))
    assert parts[15]["wait-network"] > 0.9


# --- always ---------------------------------------------------------------------------------------------------------

SEEN = [read_stack(frames) for frames in (PYTHON, NATIVE, READS, QUEUE, FETCH)]
KINDS = ("lock", "native", "disk", "network", "queue", "child", "device", "sleep", "other")
COUNTS = st.lists(st.integers(0, 60), min_size=len(SEEN), max_size=len(SEEN))


@settings(max_examples=150, deadline=None)
@given(
    COUNTS.filter(any),
    COUNTS,
    COUNTS,
    st.integers(0, 100),
    st.one_of(st.none(), st.floats(0, 1)),
    st.lists(st.floats(0, 1), min_size=len(KINDS), max_size=len(KINDS)),
)
def test_parts_of_a_line_add_up_whatever_was_looked_at(samples, on_core, held, asked, running, waits):
    groups = {seen: {seen: count} for seen, count in zip(SEEN, samples, strict=True) if count}
    whole = sum(waits)
    left = (1.0 - running) / whole if running is not None and whole else 0.0
    looks = ThreadLooks(
        cpu={seen: min(count, asked) for seen, count in zip(SEEN, on_core, strict=True)},
        cpu_asked=asked,
        gil={seen: min(count, asked) for seen, count in zip(SEEN, held, strict=True)},
        gil_asked=asked,
        running=running,
        waits={kind: share * left for kind, share in zip(KINDS, waits, strict=True)},
    )
    parts: dict[object, Parts] = parts_of_groups(groups, looks, {seen: seen.state for seen in groups})
    assert parts.keys() == groups.keys()
    for shares in parts.values():
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-6)
        assert all(-1e-9 <= share <= 1.0 + 1e-9 for share in shares.values())
