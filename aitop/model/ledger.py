"""The ledger: where the time of one unit of work goes. Every verdict is read from it."""

from __future__ import annotations

from typing import Literal

import msgspec

from aitop.model.verdict import Where

Lane = Literal["main", "producers", "device", "exchange"]
Phase = Literal[
    "data", "environment", "transfer", "forward", "backward", "optimizer", "exchange", "evaluation", "save", "host"
]
Activity = Literal[
    "python", "native", "wait", "wait-lock", "wait-core", "wait-disk", "wait-network", "wait-queue", "wait-child",
    "wait-device", "sleep", "spawn", "collect", "compile",
]  # fmt: skip
Basis = Literal["measured", "sampled", "derived"]
Unit = Literal["step", "request", "iteration", "second"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the unit that belongs to one phase, one activity and one line.

    `share` (0..1) is of the lane's time; the entries of a lane add up to 1. `seconds` is per unit, None where the
    length of a unit is not known. `low` and `high` bound the share (95 %). `samples` is how many stack samples stand
    for it, 0 where it was only measured. `where` is the user's innermost line, None where none was on the stack.
    """

    lane: Lane
    phase: Phase
    activity: Activity
    share: float
    low: float
    high: float
    basis: Basis
    pid: int
    samples: int = 0
    seconds: float | None = None
    where: Where | None = None


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one working process, heaviest entry first. `length` is seconds of one unit, None if unknown."""

    pid: int
    thread: str
    unit: Unit
    entries: tuple[Entry, ...] = ()
    length: float | None = None
