"""Sampled stacks as speedscope JSON and as collapsed text, which flame graph tools read. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from aitop import __version__
from aitop.model.event import Event
from aitop.model.stacks import StackWindow
from aitop.model.text import printable
from aitop.stacks.origin import own_hook

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class Place(NamedTuple):
    """A line of a function."""

    function: str
    file: str
    line: int


class Sampled(NamedTuple):
    """Equal samples of one thread within one window: `seconds` is the time that they stand for."""

    pid: int
    thread: str
    stack: tuple[Place, ...]
    samples: int
    seconds: float


def sampled(events: Iterable[Event]) -> Iterator[Sampled]:
    """The stacks of a recording, window by window, without the frames of aitop's own hook."""
    for event in events:
        if isinstance(event, StackWindow):
            for stack in event.stacks:
                frames = (event.frames[index] for index in stack.frames)
                places = tuple(
                    Place(printable(frame.function), printable(frame.file), frame.line)
                    for frame in frames
                    if not own_hook(frame.file)
                )
                if places:
                    yield Sampled(stack.pid, printable(stack.thread), places, stack.count, stack.count / event.rate)


def to_speedscope(stacks: Iterable[Sampled], name: str) -> str:
    """One profile per thread, in seconds, with its samples in the order of their windows."""
    frames: dict[Place, int] = {}
    profiles: dict[tuple[int, str], dict[str, Any]] = {}
    for stack in stacks:
        profile = profiles.setdefault(
            (stack.pid, stack.thread),
            {
                "type": "sampled",
                "name": f"pid {stack.pid} {stack.thread}",
                "unit": "seconds",
                "startValue": 0,
                "endValue": 0.0,
                "samples": [],
                "weights": [],
            },
        )
        profile["samples"].append([frames.setdefault(place, len(frames)) for place in stack.stack])
        profile["weights"].append(stack.seconds)
        profile["endValue"] += stack.seconds
    return json.dumps(
        {
            "$schema": SCHEMA,
            "exporter": f"aitop {__version__}",
            "name": printable(name),
            "activeProfileIndex": 0,
            "profiles": list(profiles.values()),
            "shared": {"frames": [{"name": at.function, "file": at.file, "line": at.line} for at in frames]},
        }
    )


def to_collapsed(stacks: Iterable[Sampled]) -> str:
    """One line per distinct stack: process, thread and frames separated by `;`, then the number of samples."""
    counts: Counter[str] = Counter()
    for each in stacks:
        frames = (f"{at.function} ({at.file}:{at.line})" for at in each.stack)
        path = (f"pid {each.pid}", each.thread, *frames)
        counts[";".join(name.replace(";", ",") for name in path)] += each.samples
    return "".join(f"{stack} {count}\n" for stack, count in counts.items())
