"""The ledger: entries that add up, phases of their measured length, and which process does the work."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_builder import RANK, WORKER, constant, facts, line, snapshot, step, steps, with_fields

from aitop.model.snapshot import HotLine, Phases, ProcessStacks, Stacks
from aitop.model.steps import CallSite

LINES = [
    line("main", 0.3, phase="data_wait", activity="wait-queue", number=10),
    line("main", 0.3, phase="forward", number=12, parts=(("native", 0.75), ("python", 0.25)), activity="native"),
    line("main", 0.2, phase="backward", activity="native", number=14),
    line("log", 0.2, number=7, position="after", activity="wait-disk", parts=(("wait-disk", 0.6), ("python", 0.4))),
]
SAMPLED = Phases(data_wait=0.3, forward=0.3, backward=0.2, optimizer=0.0, outside=0.2)
MEASURED = {"seconds": 0.1, "data_wait": 0.05, "forward": 0.02, "backward": 0.02}


def entries(seen, lane="main"):
    """Entries of the ledger that is shown first."""
    return [entry for entry in seen.ledgers[0].entries if entry.lane == lane]


def share(seen, **wanted):
    """What such entries of the main lane take."""
    return sum(
        entry.share for entry in entries(seen) if all(getattr(entry, key) == value for key, value in wanted.items())
    )


def assert_adds_up(seen):
    for ledger in seen.ledgers:
        main = [entry for entry in ledger.entries if entry.lane == "main"]
        assert sum(entry.share for entry in main) == pytest.approx(1.0, abs=1e-6)
        for entry in main:
            assert 0.0 <= entry.low <= entry.share + 1e-9 and entry.share - 1e-9 <= entry.high <= 1.0, entry
        if ledger.length is not None:
            assert sum(entry.seconds for entry in main) == pytest.approx(ledger.length, rel=1e-6)


# --- adding up ------------------------------------------------------------------------------------------------------


def test_samples_alone_make_a_ledger_of_time():
    seen = snapshot(phases=SAMPLED, lines=LINES)
    assert_adds_up(seen)
    assert (seen.ledgers[0].unit, seen.ledgers[0].length) == ("second", None)
    assert share(seen, phase="data") == pytest.approx(0.3)
    assert share(seen, activity="wait-disk", position="after") == pytest.approx(0.12)
    assert {entry.basis for entry in entries(seen)} == {"sampled"}
    heaviest = [entry.share for entry in entries(seen)]
    assert heaviest == sorted(heaviest, reverse=True)


def test_the_measured_optimizer_gives_to_the_host_what_its_closure_takes():
    lines = [
        line("main", 0.1, phase="optimizer", activity="native", number=10),
        line("watch", 0.6, activity="native", number=20, closure=True),
        line("log", 0.2, activity="native", number=30),
    ]
    sampled = Phases(optimizer=0.1, outside=0.8)
    closes = snapshot(steps(20, 0.1, optimizer=0.075), phases=sampled, lines=lines)
    assert_adds_up(closes)
    assert share(closes, phase="optimizer") == pytest.approx(0.15)
    assert share(closes, phase="host") == pytest.approx(0.85)
    # What the update itself was sampled for stays its own.
    short = snapshot(steps(20, 0.1, optimizer=0.02), phases=sampled, lines=lines)
    assert share(short, phase="optimizer") == pytest.approx(0.1, abs=0.001)


def test_measured_phases_keep_their_length_and_samples_divide_them():
    seen = snapshot(steps(**MEASURED), lines=LINES)
    assert_adds_up(seen)
    assert (seen.ledgers[0].unit, seen.ledgers[0].length) == ("step", pytest.approx(0.1))
    for phase, length in (("data", 0.5), ("forward", 0.2), ("backward", 0.2), ("host", 0.1)):
        assert share(seen, phase=phase) == pytest.approx(length), phase
    assert share(seen, phase="forward", activity="python") == pytest.approx(0.05)
    assert [entry.seconds for entry in entries(seen) if entry.phase == "data"] == [pytest.approx(0.05)]


def test_forward_passes_that_evaluate_in_every_step_are_no_part_of_its_own():
    """The clock takes them for the step's, as if of a teacher; their line is below the update."""
    scores = line("score", 0.3, phase="evaluation", activity="native", number=20)
    seen = snapshot(steps(seconds=0.1, forward=0.05, backward=0.02), lines=[*LINES[1:3], scores])
    assert_adds_up(seen)
    assert share(seen, phase="evaluation") == pytest.approx(0.3)
    assert share(seen, phase="forward") == pytest.approx(0.3)


