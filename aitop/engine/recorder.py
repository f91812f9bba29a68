"""Hands a run's events on to a recording, which may begin and end at any moment of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from aitop.engine.feed import EventSink
from aitop.model.event import Event
from aitop.model.host import HostSample
from aitop.model.snapshot import GrowthSites, Target
from aitop.model.source import SourceStatus
from aitop.model.steps import HookSample

# Above this many standing events, those of processes that are gone are dropped.
MOST_STANDING = 32


class OpenRecording(EventSink, Protocol):
    """A recording being written. `failed` says in words why it has stopped; `written` is its size so far in bytes."""

    path: Path
    failed: str | None

    @property
    def written(self) -> int | None: ...


class Recorder:
    """The sink of a live feed. `recording` is the one being written, or None; `made` are all recordings so far.

    Events that stay valid until they are replaced (`_standing`: source states, target, growth sites, hook facts) are
    kept, and a recording that begins later starts with them. `open_recording(path, new)` raises an error whose text
    says why a file cannot be written, or, with `new`, that there is one already.
    """

    def __init__(self, open_recording: Callable[[Path, bool], OpenRecording], path: Path | None = None) -> None:
        self._open = open_recording
        self.recording = open_recording(path, False) if path is not None else None
        self.made: list[OpenRecording] = [self.recording] if self.recording else []
        self._standing: dict[tuple[str, object], Event] = {}
        self._time = 0.0
        # Written by the feed's thread; begun and ended by the screen's.
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        """Take one event, whether a recording is being written or not."""
        with self._lock:
            self._time = event.time
            if isinstance(event, SourceStatus):
                self._standing["source", event.source] = event
            elif isinstance(event, (Target, GrowthSites)):
                self._standing[type(event).__name__, None] = event
            elif isinstance(event, HookSample) and event.facts is not None:
                self._standing["hook", event.pid] = HookSample(
                    time=event.time, pid=event.pid, facts=event.facts, allocators=event.allocators
                )
            elif isinstance(event, HostSample) and len(self._standing) > MOST_STANDING:
                alive = {process.pid for process in event.processes}
                self._standing = {
                    key: event for key, event in self._standing.items() if key[0] != "hook" or key[1] in alive
                }
            if self.recording is not None:
                self.recording.write(event)

    def begin(self, path: Path) -> OpenRecording:
        """Record to a new file from now on; a recording that is under way ends."""
        recording = self._open(path, True)
        # Under one lock: each event comes into one of the two.
        with self._lock:
            before, self.recording = self.recording, recording
            if before is not None:
                before.close()
            for event in self._standing.values():
                recording.write(msgspec.structs.replace(event, time=self._time))
            self.made.append(recording)
        return recording

    def end(self) -> OpenRecording | None:
        """Close the recording and return it; None if there was none."""
        with self._lock:
            recording, self.recording = self.recording, None
            if recording is not None:
                recording.close()
        return recording

    def close(self) -> None:
        """The feed has ended."""
        self.end()
