"""What a thread does on each of its lines: told by libraries, by the kernel and by the interpreter's lock. Pure.

Libraries name some waits. For everything else py-spy's looks say on which lines the thread was on a core ("cpu") and
held the interpreter's lock ("gil"), and the kernel says what it waited in. No name of the user's is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aitop.model.ledger import Activity
from aitop.model.stacks import Look, StackWindow, ThreadState, WaitKind
from aitop.stacks.reading import Seen

# Shares of a line's time by activity; they add up to 1.
Parts = dict[Activity, float]
Key = TypeVar("Key")

_OF_KIND: dict[WaitKind, Activity] = {
    "lock": "wait-lock",
    "disk": "wait-disk",
    "network": "wait-network",
    "queue": "wait-queue",
    "child": "wait-child",
    "device": "wait-device",
    "sleep": "sleep",
    "other": "wait",
}
# Kinds of waiting that the kernel may show for what a library calls a wait.
_KINDS_OF: dict[str, tuple[WaitKind, ...]] = {
    "wait-queue": ("queue", "lock", "other"),
    "wait-lock": ("lock", "other"),
    "wait-child": ("child", "other"),
    "wait-device": ("device", "lock", "other"),
    "sleep": ("sleep", "other"),
}
# How many samples the thread's own mean counts for beside the looks at one line.
_PRIOR = 2.0
# Below this many looks at a thread they say too little to be used.
_LEAST_LOOKS = 10


@dataclass(frozen=True)
class ThreadLooks:
    """What was looked up of one thread in all windows: None where it was not.

    `cpu` and `gil` count, by stack, how often it was on a core or held the lock, of `cpu_asked` and `gil_asked` looks.
    `waits` are shares of its time by kind, `running` the share on or for a core; both from the kernel.
    """

    cpu: Mapping[Seen, int]
    cpu_asked: int
    gil: Mapping[Seen, int]
    gil_asked: int
    running: float | None
    waits: Mapping[WaitKind, float]


def looks_of(
    windows: Sequence[StackWindow], looks: Iterable[tuple[Look, Mapping[Seen, int]]], pid: int, thread: str
) -> ThreadLooks:
    """The looks at one thread. `looks` come with the stacks of that thread only."""
    counts: dict[str, dict[Seen, int]] = {"cpu": {}, "gil": {}}
    asked = {"cpu": 0, "gil": 0}
    for look, stacks in looks:
        asked[look.kind] += look.asked
        for seen, count in stacks.items():
            counts[look.kind][seen] = counts[look.kind].get(seen, 0) + count
    states: list[ThreadState] = [
        state for window in windows for state in window.states if (state.pid, state.thread) == (pid, thread)
    ]
    total = sum(state.asked for state in states)
    waits: dict[WaitKind, float] = {}
    for state in states:
        for kind, count in state.waits.items():
            waits[kind] = waits.get(kind, 0.0) + count / total
    return ThreadLooks(
        cpu=counts["cpu"],
        cpu_asked=asked["cpu"],
        gil=counts["gil"],
        gil_asked=asked["gil"],
        running=sum(state.running for state in states) / total if total else None,
        waits=waits,
    )


def parts_of_groups(groups: Mapping[Key, Mapping[Seen, int]], looks: ThreadLooks) -> dict[Key, Parts]:
    """What the thread does in each group of its stacks (those of one line and phase), by activity."""
    samples = sum(sum(stacks.values()) for stacks in groups.values())
    if not samples:
        return {}
    parts: dict[Key, Parts] = {}
    open_groups: dict[Key, float] = {}
    waiting_by_library: dict[str, float] = {}
    for key, stacks in groups.items():
        share = sum(stacks.values()) / samples
        state = next(iter(stacks)).state
        if state is not None:
            parts[key] = {state: 1.0}
            if state in _KINDS_OF:
                waiting_by_library[state] = waiting_by_library.get(state, 0.0) + share
        else:
            open_groups[key] = share
    waits = _left(looks.waits, waiting_by_library)
    on_core = _on_core(open_groups, groups, looks, samples, sum(waiting_by_library.values()))
    held_in_all = sum(looks.gil.values()) / looks.gil_asked if looks.gil_asked >= _LEAST_LOOKS else None
    waiting: list[tuple[float, Key]] = []
    for key, share in open_groups.items():
        held = _looked_up(groups[key], looks.gil, looks.gil_asked, samples)
        if held is not None and held_in_all is not None:
            held = _pulled(held, min(1.0, held_in_all), share * looks.gil_asked)
        else:
            held = 0.0 if next(iter(groups[key])).work == "tensor" else on_core[key]
        python = min(on_core[key], held)
        parts[key] = {"python": python, "native": on_core[key] - python}
        if on_core[key] < 1.0:
            waiting.append((share * (1.0 - on_core[key]), key))
    for mass, key in sorted(waiting, key=lambda pair: -pair[0]):
        parts[key][_take(waits, mass, next(iter(groups[key])))] = mass / open_groups[key]
    return parts


def _on_core(
    open_groups: Mapping[Key, float],
    groups: Mapping[Key, Mapping[Seen, int]],
    looks: ThreadLooks,
    samples: int,
    known_waits: float,
) -> dict[Key, float]:
    """The share of each group's time on a core: from the looks at its lines, held against the kernel's total."""
    mean = _running_of_open(open_groups, looks, known_waits)
    on_core: dict[Key, float] = {}
    for key, share in open_groups.items():
        seen = _looked_up(groups[key], looks.cpu, looks.cpu_asked, samples)
        on_core[key] = mean if seen is None else _pulled(seen, mean, share * looks.cpu_asked)
    if looks.running is None:
        return on_core
    # Looks at single lines are few: they say where the thread waits, the kernel says how long in all.
    waits = sum(share * (1.0 - on_core[key]) for key, share in open_groups.items())
    scale = max(0.0, 1.0 - looks.running - known_waits) / waits if waits > 0.0 else 1.0
    return {key: max(0.0, 1.0 - (1.0 - core) * scale) for key, core in on_core.items()}


def _looked_up(stacks: Mapping[Seen, int], hits: Mapping[Seen, int], asked: int, samples: int) -> float | None:
    """The share of a group's time in which looks met the thread there; None where there were too few looks."""
    if asked < _LEAST_LOOKS:
        return None
    lines = {(seen.line, seen.phase, seen.work) for seen in stacks}
    met = sum(count for seen, count in hits.items() if (seen.line, seen.phase, seen.work) in lines)
    expected = sum(stacks.values()) / samples * asked
    return min(1.0, met / expected)


