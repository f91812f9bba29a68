"""A recording as a feed: the same events through the same engine, at any speed and from any place."""

from __future__ import annotations

import threading
import time

from aitop.engine.core import Engine
from aitop.engine.feed import Publish, ReplayPosition, own_failure
from aitop.engine.history import History
from aitop.engine.outline import Outline, lasting
from aitop.model.snapshot import Snapshot, Tick
from aitop.sources.replay import Recording

BEHIND_SECONDS = 1.0
# After a seek, only the last ticks before the place are judged: no verdict needs more to appear or to go.
JUDGED_TICKS = 20


def last_snapshot(recording: Recording) -> Snapshot | None:
    """The Snapshot at the end of a recording, None where it ends before its first tick."""
    ticks = sum(1 for _ in recording.events().ticks())
    engine, snapshot, at = Engine(recording.header.target), None, 0
    for event in recording.events():
        at += isinstance(event, Tick)
        snapshot = engine.handle(event, judged=at > ticks - JUDGED_TICKS) or snapshot
    return snapshot


class ReplayFeed:
    """Plays a recording: `speed` 1 keeps its pace, 10 is ten times as fast, None does not wait at all.

    A seek starts where the replay stands, at a bookmark, or at the beginning, and handles every event up to the wanted
    place without waiting.
    """

    live = False

    def __init__(self, recording: Recording, speed: float | None = 1.0) -> None:
        self._recording = recording
        self._target = recording.header.target
        self._outline = Outline(recording)
        self._stopping = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self.finished = threading.Event()
        # What was asked for. `_wanted` is the number of the tick to go to, None for none.
        self._speed = speed
        self._playing = True
        self._wanted: int | None = None
        # Where it stands: `_at` ticks have been taken, the last of them `_last`; `_pending` comes next.
        self._at = 0
        self._first: float | None = None
        self._last: Tick | None = None
        self._pending: Tick | None = None
        self._ended = False
        self._shown = False
        self._due = 0.0
        self._way: tuple[int, int] | None = None

    def start(self, publish: Publish) -> None:
        self._thread = threading.Thread(target=self._run, args=(publish,), name="aitop-replay", daemon=True)
        self._thread.start()
        if self._speed is not None:
            self._outline.start()

    def stop(self) -> None:
        self._outline.stop()
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)

    # Called from any thread

    def wait_until_measured(self, seconds: float) -> bool:
        """Wait until the duration is known and seeks are possible. Returns whether it is, within so many seconds."""
        return self._outline.measured.wait(seconds)

    def wait_until_outlined(self, seconds: float) -> bool:
        """Wait until all marks are known. Returns whether they are, within so many seconds."""
        return self._outline.wait(seconds)

    def position(self) -> ReplayPosition:
        """The present position."""
        times, way = self._outline.times, self._way
        last, first = self._last, self._first
        return ReplayPosition(
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
        self._change(playing=True, wanted=1 if self._ended else None)

    def set_speed(self, speed: float) -> None:
        """Play `speed` times as fast as it was recorded from now on."""
        self._speed = speed
        self._change()

    def step(self, ticks: int) -> None:
        """Pause `ticks` further (back, if negative) than the present tick, or than the one that a seek is going to."""
        self._change(playing=False, wanted=self._within(self._going_to() + ticks))

    def seek_by(self, seconds: float) -> None:
        """Go on by `seconds` (back, if negative)."""
        times = self._outline.times
        if times:
            self.seek_to(times[self._within(self._going_to()) - 1] - times[0] + seconds)

    def seek_to(self, seconds: float) -> None:
        """Go to the tick `seconds` after the first one. Nothing happens before the duration is known."""
        if self._outline.measured.is_set() and self._outline.times:
            self._change(wanted=self._outline.tick_at(seconds))

    def _going_to(self) -> int:
        return self._at if self._wanted is None else self._wanted

    def _within(self, tick: int) -> int:
        most = len(self._outline.times) if self._outline.measured.is_set() else tick
        return max(1, min(tick, most))

    def _change(self, *, playing: bool | None = None, wanted: int | None = None) -> None:
        """Set what is given, and wake the thread that plays."""
        with self._wake:
            self._playing = self._playing if playing is None else playing
            self._wanted = self._wanted if wanted is None else wanted
            self._due = 0.0
            self._wake.notify_all()

    # The thread that plays

    def _run(self, publish: Publish) -> None:
        try:
            self._rewind()
            while not self._stopping:
                self._once(publish)
        except Exception as error:
            last = self._last or Tick(time=0.0, wall=0.0)
            publish(own_failure(self._target, error, time=last.time, wall=last.wall))
        finally:
            self.finished.set()

    def _once(self, publish: Publish) -> None:
        """Go to the place that is wanted, else play a tick when it is due, else wait for a request."""
        wanted = self._wanted
        if wanted is not None:
            self._outline.free.clear()
            self._go_to(wanted, publish)
            self._outline.free.set()
        elif self._ended or not self._playing:
            with self._wake:
                if self._wanted is None and (self._ended or not self._playing) and not self._stopping:
                    self._wake.wait()
        elif self._ahead() is None:
            self._ended = True
            self.finished.set()
        elif self._is_due():
            self._take_tick(publish)

    def _is_due(self) -> bool:
        """Wait until the next tick is due; False where something else came first."""
        tick = self._pending
        with self._wake:
            # What was asked for before the lock was taken wakes nobody.
            if self._asked_otherwise():
                return False
            speed = self._speed
            if tick is None or self._last is None or not speed:
                return True
            now = time.monotonic()
            if self._due == 0.0 or now > self._due + BEHIND_SECONDS:
                self._due = now + max(0.0, tick.time - self._last.time) / speed
            if self._due > now and self._wake.wait(self._due - now):
                return False
        return not self._asked_otherwise()

    def _asked_otherwise(self) -> bool:
        """Whether something else is asked for than to play the next tick."""
        return not self._playing or self._wanted is not None or self._stopping

    def _take_tick(self, publish: Publish | None, *, judged: bool = True) -> None:
        """Take the tick that is ahead, and publish its Snapshot where `publish` is given."""
        tick, self._pending = self._pending, None
        if tick is None:
            return
        snapshot = self._engine.handle(tick, judged=judged)
        self._at += 1
        if self._outline.measured.is_set():
            self._outline.passed(self._at, self._events.lines, self._history)
        self._first = tick.time if self._first is None else self._first
        self._last = tick
        self._shown = publish is not None
        if publish is not None and snapshot is not None and not self._stopping:
            publish(snapshot)
        following = self._ahead()
        if following is not None and self._speed and self._due:
            self._due += max(0.0, following.time - tick.time) / self._speed

    def _ahead(self) -> Tick | None:
        """The next tick, with all events before it taken; None at the end."""
        while self._pending is None and not self._stopping:
            event = next(self._events, None)
            if event is None:
                return None
            if isinstance(event, Tick):
                self._pending = event
            else:
                self._engine.handle(event)
        return self._pending

    def _go_to(self, wanted: int, publish: Publish) -> None:
        """Go to a tick and show it, unless another place is asked for meanwhile."""
        # Another place may have been asked for while this one was on its way.
        if wanted < self._at or (wanted == self._at and not self._shown):
            self._rewind()
        bookmark = self._outline.bookmark_for(wanted)
        if bookmark is not None and bookmark.tick > self._at:
            self._rewind(lasting(bookmark.history))
            self._events.skip(bookmark.lines)
            self._at, self._first = bookmark.tick, self._outline.times[0]
        self._way = (self._at, wanted)
        while self._at < wanted and self._wanted == wanted and self._ahead() is not None:
            left = wanted - self._at
            self._take_tick(publish if left == 1 else None, judged=left <= JUDGED_TICKS)
        with self._wake:
            if self._wanted == wanted:
                self._wanted = None
                self._ended = self._pending is None
            self._due = 0.0
        self._way = None

    def _rewind(self, history: History | None = None) -> None:
        self._events = self._recording.events()
        self._history = history or History(self._target)
        self._engine = Engine(self._target, self._history)
        self._pending = self._last = self._first = None
        self._at = 0
        self._ended = False
