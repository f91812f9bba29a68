"""Divides the time of each line among activities: Python, native code, and kinds of waiting. Pure.

Some waits are known from the library on the stack. For all other lines, py-spy's looks tell where the thread was on a
core ("cpu") and where it held the GIL ("gil"), and the kernel tells what it waited for. Names in the user's code are
not used.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from aitop.model.ledger import Activity
from aitop.model.stacks import Frame, Look, ThreadState, WaitKind
from aitop.stacks.libraries import COMPUTES, Phase, State, Work
from aitop.stacks.reading import Seen

# Shares of a line's time by activity; they add up to 1.
Parts = dict[Activity, float]
Key = TypeVar("Key")
Groups = Mapping[Key, Mapping[Seen, int]]
_Kind = tuple[Phase, "Work | None"]

_OF_KIND: dict[WaitKind, Activity] = {
    "gil": "wait-gil",
    "lock": "wait-lock",
    # Where a library's own threads compute for a line, the line computes.
    "native": "native",
    "disk": "wait-disk",
    "network": "wait-network",
    "queue": "wait-queue",
    "child": "wait-child",
    "device": "wait-device",
    "sleep": "sleep",
    "other": "wait",
}
# What the kernel may report during a wait that is known from the library.
_KINDS_OF: dict[str, tuple[WaitKind, ...]] = {
    # An event loop that has nothing to do waits for its sockets.
    "wait-queue": ("queue", "lock", "native", "other", "network"),
    "wait-room": ("queue", "lock", "native", "other"),
    "wait-lock": ("lock", "native", "other"),
    "wait-child": ("child", "other"),
    "wait-device": ("device", "lock", "native", "other"),
    "sleep": ("sleep", "other"),
}
# Kinds of waiting that can happen on any line, array operations included.
_ANYWHERE: frozenset[WaitKind] = frozenset({"gil", "lock", "native", "device", "other"})
# The likely wait of a line, by what the library below it works with.
_WAIT_OF: dict[str | None, Activity] = {
    "network": "wait-network",
    "database": "wait-network",
    "file": "wait-disk",
    "save": "wait-disk",
}
# How many looks at a line the mean over similar lines counts as.
_PRIOR = 2.0
# With fewer looks at a thread, they are ignored.
_LEAST_LOOKS = 10


class WindowWaits(msgspec.Struct, frozen=True):
    """Of one window: its part of all time, the share of it in which the thread waited, and its stacks."""

    part: float
    waiting: float
    stacks: Mapping[Seen, int]


class ThreadLooks(msgspec.Struct, frozen=True):
    """All looks at one thread, or at several together, and their states in the kernel, over all windows.

    `cpu` and `gil` count by stack the looks that found the thread on a core or holding the GIL, of `cpu_asked` and
    `gil_asked` looks. From the kernel: `running` is the share of time (0..1) on a core or waiting for one, None if it
    was not read; `waits` are shares of time by kind; `asked` is the number of moments at which the state was read;
    `windows` has the windows in which it was.
    """

    cpu: Mapping[Seen, int]
    cpu_asked: int
    gil: Mapping[Seen, int]
    gil_asked: int
    running: float | None
    waits: Mapping[WaitKind, float]
    asked: int = 0
    windows: tuple[WindowWaits, ...] = ()


def looks_of(
    looks: Iterable[tuple[Look, Mapping[Seen, int]]],
    windows: Iterable[tuple[Sequence[ThreadState], Mapping[Seen, int]]],
    at_once: float = 1.0,
) -> ThreadLooks:
    """Sum up the looks at one thread, or at several of which a look sees `at_once` on average.

    `windows` are the states and stacks of each window. They and the `looks` must be of these threads only.
    """
    known = [(own, stacks) for own, stacks in windows if own]
    states = [state for own, _ in known for state in own]
    counts: dict[str, Counter[Seen]] = {"cpu": Counter(), "gil": Counter()}
    asked: Counter[str] = Counter()
    for look, stacks in looks:
        asked[look.kind] += look.asked
        counts[look.kind].update(stacks)
    total = sum(state.asked for state in states)
    running = sum(state.on_core * state.asked for state in states) / total if total else None
    met: Counter[WaitKind] = Counter()
    for state in states:
        met.update(state.waits)
    # How long a thread waits is from the kernel's counts; in what it waits, from the moments that found it waiting.
    waiting = 1.0 - (running if running is not None else 1.0)
    waits: dict[WaitKind, float] = {kind: waiting * count / met.total() for kind, count in met.items()}
    return ThreadLooks(
        cpu=counts["cpu"],
        cpu_asked=round(asked["cpu"] * at_once),
        gil=counts["gil"],
        gil_asked=round(asked["gil"] * at_once),
        running=running,
        waits=waits if met else {"other": waiting},
        asked=round(total / at_once),
        windows=tuple(
            WindowWaits(moments / total, 1.0 - sum(state.on_core * state.asked for state in own) / moments, stacks)
            for own, stacks in known
            if (moments := sum(state.asked for state in own))
        ),
    )


def parts_of_groups(groups: Groups[Key], looks: ThreadLooks, states: Mapping[Key, State | None]) -> dict[Key, Parts]:
    """Return the activities of each group of stacks (those of one line and phase), as shares of the group's time.

    `states` has the activity that a library on the stack implies for each group, None where looks must decide.
    """
    samples = sum(sum(stacks.values()) for stacks in groups.values())
    if not samples:
        return {}
    parts: dict[Key, Parts] = {}
    open_groups: dict[Key, float] = {}
    waiting_by_library: dict[str, float] = defaultdict(float)
    for key, stacks in groups.items():
        share = sum(stacks.values()) / samples
        state = states[key]
        if state is not None:
            parts[key] = {state: 1.0}
            if state in _KINDS_OF:
                waiting_by_library[state] += share
        else:
            open_groups[key] = share
    for key, share in _run_in_waits(groups, looks, sum(open_groups.values()), states).items():
        [(waits_for, whole)] = parts[key].items()
        part = share / (sum(groups[key].values()) / samples)
        parts[key] = {waits_for: whole - part, "native": part}
        waiting_by_library[waits_for] -= share
    holding = _holding(open_groups, groups, looks)
    waits = _waits_of_groups(open_groups, groups, looks, samples, waiting_by_library)
    for key, share in open_groups.items():
        on_core = max(0.0, 1.0 - sum(waits[key].values()))
        held = _looked_up(groups[key], looks.gil, looks.gil_asked, samples)
        if held is not None:
            held = _pulled(held, holding[_kind(groups[key])], share * looks.gil_asked)
        else:
            held = 0.0 if next(iter(groups[key])).work in COMPUTES else on_core
        python = min(on_core, held)
        parts[key] = {**waits[key], "python": python, "native": on_core - python + waits[key].get("native", 0.0)}
    return parts


def _run_in_waits(
    groups: Groups[Key], looks: ThreadLooks, open_share: float, states: Mapping[Key, State | None]
) -> dict[Key, float]:
    """The share of all time that the thread runs in waits of libraries that also pickle and copy, by group.

    It is what the kernel counts as running beyond all of the `open_share`, the time in groups without a known wait, if
    that is more than the error of sampling.
    """
    beyond = (looks.running or 0.0) - open_share
    if looks.running is None or beyond <= _error(looks.running, looks.asked):
        return {}
    samples = sum(sum(stacks.values()) for stacks in groups.values())
    handing = {
        key: sum(stacks.values()) / samples
        for key, stacks in groups.items()
        if states[key] in _KINDS_OF and next(iter(stacks)).work == "hand-over"
    }
    room = dict(handing)
    return _spread(beyond, list(handing), room, room)


def _holding(open_groups: Mapping[Key, float], groups: Groups[Key], looks: ThreadLooks) -> dict[_Kind, float]:
    """By kind of line, the share of its time in which the thread holds the GIL; empty with too few looks."""
    if looks.gil_asked < _LEAST_LOOKS:
        return {}
    in_all = min(1.0, sum(looks.gil.values()) / looks.gil_asked)
    expected: dict[_Kind, float] = defaultdict(float)
    for key, share in open_groups.items():
        expected[_kind(groups[key])] += share * looks.gil_asked
    held: Counter[_Kind] = Counter()
    for seen, count in looks.gil.items():
        held[seen.phase, seen.work] += count
    return {kind: _pulled(min(1.0, held[kind] / looked), in_all, looked) for kind, looked in expected.items()}


def _kind(stacks: Mapping[Seen, int]) -> _Kind:
    """The kind of a line: its phase and work. Lines with few looks borrow from the other lines of their kind."""
    seen = next(iter(stacks))
    return seen.phase, seen.work


def _waits_of_groups(
    open_groups: Mapping[Key, float], groups: Groups[Key], looks: ThreadLooks, samples: int, known: Mapping[str, float]
) -> dict[Key, Parts]:
    """The waits of each group, as shares of its time: looks tell on which lines, the kernel how long and for what.

    `known` are the waits that libraries imply for other groups, as shares of all time. Array operations may wait for
    locks and cores, but not for files, services or processes, so those waits go to the other groups.
    """
    waits: dict[Key, Parts] = {key: {} for key in open_groups}
    waiting = [seen for key, stacks in groups.items() if key not in open_groups for seen in stacks]
    mean = _running_of_open(open_groups, looks, sum(known.values()), waiting)
    off_core: dict[Key, float] = {}
    for key, share in open_groups.items():
        seen = _looked_up(groups[key], looks.cpu, looks.cpu_asked, samples)
        on_core = mean if seen is None else _pulled(seen, mean, share * looks.cpu_asked)
        off_core[key] = share * (1.0 - on_core)
    works = {key: next(iter(groups[key])).work for key in open_groups}
    if looks.running is None:
        for key, mass in off_core.items():
            if mass > 0.0:
                waits[key][_WAIT_OF.get(works[key], "wait")] = mass / open_groups[key]
        return waits
    left = _left(looks.waits, known)
    if looks.windows and len(open_groups) < len(groups):
        whole_left, most_left = sum(left.values()), _most_waiting(open_groups, groups, looks.windows)
        if whole_left > most_left:
            left = {kind: share * most_left / whole_left for kind, share in left.items()}
    room = dict(open_groups)
    no_arrays = [key for key in open_groups if works[key] not in COMPUTES]
    # A poll does not say of what: where a library works with a service or files, it is of these.
    told = [key for key in open_groups if works[key] in _WAIT_OF]
    for key, mass in _spread(left.get("other", 0.0), told, off_core, dict(off_core)).items():
        waits[key][_WAIT_OF[works[key]]] = mass / open_groups[key]
        room[key] -= mass
        off_core[key] = max(0.0, off_core[key] - mass)
        # The parts that were spread may add up to a little more than the whole.
        left["other"] = max(0.0, left["other"] - mass)
    # Waits that only some lines can have are placed first, of these the largest, where the looks found the thread off a
    # core most often.
    for kind in sorted(left, key=lambda kind: (kind in _ANYWHERE, -left[kind])):
        chosen = list(open_groups) if kind in _ANYWHERE or not no_arrays else no_arrays
        activity, whole = _OF_KIND[kind], left[kind]
        # Lines whose library matches the wait come first: a line that reads a socket waits for the network.
        likely = [key for key in chosen if _WAIT_OF.get(works[key], "wait") == activity]
        for keys, most in ((likely, dict(off_core)), (chosen, room)):
            if keys is chosen and likely and whole <= _error(left[kind], looks.asked):
                # The rest is within the error of sampling: no evidence that other lines have this kind of wait.
                activity = "wait"
            for key, mass in _spread(whole, keys, off_core, most).items():
                waits[key][activity] = waits[key].get(activity, 0.0) + mass / open_groups[key]
                room[key] -= mass
                off_core[key] = max(0.0, off_core[key] - mass)
                whole -= mass
    return waits


def _error(share: float, moments: int) -> float:
    """Twice the standard error of the difference between a share from the kernel and one from samples.

    Each is of `moments` readings. Several threads read at one moment count once: what one does depends on the others.
    """
    return 2.0 * math.sqrt(2.0 * share * (1.0 - share) / moments) if moments else 0.0


def _spread(
    mass: float, keys: Sequence[Key], off_core: Mapping[Key, float], room: Mapping[Key, float]
) -> dict[Key, float]:
    """Divide the time of one kind of waiting among groups in proportion to their time off a core, up to `room`."""
    weights = off_core if any(off_core[key] > 0.0 for key in keys) else room
    whole = sum(weights[key] for key in keys)
    if whole <= 0.0:
        return {}
    taken = {key: min(mass * weights[key] / whole, room[key]) for key in keys}
    return {key: part for key, part in taken.items() if part > 0.0}


def _looked_up(stacks: Mapping[Seen, int], hits: Mapping[Seen, int], asked: int, samples: int) -> float | None:
    """The share of a group's time in which looks found the thread in that state; None with too few looks.

    Hits are counted by innermost frame and capped at the time that the stacks spend there, so that hits on the Python
    code around a long native call do not count for the call. Frames with less than one expected look count together.
    """
    if asked < _LEAST_LOOKS:
        return None
    lines = {(seen.line, seen.phase, seen.work) for seen in stacks}
    at_frames: dict[Frame, float] = defaultdict(float)
    for seen, count in stacks.items():
        at_frames[seen.frames[-1]] += count / samples * asked
    places = {frame: frame for frame, looked in at_frames.items() if looked >= 1.0}
    expected: dict[Frame | None, float] = defaultdict(float)
    for frame, looked in at_frames.items():
        expected[places.get(frame)] += looked
    met: Counter[Frame | None] = Counter()
    for seen, count in hits.items():
        if (seen.line, seen.phase, seen.work) in lines:
            met[places.get(seen.frames[-1])] += count
    return sum(min(looked, met[place]) for place, looked in expected.items()) / sum(expected.values())


def _pulled(value: float, mean: float, looks: float) -> float:
    """A share from few looks, pulled towards a mean (weight _PRIOR)."""
    return (value * looks + mean * _PRIOR) / (looks + _PRIOR)


def _running_of_open(
    groups: Mapping[Key, float], looks: ThreadLooks, known_waits: float, waiting: Collection[Seen]
) -> float:
    """The mean share on a core over the groups without a known wait; 1 if neither kernel nor looks tell.

    `waiting` are the stacks with a known wait. They may run, too: a wait may spin, and an event loop runs between two.
    """
    mass, looked = sum(groups.values()), looks.cpu_asked >= _LEAST_LOOKS
    if not mass:
        return 1.0
    if looks.running is not None:
        spun = sum(looks.cpu.get(seen, 0) for seen in waiting) / looks.cpu_asked if looked else 0.0
        return min(1.0, max(0.0, (looks.running - spun) / mass)) if known_waits < 1.0 else 1.0
    return min(1.0, sum(looks.cpu.values()) / looks.cpu_asked / mass) if looked else 1.0


def _most_waiting(open_groups: Collection[Key], groups: Groups[Key], windows: Sequence[WindowWaits]) -> float:
    """The largest share of all time that the open groups can have waited.

    A thread that waits through a window does so in the stacks of that window. This keeps its waits away from lines that
    ran in other windows, also where the library does not tell that its own calls wait, as those that start processes.
    """
    of_open = {seen for key in open_groups for seen in groups[key]}
    known = {seen for stacks in groups.values() for seen in stacks}
    most = 0.0
    for window in windows:
        counts = [(seen in of_open, count) for seen, count in window.stacks.items() if seen in known]
        whole = sum(count for _, count in counts)
        open_share = sum(count for is_open, count in counts if is_open) / whole if whole else 1.0
        most += window.part * min(window.waiting, open_share)
    return most


def _left(waits: Mapping[WaitKind, float], by_library: Mapping[str, float]) -> dict[WaitKind, float]:
    """The kernel's waits without those already known from libraries."""
    left = dict(waits)
    for state, whole in by_library.items():
        share = whole
        # The library knows that this is a wait, whatever kind the kernel reports: subtract it from the likely kinds
        # first, then from any.
        for kind in (*_KINDS_OF[state], *left):
            taken = min(share, left.get(kind, 0.0))
            if taken > 0.0:
                left[kind] -= taken
                share -= taken
    return left
