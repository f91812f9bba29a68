"""Checks the values of a recorded event whose types are right. A line with impossible values is a damaged line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from aitop.model.event import Event
from aitop.model.snapshot import GrowthSites
from aitop.model.stacks import Frame, StackDump, StackWindow

# Seconds of uptime, beyond that of any machine.
LATEST = 1e10
LARGEST = 1e18
# Longer source lines and names are never written. Searching in a text may take time that grows with its square.
LONGEST_TEXT = 4096
# A line without a match has no number above LARGEST. In one with a match, it may be in a text.
_LONG_NUMBER = re.compile(rb"\d{18}|\d[eE]\+?\d\d")


def is_sound(event: Event, line: bytes) -> bool:
    """Return whether all values of `event`, which was read from the text `line`, are possible."""
    if not 0 <= event.time < LATEST:
        return False
    if isinstance(event, StackWindow) and not _sampled(event):
        return False
    if isinstance(event, StackDump) and not _in_range([stack.frames for stack in event.threads], len(event.frames)):
        return False
    if isinstance(event, (StackWindow, StackDump)) and len(line) > LONGEST_TEXT and not _short(event.frames):
        return False
    if isinstance(event, GrowthSites) and any(len(site.text) > LONGEST_TEXT for site in event.sites):
        return False
    return _LONG_NUMBER.search(line) is None or _bounded(msgspec.to_builtins(event))


def _sampled(window: StackWindow) -> bool:
    counted = all(stack.count > 0 for stack in window.stacks) and window.seconds > 0 and window.rate > 0
    return counted and _in_range([stack.frames for stack in window.stacks], len(window.frames))


def _short(frames: Sequence[Frame]) -> bool:
    texts = (text for frame in frames for text in (frame.function, frame.file, frame.text, frame.loop, frame.guard))
    return all(text is None or len(text) <= LONGEST_TEXT for text in texts)


def _in_range(stacks: list[tuple[int, ...]], frames: int) -> bool:
    return all(0 <= index < frames for stack in stacks for index in stack)


def _bounded(value: Any) -> bool:
    """Return whether no number in it is larger than anything that is measured."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, (list, tuple)):
            todo += item
        elif isinstance(item, (int, float)) and not -LARGEST < item < LARGEST:
            return False
    return True
