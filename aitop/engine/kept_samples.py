"""Samples of the last minutes: all of the newest, and of the older ones as many as charts and trends can tell apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, Protocol, TypeVar

KEEP_SECONDS = 300.0
DENSE_SECONDS = 30.0
APART_SECONDS = 0.5


class Timed(Protocol):
    """What was seen at a time, in seconds."""

    @property
    def time(self) -> float: ...


SampleType = TypeVar("SampleType", bound=Timed)


@dataclass
class KeptSamples(Generic[SampleType]):
    """In the order in which they came; however often they come, their number is bounded by time.

    Of those older than `DENSE_SECONDS` the first of each `APART_SECONDS` stays: which ones those are depends on their
    times alone, so that a recording shows the same wherever its reading began.
    """

    _older: deque[SampleType] = field(default_factory=deque)
    _newest: deque[SampleType] = field(default_factory=deque)

    def append(self, sample: SampleType) -> None:
        """Take the newest one."""
        self._newest.append(sample)

    def forget(self, now: float) -> None:
        """Leave out what is too old, or too close to others for its age."""
        while self._newest and self._newest[0].time < now - DENSE_SECONDS:
            sample = self._newest.popleft()
            if not self._older or sample.time // APART_SECONDS != self._older[-1].time // APART_SECONDS:
                self._older.append(sample)
        while self._older and self._older[0].time < now - KEEP_SECONDS:
            self._older.popleft()

    @property
    def last(self) -> SampleType | None:
        """The newest one, None where there is none."""
        kept = self._newest or self._older
        return kept[-1] if kept else None

    def __len__(self) -> int:
        return len(self._older) + len(self._newest)

    def __iter__(self) -> Iterator[SampleType]:
        return chain(self._older, self._newest)

    def __reversed__(self) -> Iterator[SampleType]:
        return chain(reversed(self._newest), reversed(self._older))
