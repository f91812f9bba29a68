"""Checks values of drivers, which are garbage at times (all bits set, negative numbers as unsigned): None for those."""

from __future__ import annotations

import math

from aitop.model.text import printable

HIGHEST_WATTS = 10_000.0
HIGHEST_CELSIUS = 200.0
HIGHEST_MEGAHERTZ = 20_000
HIGHEST_BYTES = 1 << 50
HIGHEST_BYTES_PER_SECOND = 1e14
HIGHEST_ERROR_COUNT = 1 << 48
HIGHEST_PID = 1 << 22
LONGEST_NAME = 96


def within(value: float | None, lowest: float, highest: float) -> float | None:
    """`value` as a float if it lies between both bounds, inclusive."""
    if value is None or not math.isfinite(value) or not lowest <= value <= highest:
        return None
    return float(value)


def whole(value: float | None, lowest: int, highest: int) -> int | None:
    """`value` as an int if it lies between both bounds, inclusive."""
    checked = within(value, lowest, highest)
    return None if checked is None or value is None else int(value)


def share(percent: float | None) -> float | None:
    """A percentage as a share (0..1); up to 101 % is taken as rounded and counts as 1."""
    checked = within(percent, 0.0, 101.0)
    return None if checked is None else min(1.0, checked / 100.0)


def rate(value: float | None, scale: float) -> float | None:
    """`value` times `scale` as bytes per second."""
    return within(None if value is None else value * scale, 0.0, HIGHEST_BYTES_PER_SECOND)


def clean(text: str | bytes | None) -> str | None:
    """A name without anything that could move a cursor or change a colour; None if nothing is left."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if text is None:
        return None
    return printable(text).strip()[:LONGEST_NAME].rstrip() or None
