"""Makes step records of a hook's events. Impossible values are clamped or left out, and nothing raises."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from aitop.model.steps import StepRecord
from aitop.protocol import events as at
from aitop.protocol.events import NOT_MEASURED
from aitop.sources.ring.parts import COUNTS, MOST_COUNTED, NS, PHASES, WATCHED, Made, Parts, count_of, seconds_of
from aitop.sources.ring.steps import Event, EventReader

LONGEST_STEP_NS = 10**15
MOST_FORWARDS = 10**6
# Steps wait for their times on the device, which come when the device is done with them.
MOST_WAITING = 512
LONGEST_WAIT_NS = 30_000_000_000
MOST_DEVICE_TIMES = 1024

_UNKNOWN = (NOT_MEASURED,) * 4


class StepMaker:
    """Makes the steps of one process."""

    def __init__(self) -> None:
        self._steps = EventReader()
        self._before = 0
        self._until_now: int | None = None
        self._waiting: deque[Made] = deque()
        self._begun: dict[int, tuple[int, ...]] = {}
        self._device: dict[int, tuple[int, ...]] = {}

    def join_late(self, steps: int, trains: bool) -> None:
        """Set, before the first events, how many steps the run will have made after them, and whether it trains."""
        self._until_now = steps
        self._steps.training = trains

    def gap(self) -> None:
        """Note that events are missing here: the step they belong to is not reported."""
        self._steps.begin(0)

    def read(self, events: Sequence[Event], watches: Sequence[str] = ()) -> list[StepRecord]:
        """Return the steps that are finished with these events, in order. What is not in `watches` is None in them."""
        newest = 0
        for event in events:
            if event[0] in at.UNTIMED:
                self._timed(*event)
            elif event[2] > newest:
                newest = event[2]
        self._steps.read(events)
        made, self._steps.made = self._steps.made, []
        if self._until_now is not None:
            self._before, self._until_now = max(0, self._until_now - self._steps.index), None
        self._waiting.extend(made)
        records: list[StepRecord] = []
        # By their parts, the records that counted steps repeat: there may be thousands a second of them.
        models: dict[int, StepRecord] = {}
        plain = _record(Made(0, "infer", 0, 0, Parts(forwards=1)), 0, _UNKNOWN, watches)
        while self._waiting:
            first = self._waiting[0]
            times = self._times(first)
            if times is None:
                if len(self._waiting) <= MOST_WAITING and newest - first.end <= LONGEST_WAIT_NS:
                    break
                times = _UNKNOWN
            self._waiting.popleft()
            model = models.get(id(first.parts)) if first.estimated else None
            if model is not None:
                end, seconds = first.end * NS, first.length * NS
                records.append(replace(model, index=self._before + first.number, end=end, seconds=seconds))
                continue
            if first.plain and plain is not None:
                record = _plain_pass(first, self._before, plain)
            else:
                record = _record(first, self._before, times, watches)
            if record is not None:
                records.append(record)
                if first.estimated:
                    models[id(first.parts)] = record
        return records

    def _timed(self, kind: int, number: int, first: int, second: int, third: int) -> None:
        """Take times on the device: forward, backward and optimizer, then, in an event of its own, the idle rest."""
        if kind == at.DEVICE:
            self._begun[number] = (first, second, third)
            _bound(self._begun)
        elif number in self._begun:
            self._device[number] = (*self._begun.pop(number), first)
            _bound(self._device)

    def _times(self, made: Made) -> tuple[int, ...] | None:
        """Return the step's times on the device, None where they are still to come."""
        if made.timing is None:
            return _UNKNOWN
        parts = [self._device.get(number) for number in made.timing]
        if not all(parts):
            return None
        for number in made.timing:
            self._device.pop(number, None)
        known = [part for part in parts if part]
        if any(value < 0 for part in known for value in part):
            return _UNKNOWN
        return tuple(sum(values) for values in zip(*known, strict=True))


def _bound(times: dict[int, tuple[int, ...]]) -> None:
    while len(times) > MOST_DEVICE_TIMES:
        del times[next(iter(times))]


def _plain_pass(made: Made, before: int, model: StepRecord) -> StepRecord | None:
    """Return what `_record` returns for a forward of which nothing else is known. `model` is the record of one."""
    length, parts = made.length, made.parts
    if not 0 <= length <= LONGEST_STEP_NS:
        return None
    return replace(
        model,
        index=before + made.number,
        end=made.end * NS,
        seconds=length * NS,
        forward=_within(parts.forward, length),
        samples=count_of(parts.samples),
        tokens=count_of(parts.tokens),
    )


def _record(made: Made, before: int, device: tuple[int, ...], watches: Sequence[str]) -> StepRecord | None:
    """Return the record of a step, None where it makes no sense."""
    length, parts = made.length, made.parts
    if not 0 <= length <= LONGEST_STEP_NS:
        return None
    values: dict[str, Any] = {name: _within(getattr(parts, name), length) for name in PHASES}
    for name in (name for watch, names in WATCHED.items() if watch in watches for name in names):
        value = getattr(parts, name)
        values[name] = count_of(value) if name in COUNTS else _within(value, length)
    # The device may still be busy with a step whose host side was short.
    for name, value in zip(("forward", "backward", "optimizer", "idle"), device, strict=True):
        values[f"device_{name}"] = seconds_of(value, LONGEST_STEP_NS)
    return StepRecord(
        index=before + made.number,
        end=made.end * NS,
        seconds=length * NS,
        kind=made.kind,
        cpu=seconds_of(made.cpu, length),
        forwards=min(parts.forwards, MOST_FORWARDS),
        backwards=min(parts.backwards, MOST_FORWARDS),
        no_grad=_within(parts.no_grad, length),
        no_grad_forwards=min(parts.no_grad_forwards, MOST_FORWARDS),
        no_grad_samples=min(parts.no_grad_samples, MOST_COUNTED),
        evaluation_forwards=min(parts.evaluation_forwards, MOST_FORWARDS),
        evaluation_samples=min(parts.evaluation_samples, MOST_COUNTED),
        samples=count_of(parts.samples),
        queue_ready=count_of(parts.queue_ready),
        collective_calls=tuple(_within(call, length) for call in parts.calls),
        tokens=count_of(parts.tokens),
        tokens_again=count_of(parts.tokens_again),
        others={key: _within(value, length) for key, value in parts.others.items()},
        estimated=made.estimated,
        **values,
    )


def _within(value: int, length: int) -> float:
    return min(max(value, 0), length) * NS
