"""The outline of a recording: the times of its ticks, marks where verdicts change, and bookmarks for jumps.

For a jump, a replay starts at a bookmark instead of at the beginning, and handles the events from there on. A bookmark
holds only that part of the History which is kept for good. What a History forgets after KEEP_SECONDS has to be read
again, so the replay starts at the last bookmark at least that long before the wanted place. Handling all events of an
hour costs 3 to 6 s of CPU, skipping their lines 0.2 to 0.5 s.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from aitop.engine.core import Engine
from aitop.engine.feed import ReplayMark
from aitop.engine.history import KEEP_SECONDS, KEEP_STEPS, History, RecentSamples
from aitop.model.snapshot import Series, Snapshot
from aitop.sources.replay import Recording
from aitop.stacks.view import MOST_WINDOWS, StackView

BOOKMARK_TICKS, MOST_BOOKMARKS = 60, 40
SLACK_SECONDS = 5.0
MOST_MARKS = 500


class Bookmark(NamedTuple):
    """A place in a recording: after `tick` ticks and `lines` lines, with the lasting part of the `history` there."""

    tick: int
    lines: int
    history: History


class Outline:
    """Reads a recording in a thread of its own: first only its ticks, then everything, at half speed.

    Any thread may use it meanwhile; `times` is complete once `measured` is set. Of a recording that cannot be read to
    its end it has what could be read. It pauses while `free` is not set: a replay clears that during a jump, as two
    busy threads would take several times as long.
    """

    def __init__(self, recording: Recording) -> None:
        self.times: list[float] = []
        self.marks: tuple[ReplayMark, ...] = ()
        self.measured = threading.Event()
        self._bookmarks: dict[int, Bookmark] = {}
        self._apart = BOOKMARK_TICKS
        self._recording = recording
        self.free = threading.Event()
        self.free.set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aitop-outline", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no further."""
        self._stopping.set()
        self.free.set()

    def wait(self, seconds: float) -> bool:
        """Wait until everything was read. Returns whether it was, within so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def passed(self, tick: int, lines: int, history: History) -> None:
        """Add a bookmark every few ticks: the lines read and the history known after `tick`. From any thread."""
        if tick % self._apart == 0 and tick not in self._bookmarks:
            self._bookmarks[tick] = Bookmark(tick, lines, lasting(history))

    def bookmark_for(self, tick: int) -> Bookmark | None:
        """The latest bookmark early enough for a complete history at `tick`; None where only the beginning is."""
        if not 0 < tick <= len(self.times):
            return None
        latest = self.times[tick - 1] - KEEP_SECONDS - SLACK_SECONDS
        # A recording that is still being written has more ticks than when its times were read.
        known = [mark for mark in list(self._bookmarks.values()) if mark.tick <= len(self.times)]
        early = (mark for mark in known if self.times[mark.tick - 1] <= latest)
        return max(early, key=lambda mark: mark.tick, default=None)

    def tick_at(self, seconds: float) -> int:
        """The number (from 1) of the first tick at least `seconds` after the first one; else of the last tick."""
        wanted = self.times[0] + seconds if self.times else 0.0
        return max(1, min(len(self.times), bisect_left(self.times, wanted) + 1))

    def _run(self) -> None:
        try:
            times = []
            for tick in self._recording.events().ticks():
                if self._stopping.is_set():
                    return
                times.append(tick.time)
            self.times = times
            self._apart = max(BOOKMARK_TICKS, len(times) // MOST_BOOKMARKS)
            self.measured.set()
            self._judge_all()
        except Exception:  # the player meets the same error and reports it
            return
        finally:
            self.measured.set()

    def _judge_all(self) -> None:
        history = History(self._recording.header.target)
        engine, before, ticks = Engine(history.target, history), None, 0
        events = self._recording.events()
        for event in events:
            self.free.wait()
            started = time.monotonic()
            snapshot = engine.handle(event)
            if snapshot is None:
                continue
            ticks += 1
            self.passed(ticks, events.lines, history)
            new = (ReplayMark(at - self.times[0], words) for at, words in _worth_marking(before, snapshot))
            self.marks = tuple(sorted((*self.marks, *new)))[:MOST_MARKS]
            before = snapshot
            # Rest for as long as that took, so that the player and the screen come first.
            if self._stopping.wait(time.monotonic() - started):
                return


def lasting(history: History) -> History:
    """A copy of what is kept for good: without samples and windows, and without steps that are soon replaced."""
    kept: History = copied(
        replace(
            history,
            hosts=RecentSamples(),
            gpus=RecentSamples(),
            windows=deque(maxlen=MOST_WINDOWS),
            # Of a server that does not answer, the last looks count for as long as it lives.
            servers={pid: deque(list(looks)[-2:], maxlen=looks.maxlen) for pid, looks in history.servers.items()},
            stacks=StackView(),
        )
    )
    for hook in kept.hooks.values():
        while len(hook.allocators) > 1:
            hook.allocators.popleft()
        if len(hook.steps) == KEEP_STEPS and hook.steps[-1].end - hook.steps[0].end < KEEP_SECONDS:
            hook.steps.clear()
            hook.spread.clear()
    return kept


def copied(value: Any) -> Any:
    """A copy that later events do not change: new containers and dataclasses with the same records in them."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: copied(getattr(value, each.name)) for each in fields(value)})
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value.copy() if isinstance(value, deque) else value


def _worth_marking(before: Snapshot | None, now: Snapshot) -> Iterator[tuple[float, str]]:
    """When checkpoints were written since `before`, and whether the first verdict changed or the target ended."""
    if before is None:
        return
    none = Series()
    saves, seen = (each.series.get("step_save", none) for each in (now, before))
    # A second is summed up only when a later step has ended, which may be many ticks later.
    for at, seconds in zip(saves.times, saves.values, strict=True):
        if seconds and at > (seen.times or (0.0,))[-1]:
            yield at, "checkpoint"
    first, was = (each.diagnosis.primary.id if each.diagnosis.primary else None for each in (now, before))
    if now.target.ended and not before.target.ended:
        yield now.time, "target ended"
    elif first != was:
        yield now.time, first or "no verdict"