def test_calls_that_the_hook_timed_are_at_their_lines():
    """A sampler sees native code at work in `batch.to(device)` and in `loss.item()`."""
    places = {"file": "/x/train.py", "function": "main", "calls": 40}
    known = facts(
        cuda=True,
        calls=(
            CallSite(kind="transfer", name="to", line=19, seconds=3.0, **places),
            CallSite(kind="blocking", name="item", line=25, seconds=1.0, **places),
        ),
    )
    records = steps(seconds=0.1, forward=0.05, transfer=0.3 * 0.1, transfer_apart=0.3 * 0.1, blocking=0.1 * 0.1)
    sampled = [
        line("main", 0.5, phase="forward", activity="native", number=20),
        line("main", 0.35, activity="native", number=19),
        line("main", 0.15, activity="native", number=25),
    ]
    seen = snapshot(records, lines=sampled, facts=known)
    assert_adds_up(seen)
    (copied,) = [entry for entry in entries(seen) if entry.phase == "transfer"]
    assert (copied.line, copied.activity, copied.share) == (19, "wait-device", pytest.approx(0.3))
    waits = [entry for entry in entries(seen) if entry.phase == "host" and entry.activity == "wait-device"]
    assert [(entry.line, entry.share) for entry in waits] == [(25, pytest.approx(0.1))]


def test_a_measured_phase_that_was_hardly_sampled_keeps_a_part_without_a_line():
    seen = snapshot(steps(seconds=0.1, backward=0.09), lines=[line("main", 0.1, phase="backward", activity="native")])
    assert_adds_up(seen)
    placed = sum(entry.share for entry in entries(seen) if entry.phase == "backward" and entry.where is not None)
    assert placed == pytest.approx(0.2) and share(seen, phase="backward") == pytest.approx(0.9)


def test_a_phase_that_no_clock_times_keeps_its_sampled_share():
    """Copies were sampled, and on this machine no clock watches them."""
    copies = line("main", 0.3, phase="transfer", activity="native", work="copy", number=11)
    model = line("main", 0.7, phase="forward", activity="native", number=12)
    unwatched = snapshot(steps(seconds=0.1, forward=0.07), lines=[copies, model])
    assert share(unwatched, phase="transfer") == pytest.approx(0.3)
    watched = snapshot(steps(seconds=0.1, forward=0.07, transfer=0.02, transfer_apart=0.02), lines=[copies, model])
    assert share(watched, phase="transfer") == pytest.approx(0.2)
    assert_adds_up(unwatched)
    assert_adds_up(watched)


def test_steps_without_stacks_make_a_ledger_without_lines():
    seen = snapshot(steps(**MEASURED), main_samples=0)
    assert_adds_up(seen)
    assert all(entry.where is None for entry in entries(seen)) and share(seen, phase="data") == pytest.approx(0.5)


def test_nothing_known_makes_no_ledger():
    assert snapshot(main_samples=0).ledgers == ()


# --- what is carved out ---------------------------------------------------------------------------------------------


def test_the_collector_takes_its_measured_part_of_what_runs():
    seen = snapshot(steps(**MEASURED, gc=0.01), lines=LINES)
    assert_adds_up(seen)
    assert share(seen, activity="collect") == pytest.approx(0.1)
    assert share(seen, phase="data", activity="wait-queue") == pytest.approx(0.5), "who waits does not collect"
    assert share(seen, phase="forward") == pytest.approx(0.2), "it is a part of the phase in which it ran"


def test_a_collection_that_a_line_asks_for_is_on_that_line():
    asks = line("main", 0.3, activity="collect", number=31, position="after")
    model = line("main", 0.7, phase="forward", activity="native", number=12)
    seen = snapshot(steps(seconds=0.1, forward=0.07, gc=0.04), lines=[asks, model])
    assert_adds_up(seen)
    assert share(seen, activity="collect", line=31) == pytest.approx(0.3)
    assert share(seen, activity="collect") == pytest.approx(0.4), "beside those that start by themselves"


def test_waits_for_a_core_are_the_kernels_word_and_fall_on_the_lines_that_would_run():
    seen = snapshot(steps(**MEASURED), lines=LINES, series={"run_delay": constant(0.2)})
    assert_adds_up(seen)
    assert share(seen, activity="wait-core") == pytest.approx(0.2)
    assert share(seen, activity="wait-queue") == pytest.approx(0.5)
    waiting = [entry for entry in entries(seen) if entry.activity == "wait-core"]
    assert {(entry.line, entry.does) for entry in waiting if entry.where is not None} == {
        (12, "native"),
        (12, "python"),
        (14, "native"),
        (7, "python"),
    }


# --- models that act ------------------------------------------------------------------------------------------------

WORLD = line("step", 0.3, phase="environment", number=30)
POLICY = line("act", 0.3, phase="evaluation", activity="native", number=31)
LEARNS = line("main", 0.4, phase="backward", activity="native", number=40)


def test_a_model_that_is_called_to_act_is_not_evaluated():
    seen = snapshot(steps(seconds=0.1, evaluation=0.03, backward=0.04), lines=[WORLD, POLICY, LEARNS])
    assert_adds_up(seen)
    assert share(seen, phase="evaluation") == 0.0 and share(seen, phase="forward") == pytest.approx(0.3)
    alone = snapshot(steps(seconds=0.1, evaluation=0.06, backward=0.04), lines=[POLICY, LEARNS])
    assert share(alone, phase="evaluation") == pytest.approx(0.6)


