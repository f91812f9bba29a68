"""Whether a recorded event, whose types are right, can also be true: what cannot is taken for a damaged line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from aitop.model.event import Event
from aitop.model.snapshot import GrowthSites
from aitop.model.stacks import Frame, StackDump, StackWindow

LATEST = 1e10  # seconds of uptime; nothing that was ever up so long wrote this
LARGEST = 1e18
# No source line, name or file name is written longer; searches take the square of it.
LONGEST_TEXT = 4096
# Lines without these have no number above LARGEST; those with them may have it in a text as well.
_LONG_NUMBER = re.compile(rb"\d{18}|\d[eE]\+?\d\d")


def is_sound(event: Event, line: bytes) -> bool:
    """`line` is the text that `event` was read from."""
    if not 0 <= event.time < LATEST:
        return False
    if isinstance(event, StackWindow) and not _sampled(event):
        return False
    if isinstance(event, StackDump) and not _in_range([stack.frames for stack in event.threads], len(event.frames)):
        return False
    if isinstance(event, (StackWindow, StackDump)) and len(line) > LONGEST_TEXT and not _short(event.frames):
        return False
    if isinstance(event, GrowthSites) and any(len(site.text + site.grown) > LONGEST_TEXT for site in event.sites):
        return False
    return _LONG_NUMBER.search(line) is None or _bounded(msgspec.to_builtins(event))


def _sampled(window: StackWindow) -> bool:
    counted = all(stack.count > 0 for stack in window.stacks) and window.seconds > 0 and window.rate > 0
    return counted and _in_range([stack.frames for stack in window.stacks], len(window.frames))


def _short(frames: Sequence[Frame]) -> bool:
    texts = (text for one in frames for text in (one.function, one.file, one.text, one.loop, one.guard))
    return all(text is None or len(text) <= LONGEST_TEXT for text in texts)


def _in_range(stacks: list[tuple[int, ...]], frames: int) -> bool:
    return all(0 <= index < frames for stack in stacks for index in stack)


def _bounded(value: Any) -> bool:
    """Whether no number in it is larger than anything that is measured."""
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, (list, tuple)):
            todo += one
        elif isinstance(one, (int, float)) and not -LARGEST < one < LARGEST:
            return False
    return True
