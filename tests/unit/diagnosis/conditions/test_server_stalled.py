"""A server that is stalled, told from one that is idle, serves, computes or merely waits for others."""

from __future__ import annotations

import pytest
from judgements import fired, shown
from msgspec.structs import replace
from served_maker import START, server, tree, turns
from snapshot_builder import RANK, line, with_ledgers

from aitop.commands import diagnose
from aitop.diagnosis.conditions.hang import hang
from aitop.diagnosis.judge import CONFIRM_TICKS, Judge
from aitop.model.serving import RequestRecord

ANSWERED = [RequestRecord(end=START + n / 10, seconds=0.2) for n in range(100)]
IDLE_TREE = {"host": tree(state="S", cpu=0.01)}


def judged(requests=(), iterations=(), seen=None, **fields):
    return hang(server(requests, iterations, seen={**IDLE_TREE, **(seen or {})}, **fields))


def test_requests_under_way_and_nothing_gets_on():
    verdict = fired(judged(ANSWERED, alive=3, still=4.0))
    assert (verdict.id, verdict.subtype, verdict.severity) == ("hang", "stalled", "critical")
    assert "with 3 requests under way" in verdict.title and verdict.confidence >= 0.8


@pytest.mark.parametrize(
    "fields",
    [
        {"alive": 0, "still": 60.0},
        {"alive": None, "still": 60.0},
        {"alive": 3, "still": 0.1},
        {"alive": 3, "still": 1.5},
        {"alive": 3, "still": 20.0, "seen": {"host": tree(state="R", cpu=0.9)}},
    ],
    ids=["idle", "not known", "serving", "short", "computing"],
)
def test_a_server_that_is_not_stalled(fields):
    assert judged(ANSWERED, **fields) is None


def test_requests_that_take_long_may_take_as_long_again():
    slow = [RequestRecord(end=START + 10 * n, seconds=8.0) for n in range(3)]
    assert judged(slow, alive=1, still=11.0) is None
    assert fired(judged(slow, alive=1, still=13.0)).subtype == "stalled"


def test_a_request_before_those_of_the_window_took_long_too():
    assert judged(ANSWERED, alive=1, still=8.0, longest=6.0) is None
    assert "the longest so far took 6.00 s" in fired(judged(ANSWERED, alive=1, still=10.0, longest=6.0)).evidence


def test_an_engine_that_hangs_for_longer_than_its_turns_are_looked_at():
    verdict = fired(judged(alive=12, still=300.0, still_pid=RANK))
    assert (verdict.subtype, verdict.processes) == ("stalled", (RANK,))


def test_computing_for_a_minute_without_any_result_is_stalled_too():
    verdict = fired(judged(ANSWERED, alive=3, still=61.0, seen={"host": tree(state="R", cpu=1.0)}))
    assert verdict.confidence <= 0.6


def test_an_engine_of_which_nothing_was_seen_before():
    assert fired(judged(basis="metrics", alive=2, still=3.5)).subtype == "stalled"
    assert judged(basis="metrics", alive=2, still=2.5) is None


def test_handlers_that_wait_for_others_are_not_stalled_and_a_line_that_stands_is():
    assert judged(alive=1, still=10.0) is None
    stands = line("answer", 0.9, activity="wait-lock", number=17, handler="event-loop", by_window=(20, 20))
    verdict = fired(judged(alive=1, still=10.0, lines=[stands]))
    assert verdict.where[0].line == 17 and "train.py:17" in verdict.title


@pytest.mark.parametrize(
    ("windows", "fields", "stalled"),
    [
        ((40, 40), {"activity": "wait-lock", "handler": "event-loop"}, True),
        ((0, 10), {"activity": "wait-lock", "handler": "event-loop"}, False),
        ((40, 40), {"activity": "sleep", "handler": "event-loop"}, False),
        ((40, 40), {"activity": "wait-network", "handler": "thread"}, False),
        ((40, 40), {"activity": "wait-lock"}, False),
        ((40, 40), {"parts": (("sleep", 0.9), ("wait", 0.1)), "handler": "request-loop"}, False),
    ],
    ids=["stands", "too short", "sleeps", "waits for others", "no handler", "sleeps again and again"],
)
def test_a_thread_that_stands_in_a_handler_has_a_request(windows, fields, stalled):
    stands = line("answer", 1.0, number=17, by_window=windows, **fields)
    seen = server(basis="stacks", lines=[stands], seen=IDLE_TREE)
    process = replace(seen.stacks.processes[0], by_window=(40, 40))
    seen = with_ledgers(replace(seen, stacks=replace(seen.stacks, processes=(process,))))
    judged = hang(seen)
    assert (judged is not None) == stalled
    if stalled:
        assert fired(judged).where[0].line == 17
        assert [verdict.id for verdict in shown(seen)] == ["hang"], "no other rule explains the line"


def test_a_stopped_process_is_named_at_once():
    verdict = fired(judged(seen={"host": tree(state="T", cpu=0.0)}))
    assert (verdict.subtype, verdict.confidence, verdict.processes) == ("stopped", 0.95, (RANK,))
    assert verdict.fixes[0].text == f"let it go on: kill -CONT {RANK}"


def test_of_a_stopped_process_nothing_else_is_said():
    """Its stacks show where it stands, whatever it does: a server or not."""
    stands = line("answer", 1.0, number=17, activity="sleep", by_window=(40, 40))
    seen = replace(server(basis="stacks", lines=[stands], seen={"host": tree(state="T", cpu=0.0)}), serving=None)
    assert [(verdict.id, verdict.title) for verdict in shown(seen)] == [
        ("hang", f"process {RANK} is stopped by a signal or a debugger")
    ]


def test_iterations_without_requests_show_a_stall_as_well():
    assert fired(judged((), turns(), alive=1, still=5.0)).subtype == "stalled"


@pytest.mark.parametrize(("still", "code"), [(4.0, 1), (0.1, 0)])
def test_the_probe_fails_only_on_a_stalled_server(capsys, still, code):
    judge, seen = Judge(), server(ANSWERED, alive=3, still=still, seen=IDLE_TREE)
    for _ in range(CONFIRM_TICKS):
        diagnosis = judge.judge(seen)
    seen = replace(seen, diagnosis=diagnosis)
    assert diagnose.conclude(seen, RANK, "text", None, "stalled") == code
