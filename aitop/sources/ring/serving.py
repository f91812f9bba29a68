"""Turns a hook's events into requests, iterations of an engine and pauses. Events that make no sense are dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aitop.model.serving import IterationKind, IterationRecord, Pause, RequestRecord
from aitop.protocol import events as at
from aitop.sources.ring.parts import NS, count_of, seconds_of
from aitop.sources.ring.steps import Event

LONGEST_NS = 10**15
MILLION = 1_000_000
# Events that hold more figures of a request or an iteration, in the order in which they are noted before it.
BEFORE = {
    at.REQUEST: (at.REQUEST_PARTS, at.REQUEST_MORE),
    at.ITERATION: (at.ITERATION_PARTS, at.ITERATION_TOKENS, at.ITERATION_STATE),
}


class ServingRecords(NamedTuple):
    """What a process that serves did, each the oldest first."""

    requests: tuple[RequestRecord, ...] = ()
    iterations: tuple[IterationRecord, ...] = ()
    pauses: tuple[Pause, ...] = ()


class ServingMaker:
    """Reads the events of one process in order. It reports pauses once it has seen the process serve."""

    def __init__(self) -> None:
        self._serves = False
        self._before: list[Event] = []

    def read(self, events: Iterable[Event]) -> ServingRecords:
        """Return the requests, iterations and pauses in these events."""
        requests: list[RequestRecord] = []
        iterations: list[IterationRecord] = []
        pauses: list[Pause] = []
        for event in events:
            kind = event[0]
            if kind in at.SERVING and kind in at.UNTIMED:
                self._before = [*self._before[-2:], event]
                continue
            before, self._before = self._before, []
            if kind in BEFORE:
                details = before[-len(BEFORE[kind]) :]
                if tuple(one[0] for one in details) != BEFORE[kind] or not 0 <= event[2] - event[1] <= LONGEST_NS:
                    # Some of its events are missing: the reader came late, or events were lost.
                    continue
                self._serves = True
                if kind == at.REQUEST:
                    requests.append(_request(event, *details))
                else:
                    iterations.append(_iteration(event, *details))
            elif kind in (at.COLLECT, at.COMPILE):
                end, seconds = event[2] * NS, (event[2] - event[1]) * NS
                pauses.append(Pause(end=end, seconds=seconds, kind="collect" if kind == at.COLLECT else "compile"))
        return ServingRecords(tuple(requests), tuple(iterations), tuple(pauses) if self._serves else ())


def _request(event: Event, parts: Event, more: Event) -> RequestRecord:
    _, start, end, tokens, prompt_tokens = event
    length = end - start
    queue, preprocess, model, postprocess = _parts(parts[1:], length)
    return RequestRecord(
        end=end * NS,
        seconds=length * NS,
        queue=queue,
        preprocess=preprocess,
        model=model,
        postprocess=postprocess,
        first_token=seconds_of(more[1], length),
        first_sent=seconds_of(more[4] or at.NOT_MEASURED, length),
        prompt_tokens=count_of(prompt_tokens),
        tokens=count_of(tokens),
        preempted=count_of(more[2]),
        cpu=seconds_of(more[3] or at.NOT_MEASURED, length),
    )


def _iteration(event: Event, parts: Event, tokens: Event, state: Event) -> IterationRecord:
    _, start, end, idle, requests = event
    length = end - start
    schedule, prepare, model, sample, output = _parts((*parts[1:], tokens[1]), length)
    prefill, decode = count_of(tokens[2]), count_of(tokens[3])
    return IterationRecord(
        end=end * NS,
        seconds=length * NS,
        kind=_kind(prefill, decode),
        idle=seconds_of(idle, LONGEST_NS),
        schedule=schedule,
        prepare=prepare,
        model=model,
        sample=sample,
        output=output,
        requests=count_of(requests),
        prefill_tokens=prefill,
        decode_tokens=decode,
        running=count_of(state[1]),
        waiting=count_of(state[2]),
        kv_used=state[3] / MILLION if 0 <= state[3] <= MILLION else None,
        preempted=count_of(tokens[4]),
    )


def _parts(lengths: Sequence[int], whole: int) -> list[float | None]:
    """Return these parts in seconds, None for those not measured; together they are never longer than the whole."""
    parts: list[float | None] = []
    for length in lengths:
        part = min(length, whole)
        if part >= 0:
            whole -= part
        parts.append(None if part < 0 else part * NS)
    return parts


def _kind(prefill: int | None, decode: int | None) -> IterationKind | None:
    if prefill is None or decode is None or not prefill + decode:
        return None
    return "mixed" if prefill and decode else "prefill" if prefill else "decode"
