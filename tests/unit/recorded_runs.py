"""The recordings of real runs in tests/recordings, played through the engine once for all tests of a process."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from aitop.engine.core import Engine
from aitop.engine.replay import last_snapshot
from aitop.model.snapshot import Snapshot, Tick
from aitop.sources.replay import Recording

RECORDINGS = Path(__file__).parents[1] / "recordings"
SLOW_LOADER = RECORDINGS / "slow-loader.jsonl.gz"


def recording(name: str) -> Recording:
    """The recording of this name, such as "hang"."""
    return Recording(RECORDINGS / f"{name}.jsonl.gz")


@functools.cache
def end_of_recording(name: str) -> Snapshot:
    """The Snapshot at the end of a recording, as `aitop replay --format json` sees it."""
    snapshot = last_snapshot(recording(name))
    assert snapshot is not None
    return snapshot


@functools.cache
def snapshots_of(name: str, every: int = 1) -> tuple[Snapshot, ...]:
    """All that `played` yields for the recording of this name."""
    return tuple(played(recording(name), every))


def played(run: Recording, every: int = 1) -> Iterator[Snapshot]:
    """Plays a recording and yields the Snapshot of each tick, or of each third one where `every` is 3."""
    engine, ticks = Engine(run.header.target), 0
    for event in run.events():
        ticks += isinstance(event, Tick)
        snapshot = engine.handle(event, judged=ticks % every == 0)
        if snapshot is not None:
            yield snapshot
