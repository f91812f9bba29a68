"""A recording as a feed: the same events through the same engine, at any speed."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from aitop.engine.core import Engine
from aitop.engine.feed import Publish, own_failure
from aitop.model.event import Event
from aitop.model.snapshot import Target, Tick


class ReplayFeed:
    """Plays events: `speed` 1 keeps the recorded pace, 10 is ten times as fast, None does not wait at all."""

    live = False

    def __init__(self, target: Target, events: Iterable[Event], speed: float | None = 1.0) -> None:
        self._target = target
        self._events = events
        self._engine = Engine(target)
        self._speed = speed
        self._stopping = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._thread: threading.Thread | None = None
        self._last: Tick | None = None
        self.finished = threading.Event()

    def start(self, publish: Publish) -> None:
        self._thread = threading.Thread(target=self._play, args=(publish,), name="aitop-replay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._running.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)

    def pause(self) -> None:
        """Hold the next tick back."""
        self._running.clear()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._running.set()

    def _play(self, publish: Publish) -> None:
        try:
            self._play_all(publish)
        except Exception as error:
            last = self._last or Tick(time=0.0, wall=0.0)
            publish(own_failure(self._target, error, time=last.time, wall=last.wall))
        finally:
            self.finished.set()

    def _play_all(self, publish: Publish) -> None:
        for event in self._events:
            if self._stopping.is_set():
                break
            if isinstance(event, Tick):
                self._running.wait()
                if self._last is not None and self._speed:
                    self._stopping.wait(max(0.0, event.time - self._last.time) / self._speed)
                self._last = event
            snapshot = self._engine.handle(event)
            if snapshot is not None and not self._stopping.is_set():
                publish(snapshot)
