"""Places in a recording from which it can be read on, instead of from its start. Pure.

A bookmark holds what is known there for good; what a history forgets with time is read again from there on. So a
bookmark does for a place far enough behind it that all that was forgotten has come anew.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from aitop.engine.history import KEEP_STEPS, KEEP_WINDOWS, History, HookHistory
from aitop.engine.kept_samples import KEEP_SECONDS, KeptSamples
from aitop.engine.long_view import StepSeconds
from aitop.model.event import Event
from aitop.model.snapshot import Target, Tick
from aitop.model.stacks import StackWindow
from aitop.model.steps import HookSample

BOOKMARK_TICKS = 60
MOST_BOOKMARKS = 40
SLACK_SECONDS = 5.0


class Bookmark(NamedTuple):
    """`lines` of the recording lie before it; `windows` and `steps` (by process) were counted up to it."""

    tick: Tick
    number: int
    lines: int
    history: History
    windows: int
    steps: Mapping[int, int]


class Bookmarks:
    """Taken while a recording is read once. May be asked from another thread meanwhile."""

    def __init__(self, target: Target) -> None:
        self._history = History(target)
        self._windows = 0
        self._steps: Counter[int] = Counter()
        self._every = BOOKMARK_TICKS
        self._kept: list[Bookmark] = []

    def read(self, event: Event, lines: int) -> None:
        """Take the next event; `lines` have been read with it."""
        self._history.add(event)
        if isinstance(event, HookSample):
            self._steps[event.pid] += len(event.steps)
        elif isinstance(event, StackWindow):
            self._windows += 1
        elif isinstance(event, Tick) and self._history.tick_count % self._every == 0:
            self._keep(event, lines)

    def before(self, number: int, time: float) -> Bookmark | None:
        """The last one that does for the tick of this number and time, None where only the start does."""
        kept = self._kept
        known = [one for one in kept if one.number <= number]
        if not known:
            return None
        return next((one for one in reversed(known) if _does(one, known[-1], time)), None)

    def _keep(self, tick: Tick, lines: int) -> None:
        number = self._history.tick_count
        mark = Bookmark(tick, number, lines, lasting(self._history), self._windows, dict(self._steps))
        kept = [*self._kept, mark]
        if len(kept) > MOST_BOOKMARKS:
            self._every *= 2
            kept = [one for one in kept if one.number % self._every == 0]
        self._kept = kept


def _does(mark: Bookmark, newest: Bookmark, time: float) -> bool:
    """Whether all that the mark has forgotten has come anew by a time not before `newest`."""
    if mark.tick.time > time - KEEP_SECONDS - SLACK_SECONDS:
        return False
    if mark.windows and newest.windows - mark.windows < KEEP_WINDOWS:
        return False
    return all(
        hook.steps or newest.steps.get(pid, 0) - mark.steps.get(pid, 0) >= KEEP_STEPS or not mark.steps.get(pid)
        for pid, hook in mark.history.hooks.items()
    )


def lasting(history: History) -> History:
    """A copy without what goes by: samples, windows, and steps where they come so fast that they are soon replaced."""
    return replace(
        history,
        statuses=dict(history.statuses),
        was_ok=dict(history.was_ok),
        hosts=KeptSamples(),
        gpus=KeptSamples(),
        windows=deque(maxlen=KEEP_WINDOWS),
        hooks={pid: _lasting_hook(hook) for pid, hook in history.hooks.items()},
        allocators=deque(),
        numbers=dict(history.numbers),
        ticks=deque(history.ticks, maxlen=history.ticks.maxlen),
        newest=dict(history.newest),
    )


def _lasting_hook(hook: HookHistory) -> HookHistory:
    fast = len(hook.steps) == KEEP_STEPS and hook.steps[-1].end - hook.steps[0].end < KEEP_SECONDS
    return replace(
        hook,
        steps=deque(() if fast else hook.steps, maxlen=KEEP_STEPS),
        seconds=StepSeconds(deque(hook.seconds.done, maxlen=hook.seconds.done.maxlen), list(hook.seconds._open)),
        recompiles=deque(hook.recompiles, maxlen=hook.recompiles.maxlen),
    )
