"""Real recordings with the damage that real runs bring: torn stacks, samples that were lost, figures not measured."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aitop.engine.core import Engine
from aitop.model.event import Event
from aitop.model.snapshot import Tick
from aitop.model.stacks import Frame, StackCount, StackWindow
from aitop.outputs.text import to_text
from aitop.sources.replay import Recording

RECORDINGS = Path(__file__).parents[1] / "recordings"
NAMES = ("hang", "healthy", "serve", "simulated-gpu", "slow-loader", "straggler")
HOOK = Frame("waited", "<aitop hook>/measures/serving/http.py", 12, False)
SEEDS = (1, 2)


class Damage:
    """Damages events at random; `lost` is the share of events that get lost, `unmeasured` that of optional figures."""

    def __init__(self, seed: int, *, torn: float = 0.1, lost: float = 0.05, unmeasured: float = 0.05) -> None:
        self._random = random.Random(seed)
        self._torn, self._lost, self._unmeasured = torn, lost, unmeasured

    def of(self, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, Tick):
                yield event
            elif self._random.random() >= self._lost:
                yield self._window(event) if isinstance(event, StackWindow) else self._sample(event)

    def _window(self, window: StackWindow) -> StackWindow:
        """Some stacks lost their callers, some what they called, and of some only our hook is left."""

        def torn(stacks: tuple[StackCount, ...]) -> tuple[StackCount, ...]:
            return tuple(msgspec.structs.replace(stack, frames=self._cut(stack.frames, hook)) for stack in stacks)

        hook = len(window.frames)
        looks = tuple(msgspec.structs.replace(look, stacks=torn(look.stacks)) for look in window.looks)
        return msgspec.structs.replace(window, frames=(*window.frames, HOOK), stacks=torn(window.stacks), looks=looks)

    def _cut(self, frames: tuple[int, ...], hook: int) -> tuple[int, ...]:
        if self._random.random() >= self._torn:
            return frames
        at = self._random.randrange(len(frames))
        return self._random.choice([(hook,), frames[:at] or (hook,), frames[at:]])

    def _sample(self, sample: Any) -> Any:
        """Optional figures of a sample, and of what it consists of, are not measured."""
        changes: dict[str, Any] = {}
        for field in msgspec.structs.fields(sample):
            value = getattr(sample, field.name)
            if isinstance(value, tuple):
                changes[field.name] = tuple(self._part(part) for part in value)
            elif isinstance(value, msgspec.Struct):
                changes[field.name] = self._part(value)
        return msgspec.structs.replace(sample, **changes)

    def _part(self, part: Any) -> Any:
        if not isinstance(part, msgspec.Struct):
            return part
        optional = [field for field in msgspec.structs.fields(part) if field.default is None]
        gone = [field.name for field in optional if self._random.random() < self._unmeasured]
        return msgspec.structs.replace(part, **dict.fromkeys(gone))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_run_is_watched_and_judged_to_its_end(name, seed):
    run = Recording(RECORDINGS / f"{name}.jsonl.gz")
    engine, seen, ticks = Engine(run.header.target), None, 0
    for event in Damage(seed).of(run.events()):
        ticks += isinstance(event, Tick)
        seen = engine.handle(event, judged=ticks % 5 == 0) or seen
        judged = seen.diagnosis.abstained if seen is not None and seen.diagnosis is not None else ()
        assert [answer for answer in judged if "this rule failed" in answer.reason] == []
    assert seen is not None and to_text(seen)
