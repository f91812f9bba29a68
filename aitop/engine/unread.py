"""Samples that the sampler asked for and could not read. Pure.

Without stopping a process its stack is read while it changes. Where deep Python comes and goes (a row of a data frame)
many readings fail; where a thread waits or an operation computes, none does. What is missing is therefore the Python's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aitop.engine.stack_digest import Digest, Seen
from aitop.model.stacks import StackWindow

MOVING = frozenset({"python", "decode", "tokenize", "collate", "log"})
# A sampler that is a little late takes a few less than it was asked for; what is missing beyond a part has a reason.
TAKEN, LEAST_MISSING = 0.96, 0.1
# However many are missing, those that were read tell only so much of them.
MOST_WEIGHT = 3.0


def missing_of(windows: Sequence[StackWindow], digests: Sequence[Digest], pid: int, taken: int) -> float:
    """How many samples of process `pid` are missing beside the `taken` ones of its thread; 0 for a few."""
    asked = sum(
        window.seconds * window.rate
        for window, digest in zip(windows, digests, strict=True)
        if any(key.pid == pid for key in digest)
    )
    missing = TAKEN * asked - taken
    return missing if missing >= LEAST_MISSING * asked else 0.0


def weight_of_moving(stacks: Mapping[Seen, int], missing: float) -> float:
    """By how much a sample of a stack that moves counts for more than one that stands still (1 and more)."""
    moving = sum(count for seen, count in stacks.items() if moves(seen))
    return min(MOST_WEIGHT, 1.0 + missing / moving) if moving else 1.0


def moves(seen: Seen) -> bool:
    """Whether Python functions come and go on this stack."""
    return seen.activity in MOVING and not seen.idle
