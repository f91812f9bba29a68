"""Panes folded to their titles: the others of the same column take the room. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from aitop.ui.layout import Box, Plan

STEADY = frozenset({"verdict"})
"""Panes that gain nothing from more rows."""

Named = tuple[str, Box]


class _Part(NamedTuple):
    """A pane, or parts below (`stacked`) or beside each other."""

    named: Named | None
    parts: tuple[_Part, ...] = ()
    stacked: bool = False


def refit(boxes: Plan, folded: Collection[str]) -> Plan:
    """The same layout with the folded panes one row high. Unframed ones are a line or so anyway and stay."""
    closed = {name for name in folded if name in boxes and boxes[name].framed}
    whole = _cut(list(boxes.items())) if closed else None
    if whole is None:
        return boxes
    top = min(box.y for box in boxes.values())
    bottom = max(box.y + box.height for box in boxes.values())
    return _placed(whole, top, bottom - top, closed)


def _cut(items: Sequence[Named]) -> _Part | None:
    """The boxes as nested rows and columns, columns that run on over several rows taken together."""
    if len(items) == 1:
        return _Part(items[0])
    rows = _groups(items, lambda box: (box.y, box.y + box.height))
    merged: list[list[Named]] = []
    for row in rows:
        if merged and (edges := _edges(row)) and edges == _edges(merged[-1]):
            merged[-1] += row
        else:
            merged.append(list(row))
    stacked = len(merged) > 1
    groups = merged if stacked else _groups(items, lambda box: (box.x, box.x + box.width))
    if len(groups) == 1:
        return None
    parts = [_cut(group) for group in groups]
    known = tuple(part for part in parts if part is not None)
    return _Part(None, known, stacked) if len(known) == len(parts) else None


def _groups(items: Sequence[Named], extent: Callable[[Box], tuple[int, int]]) -> list[list[Named]]:
    """Boxes apart from each other along one axis, in order."""
    groups: list[list[Named]] = []
    reached = 0
    for item in sorted(items, key=lambda item: extent(item[1])):
        start, end = extent(item[1])
        if groups and start < reached:
            groups[-1].append(item)
        else:
            groups.append([item])
        reached = max(reached, end)
    return groups


def _edges(items: Sequence[Named]) -> tuple[int, ...]:
    """Where the columns of some boxes begin, after the first."""
    columns = _groups(items, lambda box: (box.x, box.x + box.width))
    return tuple(min(box.x for _, box in column) for column in columns[1:])


def _least(part: _Part, closed: Collection[str]) -> int:
    """Rows that a part takes when nothing in it grows."""
    if part.named is not None:
        return 1 if part.named[0] in closed else part.named[1].height
    heights = [_least(one, closed) for one in part.parts]
    return sum(heights) if part.stacked else max(heights)


def _grows(part: _Part, closed: Collection[str]) -> bool:
    if part.named is not None:
        name, box = part.named
        return box.framed and name not in closed and name not in STEADY
    return any(_grows(one, closed) for one in part.parts)


def _placed(part: _Part, y: int, height: int, closed: Collection[str]) -> Plan:
    if part.named is not None:
        name, box = part.named
        return {name: box._replace(y=y, height=1 if name in closed else height)}
    found: Plan = {}
    if not part.stacked:
        for one in part.parts:
            found |= _placed(one, y, height, closed)
        return found
    least = [_least(one, closed) for one in part.parts]
    growing = [number for number, one in enumerate(part.parts) if _grows(one, closed)]
    spare, weight = height - sum(least), sum(least[number] for number in growing)
    for number, one in enumerate(part.parts):
        more = 0
        if number in growing:
            more = spare if number == growing[-1] else spare * least[number] // weight
            spare, weight = spare - more, weight - least[number]
        rows = least[number] + more
        found |= _placed(one, y, rows, closed)
        y += rows
    return found
