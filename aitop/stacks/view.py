"""Windows of sampled stacks to what screens and verdicts get: lines with their phase and activity, trees, threads.

Pure but for its memory: what was worked out of one window or one stack is kept for the next call.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from aitop.model.host import Role
from aitop.model.ledger import Position
from aitop.model.snapshot import HotLine, Phases, ProcessStacks, Series, Stacks, ThreadShare, ThreadTree
from aitop.model.stacks import Flow, Frame, Look, StackCount, StackWindow
from aitop.stacks.activity import Parts, looks_of, parts_of_groups
from aitop.stacks.call_tree import call_tree
from aitop.stacks.libraries import Phase, State
from aitop.stacks.position import Steps
from aitop.stacks.reading import Seen, read_stack
from aitop.stacks.short_threads import SHORT_THREADS, Digest, ThreadKey, as_one, relabelled, short_threads

MOST_LINES = 200
MOST_TREES = 48
MOST_STACKS = 20_000
MOST_WINDOWS = 128
WAITS: frozenset[str] = frozenset({"wait-queue", "wait-lock", "wait-child", "sleep"})
STEPPING: frozenset[Phase] = frozenset({"data_wait", "environment", "forward", "backward", "optimizer"})
# A main thread that does more than this besides waiting is the one to look at.
_MAIN_WORKS = 0.1
# Without stopping a process its stack is read while it changes: where deep Python comes and goes many readings fail,
# where a thread waits or one operation computes none does. What is missing beyond a part is therefore the Python's;
# a sampler that is a little late takes a few less than it was asked for.
_TAKEN, _LEAST_MISSING, _MOST_WEIGHT = 0.96, 0.1, 3.0
_CHANGING = frozenset({None, "decode", "tokenize", "collate", "log"})


class Group(NamedTuple):
    """Stacks that are told apart: a line in one phase, position and state. `line` is None where none is to be shown."""

    line: Frame | None
    phase: Phase
    position: Position | None
    state: State | None
    work: str | None


class StackView:
    """Merges windows. Calls may come from any thread."""

    def __init__(self) -> None:
        self._digester = _Digester()
        self._lock = threading.Lock()
        self._last: tuple[tuple[StackWindow, ...], dict[int, Role], Stacks] | None = None

    def view(self, windows: Sequence[StackWindow], roles: Mapping[int, Role], since: float) -> Stacks | None:
        """The windows taken after `since` (monotonic seconds) as one; None where nothing was sampled."""
        recent = tuple(window for window in windows if window.time > since)
        if not recent:
            return None
        known = dict(roles)
        with self._lock:
            last = self._last
            if last is not None and last[1] == known and _same(last[0], recent):
                return last[2]
            stacks = _merged_view(recent, self._digester, known)
            if stacks is not None:
                self._last = recent, known, stacks
            return stacks

    def state_over_time(self, windows: Sequence[StackWindow], pid: int, thread: str, state: State) -> Series:
        """Share of one thread's samples in that state, window by window."""
        return self._over_time(windows, pid, thread, lambda seen: seen.state == state)

    def phases_over_time(
        self, windows: Sequence[StackWindow], pid: int, thread: str, phases: Collection[Phase]
    ) -> Series:
        """Share of one thread's samples in any of the phases, imports left out, window by window."""
        return self._over_time(windows, pid, thread, lambda seen: seen.phase in phases and not seen.importing)

    def steps_in(self, window: StackWindow, pid: int) -> bool:
        """Whether any thread of the process was met in a part of a step in that window."""
        with self._lock:
            digest = self._digester.digest(window)
        return any(_stepping(stacks) for key, stacks in digest.items() if key.pid == pid)

    def _over_time(
        self, windows: Sequence[StackWindow], pid: int, thread: str, wanted: Callable[[Seen], bool]
    ) -> Series:
        times, shares = [], []
        for window in windows:
            with self._lock:
                digest = self._digester.digest(window)
            stacks = next((seen for key, seen in digest.items() if (key.pid, key.thread) == (pid, thread)), None)
            if stacks:
                times.append(window.time)
                shares.append(sum(count for seen, count in stacks.items() if wanted(seen)) / sum(stacks.values()))
        return Series(times=tuple(times), values=tuple(shares))

    def idle_over_time(self, windows: Sequence[StackWindow], pids: Collection[int]) -> dict[int, Series]:
        """Share of the samples of each of these workers in which it had nothing to do, window by window."""
        points: dict[int, tuple[list[float], list[float]]] = {}
        for window in windows:
            with self._lock:
                digest = self._digester.digest(window)
            for key, stacks in digest.items():
                if key.pid in pids and key.main and stacks:
                    times, shares = points.setdefault(key.pid, ([], []))
                    times.append(window.time)
                    shares.append(sum(count for seen, count in stacks.items() if seen.idle) / sum(stacks.values()))
        return {pid: Series(times=tuple(times), values=tuple(shares)) for pid, (times, shares) in points.items()}


