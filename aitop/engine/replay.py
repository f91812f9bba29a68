"""A recording as a feed: the same events through the same engine, at any speed and from any place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from aitop.engine.bookmark import Bookmark, lasting
from aitop.engine.core import Engine
from aitop.engine.feed import Publish, own_failure
from aitop.engine.outline import Outline
from aitop.engine.position import Position
from aitop.model.event import Event
from aitop.model.snapshot import Target, Tick

BEHIND_SECONDS = 1.0
MOST_JUDGED = 40
LEAST_JUDGED = 12
"""Ticks on the way to a place that are judged where nothing is remembered of them; where they are many more, those
that the judge remembers for sure, until the outline knows better."""
LOOK_SECONDS = 0.5


class ReplayFeed:
    """Plays events: `speed` 1 keeps the recorded pace, 10 is ten times as fast, None does not wait at all.

    `open_events` gives the events from the first one on, each time it is called. Going to another place takes the way
    of playing, only without waiting, so what is shown there is what playing shows there. What the judge remembered
    on the way is known from the outline, so that only the last ticks of the way have to be judged, and what is known
    before the last minutes, so that only these have to be read. Where the outline does not reach yet, a place is shown
    as far as its last ticks tell, and once more when it does.
    """

    live = False

    def __init__(self, target: Target, open_events: Callable[[], Iterable[Event]], speed: float | None = 1.0) -> None:
        self._target = target
        self._events_from_start = open_events
        self._engine = Engine(target)
        self._events: Iterator[Event] = iter(())
        self._pending: Tick | None = None
        self._last: Tick | None = None
        self._first: float | None = None
        self._at = 0
        self._due = 0.0
        self._speed = speed
        self._playing = True
        self._ended = False
        self._wanted: int | None = None
        self._way: tuple[int, int] | None = None
        self._rough = False
        # Whether the picture of the tick that it stands at was published.
        self._shown = False
        self._stopping = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._outline = Outline(target, self._open_events)
        self.finished = threading.Event()

    def start(self, publish: Publish) -> None:
        self._thread = threading.Thread(target=self._run, args=(publish,), name="aitop-replay", daemon=True)
        self._thread.start()
        if self._speed is not None:
            self._outline.start()

    def stop(self) -> None:
        self._outline.stop()
        self._change(stopping=True)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)

    # What whoever watches wants: from any thread, at once

    def position(self) -> Position:
        """Where it stands now."""
        times, way = self._outline.times, self._way
        last, first = self._last, self._first
        return Position(
            seconds=last.time - first if last is not None and first is not None else 0.0,
            duration=times[-1] - times[0] if self._outline.measured.is_set() and times else None,
            speed=self._speed,
            playing=self._playing and not self._ended,
            ended=self._ended,
            seeking=(self._at - way[0]) / (way[1] - way[0]) if way is not None and way[1] > way[0] else None,
            marks=self._outline.marks,
        )

    def pause(self) -> None:
        """Hold the next tick back."""
        self._change(playing=False)

    def resume(self) -> None:
        """Go on after `pause`; from the start where the end was reached."""
        self._change(playing=True, wanted=1 if self._ended else self._wanted)

    def set_speed(self, speed: float) -> None:
        """Play so many times as fast from now on."""
        self._change(speed=speed)

    def step(self, ticks: int) -> None:
        """Hold still, so many ticks further (or back, where negative) from where it stands or is going to."""
        self._change(playing=False, wanted=self._within(self._going_to() + ticks))

    def seek_by(self, seconds: float) -> None:
        """Go so many seconds on, or back."""
        if self._outline.times:
            place = self._outline.times[self._within(self._going_to()) - 1] - self._outline.times[0]
            self.seek_to(place + seconds)

    def seek_to(self, seconds: float) -> None:
        """Go to the first tick so many seconds after the first one. Nothing happens before the duration is known."""
        if self._outline.measured.is_set() and self._outline.times:
            self._change(wanted=self._outline.tick_at(seconds))

    def _going_to(self) -> int:
        return self._at if self._wanted is None else self._wanted

    def _within(self, tick: int) -> int:
        most = len(self._outline.times) if self._outline.measured.is_set() else tick
        return max(1, min(tick, most))

    def _change(self, **changes: float | bool | None) -> None:
        with self._wake:
            for name, value in changes.items():
                setattr(self, f"_{name}", value)
            self._due = 0.0
            self._wake.notify_all()

    def _open_events(self) -> Iterator[Event]:
        return iter(self._events_from_start())

    # The thread that plays

    def _run(self, publish: Publish) -> None:
        try:
            self._events = self._open_events()
            while not self._stopping:
                self._once(publish)
        except Exception as error:
            last = self._last or Tick(time=0.0, wall=0.0)
            publish(own_failure(self._target, error, time=last.time, wall=last.wall))
        finally:
            self.finished.set()

    def _once(self, publish: Publish) -> None:
        """Go where somebody wants to be, else play a tick when it is due, else wait to be asked."""
        wanted = self._wanted
        if wanted is not None:
            self._outline.give_way(True)
            self._go_to(wanted, publish)
            self._outline.give_way(False)
        elif self._ended or not self._playing:
            with self._wake:
                if self._wanted is None and (self._ended or not self._playing) and not self._stopping:
                    self._wake.wait(LOOK_SECONDS if self._rough else None)
                if self._wanted is None and self._rough and self._is_known(self._at):
                    self._wanted = self._at
        elif self._ahead() is None:
            self._ended = True
            self.finished.set()
        elif self._is_due():
            self._take_tick(publish)

    def _is_known(self, tick: int) -> bool:
        """Whether the outline remembers what was judged shortly before."""
        keyframe = self._outline.keyframe_before(tick)
        return tick - (keyframe.tick if keyframe else 0) <= MOST_JUDGED

    def _is_due(self) -> bool:
        """Wait until the next tick is due; False where something else came first."""
        tick, speed = self._pending, self._speed
        if tick is None or self._last is None or not speed:
            return True
        now = time.monotonic()
        with self._wake:
            if self._due == 0.0 or now > self._due + BEHIND_SECONDS:
                self._due = now + max(0.0, tick.time - self._last.time) / speed
            if self._due > now and self._wake.wait(self._due - now):
                return False
        return self._playing and self._wanted is None and not self._stopping

    def _take_tick(self, publish: Publish | None) -> None:
        """Take the tick that is ahead, and show it where it is to be published."""
        played, self._pending = self._pending, None
        if played is None:
            return
        if self._first is None:
            self._first = played.time
        snapshot = self._engine.handle(played)
        self._at += 1
        if self._rough:
            self._learn()
        self._last = played
        self._shown = publish is not None
        if publish is not None and snapshot is not None and not self._stopping:
            publish(snapshot)
        following = self._ahead()
        if following is not None and self._speed and self._due:
            self._due += max(0.0, following.time - played.time) / self._speed

    def _learn(self) -> None:
        """Remember what the outline remembers of this very tick, if it does."""
        keyframe = self._outline.keyframe_before(self._at + 1)
        if keyframe is not None and keyframe.tick == self._at:
            self._engine.recall(keyframe.memory)
            self._rough = False

    def _ahead(self) -> Tick | None:
        """The next tick, with all events before it taken; None at the end."""
        while self._pending is None and not self._stopping:
            event = next(self._events, None)
            if event is None:
                return None
            if isinstance(event, Tick):
                self._pending = event
            else:
                self._engine.note(event)
        return self._pending

    def _go_to(self, wanted: int, publish: Publish) -> None:
        """Stand at a tick and show it, unless another place is wanted meanwhile."""
        keyframe = self._outline.keyframe_before(wanted)
        known = self._is_known(wanted)
        # Another place may have been wanted on the way to one that lies further on.
        passed = wanted < self._at or (wanted == self._at and not self._shown)
        if passed or (self._rough and known):
            self._rewind()
        bookmark = self._outline.bookmark_before(wanted)
        if bookmark is not None and bookmark.number > self._at:
            self._open_at(bookmark)
        self._way = (self._at, wanted)
        judged_from = keyframe.tick if keyframe is not None and known else 0
        if wanted - max(judged_from, self._at) > MOST_JUDGED:
            self._rough, judged_from = True, wanted - LEAST_JUDGED
        if judged_from > self._at:
            while self._at < judged_from and self._ahead() is not None:
                self._pass_tick()
            if keyframe is not None and keyframe.tick == self._at:
                self._engine.recall(keyframe.memory)
                self._rough = False
        while self._at < wanted - 1 and self._wanted == wanted and self._ahead() is not None:
            self._take_tick(None)
        if self._wanted == wanted:
            if self._at < wanted and self._ahead() is not None:
                self._take_tick(publish)
            with self._wake:
                self._wanted = None if self._wanted == wanted else self._wanted
                self._due = 0.0
            self._ended = self._ahead() is None
        self._way = None

    def _open_at(self, bookmark: Bookmark) -> None:
        """Stand where a bookmark is, with all that is known there."""
        self._rewind()
        skip = getattr(self._events, "skip", None)
        if skip is not None:
            skip(bookmark.lines)
        else:
            for _ in range(bookmark.lines):
                next(self._events, None)
        self._engine = Engine(self._target, lasting(bookmark.history))
        self._at, self._last = bookmark.number, bookmark.tick
        self._first = self._outline.times[0]

    def _pass_tick(self) -> None:
        """Take the tick that is ahead without making a picture of it."""
        if self._pending is not None:
            self._first = self._pending.time if self._first is None else self._first
            self._engine.note(self._pending)
            self._shown = False
            self._last, self._pending = self._pending, None
            self._at += 1

    def _rewind(self) -> None:
        self._events = self._open_events()
        self._engine = Engine(self._target)
        self._pending = self._last = None
        self._at = 0
        self._ended = self._rough = False