def test_threads_and_workers_beside_have_entries_of_their_own_time():
    makes = line("__getitem__", 0.9, pid=WORKER, phase="data_wait")
    beside = line("publish", 1.0, thread="metrics", number=50)
    seen = snapshot(steps(**MEASURED), lines=[*LINES, makes, beside], workers=1)
    assert_adds_up(seen)
    assert {(entry.pid, entry.thread, entry.share) for entry in entries(seen, "producers")} == {
        (WORKER, "MainThread", 0.9),
        (RANK, "metrics", 1.0),
    }


def test_people_read_one_entry_where_several_read_the_same():
    """A line that waits on both sides of a library's call; two workers of which each waits for most of its time."""
    waits = [
        line("main", 0.2, phase="data_wait", activity="wait-queue", number=10, work=work) for work in (None, "file")
    ]
    makes = [line("__getitem__", share, pid=WORKER + at, phase="data_wait") for at, share in enumerate((0.9, 0.7))]
    seen = snapshot(steps(**MEASURED), lines=[*waits, *LINES[1:], *makes], workers=2)
    read = seen.ledgers[0].account("main")
    assert len(entries(seen)) == len(read) + 1
    assert sum(entry.share for entry in read) == pytest.approx(1.0)
    assert [entry.share for entry in read] == sorted((entry.share for entry in read), reverse=True)
    [loads] = seen.ledgers[0].account("producers")
    assert loads.share == pytest.approx(0.8) and loads.low < 0.8 < loads.high


# --- always ---------------------------------------------------------------------------------------------------------

PHASES = ("data_wait", "transfer", "forward", "backward", "optimizer", "communication", "evaluation", "save", "outside",
          "environment")  # fmt: skip
ACTIVITIES = ("python", "native", "wait", "wait-lock", "wait-queue", "wait-disk", "sleep", "compile")
SAMPLES = st.lists(
    st.tuples(st.sampled_from(PHASES), st.integers(1, 40), st.integers(1, 9), st.sampled_from(ACTIVITIES)), max_size=12
)
PART = st.floats(0, 0.3)
DURATIONS = st.fixed_dictionaries(
    {
        "data_wait": PART,
        "loader_start": PART,
        "forward": PART,
        "backward": PART,
        "optimizer": PART,
        "save": PART,
        "evaluation": PART,
        "gc": PART,
        "transfer_apart": st.one_of(st.none(), PART),
        "communication_apart": st.one_of(st.none(), PART),
    }
)


@settings(max_examples=200, deadline=None)
@given(SAMPLES, st.one_of(st.none(), DURATIONS), st.one_of(st.none(), st.floats(0, 1)))
def test_the_entries_of_a_lane_always_add_up(samples, durations, delay):
    whole = sum(count for _, count, _, _ in samples)
    lines = [
        line("main", count / whole, phase=phase, number=number, activity=activity)
        for phase, count, number, activity in samples
    ]
    records = None
    if durations is not None:
        taken = {name: seconds for name, seconds in durations.items() if seconds is not None and name != "gc"}
        # Saving and evaluating are parts of the time outside of the others.
        records = [step(index, max(0.01, sum(taken.values())), **durations) for index in range(9)]
    series = {} if delay is None else {"run_delay": constant(delay)}
    assert_adds_up(snapshot(records, phases=SAMPLED, lines=lines, series=series))


# --- who does the work ----------------------------------------------------------------------------------------------


def beside(*others: ProcessStacks, lines: tuple[HotLine, ...] = (), records=None):
    """A Snapshot of these processes and lines."""
    seen = snapshot(records, phases=SAMPLED, main_samples=0)
    return with_fields(seen, stacks=Stacks(seconds=5.0, samples=100, processes=others, lines=lines))


def process(pid, role="other", phases=None, thread="MainThread"):
    return ProcessStacks(pid=pid, role=role, samples=100, phases=phases or Phases(outside=1.0), thread=thread)


def test_a_parent_that_only_waits_is_not_the_one_to_show():
    """As mnist_hogwild does: the main process starts trainers and joins them."""
    waits = line("main", 1.0, activity="wait-child", number=5)
    trains = [line("train", 1.0, pid=pid, phase="forward", activity="native") for pid in (301, 302)]
    trains = [msgspec.structs.replace(one, role="other") for one in trains]
    seen = beside(process(RANK, "rank"), process(301, phases=SAMPLED), process(302, phases=SAMPLED),
                  lines=(waits, *trains))  # fmt: skip
    assert [ledger.pid for ledger in seen.ledgers] == [301, 302]


def test_the_process_whose_steps_are_measured_comes_first():
    lines = tuple(line("main", 1.0, pid=pid, phase="forward", activity="native") for pid in (RANK, 101))
    ranks = process(101, "rank", Phases(forward=0.9, outside=0.1)), process(RANK, "rank", SAMPLED)
    assert beside(*ranks, lines=lines, records=steps(**MEASURED)).ledgers[0].pid == RANK


def test_a_program_without_any_step_still_has_a_ledger():
    seen = beside(process(RANK, "rank"), lines=(line("main", 1.0, number=5),))
    assert [ledger.pid for ledger in seen.ledgers] == [RANK]
    assert_adds_up(seen)