class _Digester:
    """Turns windows into counts of distinct stacks, remembering both windows and stacks."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], Seen] = {}
        self._windows: dict[int, tuple[StackWindow, Digest]] = {}

    def digest(self, window: StackWindow) -> Digest:
        """Samples of each distinct stack by thread. Equal stacks of all windows are the same object."""
        known = self._windows.get(id(window))
        # The window is kept, so that its id cannot become another window's.
        if known is not None and known[0] is window:
            return known[1]
        self._make_room()
        digest = self._counted(window, window.stacks)
        self._windows[id(window)] = window, digest
        return digest

    def looks(self, window: StackWindow) -> list[tuple[Look, Digest]]:
        """The looks of a window with their stacks by thread."""
        return [(look, self._counted(window, look.stacks)) for look in window.looks]

    def _counted(self, window: StackWindow, counts: Iterable[StackCount]) -> Digest:
        numbers = [self._frames.setdefault(frame, len(self._frames)) for frame in window.frames]
        digest: Digest = {}
        for stack in counts:
            thread = digest.setdefault(ThreadKey(stack.pid, stack.thread, stack.main), {})
            key = tuple(numbers[index] for index in stack.frames)
            seen = self._stacks.get(key)
            if seen is None:
                seen = self._stacks[key] = read_stack([window.frames[index] for index in stack.frames])
            thread[seen] = thread.get(seen, 0) + stack.count
        return digest

    def _make_room(self) -> None:
        if len(self._stacks) > MOST_STACKS or len(self._frames) > MOST_STACKS:
            self._frames.clear()
            self._stacks.clear()
            self._windows.clear()
        while len(self._windows) >= MOST_WINDOWS:
            del self._windows[next(iter(self._windows))]


def _same(some: Sequence[StackWindow], others: Sequence[StackWindow]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _merged_view(windows: Sequence[StackWindow], digester: _Digester, roles: Mapping[int, Role]) -> Stacks | None:
    digests = [digester.digest(window) for window in windows]
    one = short_threads(windows, digests)
    digests = [as_one(digest, one) for digest in digests]
    looks = [(look, as_one(met, one)) for window in windows for look, met in digester.looks(window)]
    windows = [relabelled(window, one) for window in windows]
    merged: Digest = {}
    for digest in digests:
        for key, stacks in digest.items():
            thread = merged.setdefault(key, {})
            for seen, count in stacks.items():
                thread[seen] = thread.get(seen, 0) + count
    if not merged:
        return None
    processes: list[ProcessStacks] = []
    lines: list[HotLine] = []
    beside: dict[ThreadKey, dict[Seen, int]] = {}
    known: dict[int, Role] = {}
    flows = _flows(windows)
    for pid, threads in _by_process(merged).items():
        lead = lead_thread(threads)
        main = threads.get(lead, {}) if lead is not None else {}
        role = roles.get(pid) or ("loader-worker" if any(seen.worker for seen in main) else "other")
        known[pid] = role
        samples = sum(main.values())
        for key, stacks in threads.items():
            steps = Steps(stacks.items(), flows)
            weight = 1.0
            if key == lead:
                # Between requests there is no thread to be missed.
                taken = sum(merged[key].values())
                missing = 0.0 if key.thread == SHORT_THREADS else _missing(windows, digests, pid, taken)
                weight = _weight_of_changing(stacks, missing)
                by_window = [digest.get(key, {}) for digest in digests]
                processes.append(_process(pid, role, key.thread, stacks, steps, weight=weight, by_window=by_window))
            else:
                beside[key] = stacks
            groups = _groups(stacks, steps)
            of_thread = looks_of(
                windows, [(look, met.get(key, {})) for look, met in looks if look.pid == pid], pid, key.thread
            )
            parts = parts_of_groups(groups, of_thread)
            whole = samples or sum(stacks.values())
            by_window = [digest.get(key, {}) for digest in digests]
            lines += _hot_lines(key, role, groups, parts, whole, by_window=by_window, weight=weight)
    if not processes and not lines:
        return None
    return Stacks(
        seconds=sum(window.seconds for window in windows),
        samples=sum(sum(stacks.values()) for stacks in merged.values()),
        processes=tuple(sorted(processes, key=lambda process: (_order(process.role), process.pid))),
        lines=tuple(sorted(lines, key=lambda line: (-line.samples, line.pid, line.file, line.line))[:MOST_LINES]),
        threads=thread_shares(windows, merged),
        trees=_trees(beside, known),
    )


def _flows(windows: Sequence[StackWindow]) -> dict[str, list[Flow]]:
    """The dataflow of functions by file, the newest for each."""
    newest = {(flow.file, flow.first): flow for window in windows for flow in window.flows}
    by_file: dict[str, list[Flow]] = {}
    for flow in newest.values():
        by_file.setdefault(flow.file, []).append(flow)
    return by_file


def _by_process(merged: Digest) -> dict[int, dict[ThreadKey, dict[Seen, int]]]:
    """Threads of each process, without the samples in which a library was being imported."""
    processes: dict[int, dict[ThreadKey, dict[Seen, int]]] = {}
    for key, stacks in merged.items():
        steady = {seen: count for seen, count in stacks.items() if not seen.importing}
        if steady:
            processes.setdefault(key.pid, {})[key] = steady
    return processes


def _order(role: Role) -> int:
    return ("rank", "loader-worker", "launcher", "helper", "other").index(role)


def lead_thread(threads: Mapping[ThreadKey, Mapping[Seen, int]]) -> ThreadKey | None:
    """The thread of a process that steps: the main one, unless that only waits while another runs the model.

    None where the main thread was not sampled and no other one steps.
    """
    main = next((key for key in threads if key.main), None)
    if main is not None and (_stepping(threads[main]) or _working(threads[main]) > _MAIN_WORKS):
        return main
    others = {key: _stepping(stacks) for key, stacks in threads.items() if not key.main}
    most = max(others, key=lambda key: others[key], default=None)
    if most is not None and others[most]:
        return most
    # A step may be so long that its model was not met yet.
    busy = [key for key in others if _working(threads[key]) > 0.5 and any(seen.line for seen in threads[key])]
    return busy[0] if main is not None and len(busy) == 1 else main


def _stepping(stacks: Mapping[Seen, int]) -> int:
    return sum(count for seen, count in stacks.items() if seen.phase in STEPPING and not seen.importing)


def _working(stacks: Mapping[Seen, int]) -> float:
    """Share of samples that no library calls a wait."""
    samples = sum(stacks.values())
    return sum(count for seen, count in stacks.items() if not _waits(seen)) / samples if samples else 0.0


def _waits(seen: Seen) -> bool:
    return seen.state in WAITS or seen.work == "network"


def thread_shares(windows: Sequence[StackWindow], merged: Digest) -> tuple[ThreadShare, ...]:
    """Every sampled thread, the main one of each process first, then by the share in which it held the lock.

    `gil` is None for processes of which no window asked.
    """
    asked: dict[int, int] = {}
    held: dict[tuple[int, str], int] = {}
    for window in windows:
        for pid, looks in {hold.pid: hold.asked for hold in window.gil or ()}.items():
            asked[pid] = asked.get(pid, 0) + looks
        for hold in window.gil or ():
            held[hold.pid, hold.thread] = held.get((hold.pid, hold.thread), 0) + hold.samples
    shares = []
    for key, stacks in merged.items():
        samples = sum(stacks.values())
        states = [state for window in windows for state in window.states if (state.pid, state.thread) == key[:2]]
        looked = sum(state.asked for state in states)
        running = sum(state.running for state in states) / looked if looked else None
        asked_of = asked.get(key.pid)
        share = ThreadShare(
            pid=key.pid,
            thread=key.thread,
            samples=samples,
            active=running if running is not None else _working(stacks) if samples else None,
            gil=min(1.0, held.get((key.pid, key.thread), 0) / asked_of) if asked_of else None,
        )
        shares.append((not key.main, share))
    return tuple(share for _, share in sorted(shares, key=lambda pair: (pair[1].pid, pair[0], -(pair[1].gil or 0.0))))


def _trees(threads: Mapping[ThreadKey, Mapping[Seen, int]], roles: Mapping[int, Role]) -> tuple[ThreadTree, ...]:
    """The trees of these threads, those that do most besides waiting first, and MOST_TREES at most."""

    def work(stacks: Mapping[Seen, int]) -> int:
        return sum(count for seen, count in stacks.items() if not _waits(seen))

    busiest = sorted(threads.items(), key=lambda thread: (-work(thread[1]), thread[0].pid, thread[0].thread))
    trees = []
    for key, stacks in busiest[:MOST_TREES]:
        tree = call_tree((seen.frames, count) for seen, count in stacks.items())
        if tree is not None:
            samples = sum(stacks.values())
            role = roles.get(key.pid, "other")
            trees.append(ThreadTree(pid=key.pid, role=role, thread=key.thread, samples=samples, tree=tree))
    return tuple(trees)


def _missing(windows: Sequence[StackWindow], digests: Sequence[Digest], pid: int, taken: int) -> float:
    """How many samples of process `pid` are missing beside the `taken` ones of its thread; 0 for a few."""
    asked = sum(
        window.seconds * window.rate
        for window, digest in zip(windows, digests, strict=True)
        if any(key.pid == pid for key in digest)
    )
    missing = _TAKEN * asked - taken
    return missing if missing >= _LEAST_MISSING * asked else 0.0


def _weight_of_changing(stacks: Mapping[Seen, int], missing: float) -> float:
    """By how much a sample of a stack that changes counts for more than one that stands still (1 and more)."""
    changing = sum(count for seen, count in stacks.items() if _changes(seen))
    return min(_MOST_WEIGHT, 1.0 + missing / changing) if changing else 1.0


def _changes(seen: Seen) -> bool:
    """Whether Python functions come and go on this stack."""
    return seen.state is None and seen.work in _CHANGING and not seen.idle


def _process(
    pid: int,
    role: Role,
    thread: str,
    stacks: Mapping[Seen, int],
    steps: Steps,
    *,
    weight: float,
    by_window: Sequence[Mapping[Seen, int]],
) -> ProcessStacks:
    samples = sum(stacks.values())
    loads = all(seen.worker for seen in stacks)
    worker = loads or role == "loader-worker"
    idle = sum(count for seen, count in stacks.items() if seen.idle)
    return ProcessStacks(
        pid=pid,
        role=role,
        samples=samples,
        phases=Phases() if loads else _phases(stacks, steps, weight),
        tree=call_tree((seen.frames, count) for seen, count in stacks.items()),
        idle=idle / samples if worker and samples else None,
        thread=thread,
        by_window=tuple(sum(window.values()) for window in by_window),
    )


def _phases(stacks: Mapping[Seen, int], steps: Steps, weight: float) -> Phases:
    """Shares of the thread's samples. What only now and then shows on a stack is None when it never did."""
    counts: dict[Phase, float] = defaultdict(float)
    for seen, count in stacks.items():
        counts[steps.phase(seen)] += count * weight if _changes(seen) else count
    samples = sum(counts.values())
    if not samples:
        return Phases()
    rarely: tuple[Phase, ...] = ("transfer", "communication")
    transfer, communication = (counts[phase] / samples if counts[phase] else None for phase in rarely)
    return Phases(
        data_wait=counts["data_wait"] / samples,
        transfer=transfer,
        forward=counts["forward"] / samples,
        backward=counts["backward"] / samples,
        optimizer=counts["optimizer"] / samples,
        communication=communication,
        outside=(counts["outside"] + counts["environment"] + counts["evaluation"] + counts["save"]) / samples,
    )


