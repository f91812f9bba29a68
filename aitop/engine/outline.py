"""What there is in a recording: its ticks, where verdicts change, and what the judge remembered on the way."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from aitop.diagnosis.judge import Memory
from aitop.engine.bookmark import Bookmark, Bookmarks
from aitop.engine.core import Engine
from aitop.engine.position import Mark
from aitop.model.event import Event
from aitop.model.snapshot import Snapshot, Target, Tick

KEYFRAME_TICKS = 10
MOST_MARKS = 500

AnyEvent = TypeVar("AnyEvent", bound="Event")
OpenEvents = Callable[[], Iterator[Event]]


class Keyframe(NamedTuple):
    """What the judge remembered after so many ticks."""

    tick: int
    memory: Memory


class Outline:
    """Goes through a recording in a thread of its own: for the ticks, for bookmarks, and then slowly as a run.

    Everything may be read from any thread while it goes; `times` is complete once `measured` is set, bookmarks once
    `read` is. A recording that
    cannot be read to its end has an outline of what could be read.
    """

    def __init__(self, target: Target, open_events: OpenEvents) -> None:
        self.times: list[float] = []
        self.marks: tuple[Mark, ...] = ()
        self.measured = threading.Event()
        self._keyframes: list[Keyframe] = []
        self._bookmarks = Bookmarks(target)
        self.read = threading.Event()
        self._target = target
        self._open_events = open_events
        self._stopping = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._thread = threading.Thread(target=self._run, name="aitop-outline", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no further."""
        self._stopping.set()
        self._free.set()

    def give_way(self, wanted: bool) -> None:
        """Stand still while the player is in a hurry: two at once would take twice as long."""
        if wanted:
            self._free.clear()
        else:
            self._free.set()

    def keyframe_before(self, tick: int) -> Keyframe | None:
        """The last one with fewer ticks, None where there is none yet."""
        found = None
        # Keyframes come at equal distances: the wanted one is at its number, or is the last so far.
        if self._keyframes and tick > KEYFRAME_TICKS:
            found = self._keyframes[min(len(self._keyframes), (tick - 1) // KEYFRAME_TICKS) - 1]
        return found

    def bookmark_before(self, tick: int) -> Bookmark | None:
        """The last place from which a tick can be reached with all that is known there, None: only from the start."""
        return self._bookmarks.before(tick, self.times[tick - 1]) if 0 < tick <= len(self.times) else None

    def tick_at(self, seconds: float) -> int:
        """The number (from 1) of the first tick so many seconds after the first one, or of the last there is."""
        wanted = self.times[0] + seconds if self.times else 0.0
        return max(1, min(len(self.times), bisect_left(self.times, wanted) + 1))

    def _run(self) -> None:
        try:
            self.times = [tick.time for tick in self._ticks()]
            self.measured.set()
            events = self._open_events()
            for number, event in enumerate(self._held(events), 1):
                self._bookmarks.read(event, getattr(events, "lines", number))
            self.read.set()
            self._judge_all()
        except Exception:  # the player meets the same and tells of it
            return
        finally:
            self.measured.set()

    def _ticks(self) -> Iterator[Tick]:
        """All ticks: recordings find them without reading the rest."""
        events = self._open_events()
        if hasattr(events, "ticks"):
            yield from self._held(events.ticks())
            return
        for event in self._held(events):
            if isinstance(event, Tick):
                yield event

    def _held(self, events: Iterator[AnyEvent]) -> Iterator[AnyEvent]:
        """The same, standing still while the player is in a hurry; no more of them once it is to stop."""
        for event in events:
            self._free.wait()
            if self._stopping.is_set():
                return
            yield event

    def _judge_all(self) -> None:
        engine, before, ticks = Engine(self._target), None, 0
        for event in self._held(self._open_events()):
            started = time.monotonic()
            snapshot = engine.handle(event)
            if snapshot is None:
                continue
            ticks += 1
            if ticks % KEYFRAME_TICKS == 0:
                self._keyframes.append(Keyframe(ticks, engine.memory()))
            words = _worth_marking(before, snapshot)
            if words and len(self.marks) < MOST_MARKS:
                self.marks = (*self.marks, Mark(snapshot.time - self.times[0], words))
            before = snapshot
            # The player and the screen go first.
            self._stopping.wait(time.monotonic() - started)


def _worth_marking(before: Snapshot | None, now: Snapshot) -> str | None:
    """What is new at this tick: another first verdict, a checkpoint, the end of the target."""
    if before is None:
        return None
    if now.target.ended and not before.target.ended:
        return "target ended"
    first, was = (one.diagnosis.verdicts[0].id if one.diagnosis.verdicts else None for one in (now, before))
    if first != was:
        return first or "no verdict"
    saves = now.series.get("step_save")
    if saves is not None and saves.values and saves.values[-1] and saves.times[-1] > before.time:
        return "checkpoint"
    return None
