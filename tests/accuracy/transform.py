"""Changes to a recording that must not change a verdict: without source text, and in another order."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace
from recorded import Recorded

from aitop.model.event import Event
from aitop.model.host import HostSample
from aitop.model.snapshot import GrowthSites
from aitop.model.stacks import Frame, StackCount, StackDump, StackWindow
from aitop.model.steps import HookSample

Transform = Callable[[Recorded], Recorded]
_Item = TypeVar("_Item")


def without_source() -> Transform:
    """Remove every text that was read from source files, and what was concluded from reading them."""

    def changed(recorded: Recorded) -> Recorded:
        events = (_without_source(event) for event in recorded.events if not isinstance(event, GrowthSites))
        return dataclasses.replace(recorded, events=tuple(events))

    return changed


def _without_source(event: Event) -> Event:
    if isinstance(event, (StackWindow, StackDump)):
        return replace(event, frames=tuple(replace(f, text=None, guard=None) for f in event.frames))
    if isinstance(event, HookSample) and event.facts is not None:
        # torch quotes the line that was compiled behind a number sign.
        reasons = tuple(reason.partition("#")[0].rstrip() for reason in event.facts.recompile_reasons)
        return replace(event, facts=replace(event.facts, recompile_reasons=reasons))
    return event


def shuffled(seed: int) -> Transform:
    """Change the order of everything that has none: processes, stacks, threads, and the tables of frames."""

    def changed(recorded: Recorded) -> Recorded:
        chance = random.Random(seed)
        return dataclasses.replace(recorded, events=tuple(_shuffled(event, chance) for event in recorded.events))

    return changed


def _shuffled(event: Event, chance: random.Random) -> Event:
    if isinstance(event, HostSample):
        return replace(event, processes=_mixed(event.processes, chance))
    if isinstance(event, StackDump):
        frames, place = _reordered(event.frames, chance)
        threads = tuple(
            replace(thread, frames=tuple(place[index] for index in thread.frames)) for thread in event.threads
        )
        return replace(event, frames=frames, threads=_mixed(threads, chance))
    if isinstance(event, StackWindow):
        frames, place = _reordered(event.frames, chance)
        looks = tuple(replace(look, stacks=_stacks(look.stacks, place, chance)) for look in event.looks)
        return replace(
            event,
            frames=frames,
            stacks=_stacks(event.stacks, place, chance),
            looks=_mixed(looks, chance),
            states=_mixed(event.states, chance),
        )
    return event


def _stacks(stacks: Sequence[StackCount], place: Sequence[int], chance: random.Random) -> tuple[StackCount, ...]:
    return _mixed([replace(stack, frames=tuple(place[index] for index in stack.frames)) for stack in stacks], chance)


def _mixed(items: Sequence[_Item], chance: random.Random) -> tuple[_Item, ...]:
    return tuple(chance.sample(items, len(items)))


def _reordered(frames: Sequence[Frame], chance: random.Random) -> tuple[tuple[Frame, ...], list[int]]:
    """The table in another order, and the new index of each old one."""
    order = chance.sample(range(len(frames)), len(frames))
    place = [0] * len(frames)
    for new, old in enumerate(order):
        place[old] = new
    return tuple(frames[old] for old in order), place