def _groups(stacks: Mapping[Seen, int], steps: Steps) -> dict[Group, dict[Seen, int]]:
    groups: dict[Group, dict[Seen, int]] = {}
    for seen, count in stacks.items():
        phase = steps.phase(seen)
        position = steps.position(seen) if phase in ("outside", "environment") else None
        group = Group(None if seen.idle else seen.line, phase, position, seen.state, seen.work)
        groups.setdefault(group, {})[seen] = count
    return groups


def _hot_lines(
    key: ThreadKey,
    role: Role,
    groups: Mapping[Group, Mapping[Seen, int]],
    parts: Mapping[Group, Parts],
    samples: int,
    *,
    by_window: Sequence[Mapping[Seen, int]],
    weight: float,
) -> list[HotLine]:
    """Lines of one thread with their samples. A sample of a stack that changes counts `weight` times."""
    changing = sum(sum(stacks.values()) for stacks in groups.values() if _changes(next(iter(stacks))))
    whole = samples + (weight - 1.0) * changing
    lines = []
    for group, stacks in groups.items():
        if group.line is None:
            continue
        heaviest = max(stacks, key=lambda seen: stacks[seen])
        count = sum(stacks.values())
        doing = parts.get(group, {})
        lines.append(
            HotLine(
                pid=key.pid,
                role=role,
                file=group.line.file,
                line=group.line.line,
                function=group.line.function,
                phase=group.phase,
                position=group.position,
                activity=max(doing, key=lambda activity: doing[activity], default="python"),
                parts=tuple(sorted(doing.items(), key=lambda part: -part[1])),
                work=group.work,
                samples=count,
                share=count * (weight if _changes(heaviest) else 1.0) / whole,
                text=group.line.text,
                thread=key.thread,
                via=heaviest.via,
                callers=len(heaviest.callers),
                loop=group.line.loop,
                by_window=tuple(sum(window.get(seen, 0) for seen in stacks) for window in by_window),
            )
        )
    return lines
