"""Decodes the JSON area of a ring: facts about the run, and what the allocators hold.

Whatever the target writes is only ever a value here. What makes no sense is dropped, and nothing raises.
"""

from __future__ import annotations

from typing import Any

import msgspec

from aitop.model.steps import AllocatorSample, HookFacts

LONGEST_TEXT = 1000
MOST_ITEMS = 1024
LARGEST_COUNT, LARGEST_FLOAT = 10**15, 1e24
MOST_RANKS = 10**6


class _Area(msgspec.Struct, frozen=True):
    facts: HookFacts
    allocators: tuple[AllocatorSample, ...] = ()


_decoder = msgspec.json.Decoder(_Area)


def decode_facts(data: bytes) -> tuple[HookFacts, tuple[AllocatorSample, ...]] | None:
    """Return the facts and the allocators in the ring's JSON area; None where that is not what a hook writes."""
    try:
        area = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    facts = area.facts
    # A program may say -1 for none.
    rank, world_size = (value if 0 <= (value or 0) <= MOST_RANKS else None for value in (facts.rank, facts.world_size))
    facts = msgspec.structs.replace(facts, rank=rank, world_size=world_size)
    return (facts, area.allocators) if _plausible(facts) and _plausible(area.allocators) else None


def _plausible(value: Any) -> bool:
    """Return whether all texts, numbers and lists in it are of a size that a hook writes; no number is negative."""
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    if isinstance(value, int):
        return 0 <= value <= LARGEST_COUNT
    if isinstance(value, float):
        return 0 <= value <= LARGEST_FLOAT
    if isinstance(value, tuple):
        return len(value) <= MOST_ITEMS and all(map(_plausible, value))
    return value is None or all(_plausible(getattr(value, name)) for name in value.__struct_fields__)
