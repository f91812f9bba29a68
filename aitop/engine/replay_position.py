"""Where a replay stands, in a form that a screen can show."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""What a replay can be set to, times as fast as it was."""


class Mark(NamedTuple):
    """A moment worth a look, `seconds` after the first tick; `words` say what happened."""

    seconds: float
    words: str


class Position(msgspec.Struct, frozen=True):
    """Where a replay stands: `seconds` after its first tick, of `duration`, None before that is known.

    `seeking` is how far (0..1) it is on a long way to another place, None when it is on none. `marks` are known as far
    as the recording has been looked through. `speed` None plays as fast as it goes.
    """

    seconds: float = 0.0
    duration: float | None = None
    speed: float | None = 1.0
    playing: bool = True
    ended: bool = False
    seeking: float | None = None
    marks: tuple[Mark, ...] = ()
