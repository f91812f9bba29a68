"""What the reader of a ring makes of a server's events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitop.protocol import events as at
from aitop.sources.ring.serving import ServingMaker

MS = 1_000_000
BEGAN, ENDED = 100 * MS, 130 * MS


PARTS = (5 * MS, 2 * MS, 20 * MS, 3 * MS)


def request(parts=PARTS, first=9 * MS, preempted=1, tokens=64, prompt=4, cpu=8 * MS, sent=11 * MS):
    return [
        (at.REQUEST_PARTS, *parts),
        (at.REQUEST_MORE, first, preempted, cpu, sent),
        (at.REQUEST, BEGAN, ENDED, tokens, prompt),
    ]


def turn(prefill=0, decode=4, kv=250_000, parts=(1 * MS, -1, 20 * MS, 2 * MS)):
    return [
        (at.ITERATION_PARTS, *parts),
        (at.ITERATION_TOKENS, 3 * MS, prefill, decode, 0),
        (at.ITERATION_STATE, 4, 1, kv, 0),
        (at.ITERATION, BEGAN, ENDED, 7 * MS, 4),
    ]


def test_a_request_has_its_parts_its_first_token_and_its_counts():
    (record,) = ServingMaker().read(request()).requests
    assert (record.end, record.seconds) == pytest.approx((0.130, 0.030))
    assert (record.queue, record.preprocess, record.model, record.postprocess) == pytest.approx(
        (0.005, 0.002, 0.020, 0.003)
    )
    assert (record.first_token, record.first_sent) == pytest.approx((0.009, 0.011))
    assert (record.tokens, record.prompt_tokens, record.preempted, record.cpu) == (64, 4, 1, pytest.approx(0.008))


def test_what_was_not_measured_of_a_request_is_none():
    (record,) = ServingMaker().read(request((-1, -1, -1, -1), -1, -1, -1, -1, 0, 0)).requests
    assert record.seconds == pytest.approx(0.030)
    assert {getattr(record, name) for name in record.__struct_fields__[2:]} == {None}


def test_parts_are_never_longer_than_their_request():
    (record,) = ServingMaker().read(request((25 * MS, 25 * MS, 25 * MS, 25 * MS))).requests
    assert (record.queue, record.preprocess, record.model, record.postprocess) == pytest.approx((0.025, 0.005, 0, 0))


@pytest.mark.parametrize(
    ("prefill", "decode", "kind"), [(4, 0, "prefill"), (0, 4, "decode"), (4, 1, "mixed"), (-1, -1, None), (0, 0, None)]
)
def test_a_turn_of_an_engine_says_what_it_computed(prefill, decode, kind):
    (record,) = ServingMaker().read(turn(prefill, decode)).iterations
    assert record.kind == kind
    assert (record.schedule, record.model, record.sample, record.output) == pytest.approx((0.001, 0.02, 0.002, 0.003))
    assert record.prepare is None and record.idle == pytest.approx(0.007)
    assert (record.requests, record.running, record.waiting, record.kv_used) == (4, 4, 1, 0.25)


def test_a_request_of_which_a_part_is_missing_is_dropped_and_the_next_one_is_read():
    for missing in range(2):
        events = [event for number, event in enumerate(request()) if number != missing]
        assert len(ServingMaker().read([*events, *request()]).requests) == 1
    maker = ServingMaker()
    assert maker.read(request()[:1]).requests == () and len(maker.read(request()[1:]).requests) == 1


def test_pauses_are_those_of_a_process_that_serves():
    maker = ServingMaker()
    collected, compiled = (at.COLLECT, BEGAN, ENDED, 0, 0), (at.COMPILE, BEGAN, ENDED, 0, 0)
    assert maker.read([collected]).pauses == (), "of a training run, steps have them"
    assert [pause.kind for pause in maker.read([*request(), collected, compiled]).pauses] == ["collect", "compile"]
    assert [pause.seconds for pause in maker.read([collected]).pauses] == pytest.approx([0.030])


word = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 10**10)


@given(st.lists(st.tuples(st.sampled_from((*at.SERVING, at.COLLECT)), word, word, word, word), max_size=60))
def test_whatever_the_events_say_times_and_counts_make_sense(events):
    served = ServingMaker().read(events)
    for record in served.requests:
        parts = (record.queue, record.preprocess, record.model, record.postprocess)
        assert sum(part or 0.0 for part in parts) <= record.seconds * (1 + 1e-9)
    for turn in served.iterations:
        assert turn.kv_used is None or 0 <= turn.kv_used <= 1
        assert all(count is None or count >= 0 for count in (turn.requests, turn.prefill_tokens, turn.waiting))