def _pulled(value: float, mean: float, looks: float) -> float:
    """A share seen in few looks, pulled towards the thread's mean."""
    return (value * looks + mean * _PRIOR) / (looks + _PRIOR)


def _running_of_open(groups: Mapping[Key, float], looks: ThreadLooks, known_waits: float) -> float:
    """The mean share on a core of the groups that no library calls a wait; 1 where nothing tells."""
    mass = sum(groups.values())
    if not mass:
        return 1.0
    if looks.running is not None:
        return min(1.0, max(0.0, looks.running / mass)) if known_waits < 1.0 else 1.0
    if looks.cpu_asked >= _LEAST_LOOKS:
        return min(1.0, sum(looks.cpu.values()) / looks.cpu_asked / mass)
    return 1.0


def _left(waits: Mapping[WaitKind, float], by_library: Mapping[str, float]) -> dict[WaitKind, float]:
    """The kernel's waits without those that libraries account for."""
    left = dict(waits)
    for state, share in by_library.items():
        for kind in _KINDS_OF[state]:
            taken = min(share, left.get(kind, 0.0))
            if taken:
                left[kind] -= taken
                share -= taken
    return left


def _take(waits: dict[WaitKind, float], mass: float, seen: Seen) -> Activity:
    """The kind of waiting of a line that waits for `mass` of the time: the largest that is left, taken from it."""
    kind = max(waits, key=lambda name: waits[name], default=None)
    if kind is None or waits[kind] <= 0.0:
        by_work: dict[str, Activity] = {
            "network": "wait-network",
            "database": "wait-network",
            "file": "wait-disk",
            "save": "wait-disk",
        }
        return by_work.get(seen.work or "", "wait")
    waits[kind] = max(0.0, waits[kind] - mass)
    return _OF_KIND[kind]
