"""Windows of stacks to what the screen and the rules get: shares of phases, hot lines, call trees. Pure."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from aitop.engine.activity import Activity
from aitop.engine.call_tree import call_tree
from aitop.engine.phases import Function, Phase, evaluation_functions, phase_of
from aitop.engine.stack_digest import Digest, Digester, Seen, ThreadKey
from aitop.engine.thread_shares import lead_thread, thread_shares
from aitop.engine.thread_trees import thread_trees
from aitop.engine.unread import missing_of, moves, weight_of_moving
from aitop.model.host import Role
from aitop.model.snapshot import HotLine, Phases, ProcessStacks, Series, Stacks
from aitop.model.stacks import StackWindow

MOST_LINES = 200


class StackView:
    """Merges windows; what was worked out of one window is kept for the next call. Calls may come from any thread."""

    def __init__(self) -> None:
        self._digester = Digester()
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
            stacks = _stacks(recent, [self._digester.digest(window) for window in recent], known)
            if stacks is not None:
                self._last = recent, known, stacks
            return stacks

    def activity_over_time(self, windows: Sequence[StackWindow], pid: int, thread: str, activity: Activity) -> Series:
        """Share of one thread's samples with that activity, window by window."""
        return self._over_time(windows, pid, thread, lambda seen: seen.activity == activity)

    def phases_over_time(
        self, windows: Sequence[StackWindow], pid: int, thread: str, phases: Collection[Phase]
    ) -> Series:
        """Share of one thread's samples in any of the phases, imports left out, window by window."""
        return self._over_time(windows, pid, thread, lambda seen: seen.phase in phases and not seen.importing)

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
                doing = sum(count for seen, count in stacks.items() if wanted(seen))
                shares.append(doing / sum(stacks.values()))
        return Series(times=tuple(times), values=tuple(shares))

    def idle_over_time(self, windows: Sequence[StackWindow], pids: Collection[int]) -> dict[int, Series]:
        """Share of the samples of each of these workers in which it had nothing to do, window by window."""
        found: dict[int, tuple[list[float], list[float]]] = {}
        for window in windows:
            with self._lock:
                digest = self._digester.digest(window)
            for key, stacks in digest.items():
                if key.pid in pids and key.main and stacks:
                    times, shares = found.setdefault(key.pid, ([], []))
                    times.append(window.time)
                    idle = sum(count for seen, count in stacks.items() if seen.idle)
                    shares.append(idle / sum(stacks.values()))
        return {pid: Series(times=tuple(times), values=tuple(shares)) for pid, (times, shares) in found.items()}


_VIEW = StackView()


def view(windows: Sequence[StackWindow], roles: Mapping[int, Role], since: float) -> Stacks | None:
    """The windows taken after `since` as one, see StackView. `roles` by pid, as the host source tells them."""
    return _VIEW.view(windows, roles, since)


def activity_over_time(windows: Sequence[StackWindow], pid: int, thread: str, activity: Activity) -> Series:
    """See StackView.activity_over_time."""
    return _VIEW.activity_over_time(windows, pid, thread, activity)


def phases_over_time(windows: Sequence[StackWindow], pid: int, thread: str, phases: Collection[Phase]) -> Series:
    """See StackView.phases_over_time."""
    return _VIEW.phases_over_time(windows, pid, thread, phases)


def idle_over_time(windows: Sequence[StackWindow], pids: Collection[int]) -> dict[int, Series]:
    """See StackView.idle_over_time."""
    return _VIEW.idle_over_time(windows, pids)


def _same(some: Sequence[StackWindow], others: Sequence[StackWindow]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _merged(digests: Iterable[Digest]) -> Digest:
    merged: Digest = {}
    for digest in digests:
        for key, stacks in digest.items():
            thread = merged.setdefault(key, {})
            for seen, count in stacks.items():
                thread[seen] = thread.get(seen, 0) + count
    return merged


def _stacks(windows: Sequence[StackWindow], digests: Sequence[Digest], roles: Mapping[int, Role]) -> Stacks | None:
    merged = _merged(digests)
    if not merged:
        return None
    processes: list[ProcessStacks] = []
    lines: list[HotLine] = []
    beside: dict[ThreadKey, dict[Seen, int]] = {}
    known: dict[int, Role] = {}
    for pid, threads in _by_process(merged).items():
        lead = lead_thread(threads)
        main = threads.get(lead, {}) if lead is not None else {}
        role = roles.get(pid) or ("loader-worker" if any(seen.worker for seen in main) else "other")
        known[pid] = role
        evaluating = evaluation_functions((seen.frames, seen.phase, count) for seen, count in main.items())
        samples = sum(main.values())
        for key, stacks in threads.items():
            phases = {seen: _phase(seen, evaluating if key == lead else frozenset()) for seen in stacks}
            by_window = [digest.get(key, {}) for digest in digests]
            whole = samples or sum(stacks.values())
            weight = 1.0
            if key == lead:
                taken = sum(merged[key].values())
                weight = weight_of_moving(stacks, missing_of(windows, digests, pid, taken))
                processes.append(_process(pid, role, key.thread, stacks, phases, weight=weight))
            else:
                beside[key] = stacks
            lines += _hot_lines(key, role, stacks, phases, whole, by_window=by_window, weight=weight)
    if not processes and not lines:
        return None
    return Stacks(
        seconds=sum(window.seconds for window in windows),
        samples=sum(sum(stacks.values()) for stacks in merged.values()),
        processes=tuple(sorted(processes, key=lambda process: (_order(process.role), process.pid))),
        lines=tuple(sorted(lines, key=lambda line: (-line.samples, line.pid, line.file, line.line))[:MOST_LINES]),
        threads=thread_shares(windows, merged),
        trees=thread_trees(beside, known),
    )


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


def _phase(seen: Seen, evaluating: frozenset[Function]) -> Phase:
    if seen.worker or not any(frame.user and (frame.file, frame.function) in evaluating for frame in seen.frames):
        return seen.phase
    return phase_of(seen.frames, evaluating)


def _process(
    pid: int, role: Role, thread: str, stacks: Mapping[Seen, int], phases: Mapping[Seen, Phase], *, weight: float
) -> ProcessStacks:
    samples = sum(stacks.values())
    worker = role == "loader-worker" or all(seen.worker for seen in stacks)
    idle = sum(count for seen, count in stacks.items() if seen.idle)
    return ProcessStacks(
        pid=pid,
        role=role,
        samples=samples,
        phases=Phases() if worker else _shares(stacks, phases, weight),
        tree=call_tree((seen.frames, count) for seen, count in stacks.items()),
        idle=idle / samples if worker and samples else None,
        thread=thread,
    )


def _shares(stacks: Mapping[Seen, int], phases: Mapping[Seen, Phase], weight: float) -> Phases:
    """Shares of the main thread's samples. What only now and then shows on a stack is None when it never did.

    A sample of a stack that moves counts `weight` times, see `unread`.
    """
    counts: dict[Phase, float] = defaultdict(float)
    for seen, count in stacks.items():
        counts[phases[seen]] += count * weight if moves(seen) else count
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
        outside=(counts["outside"] + counts["evaluation"] + counts["save"]) / samples,
    )


def _hot_lines(
    key: ThreadKey,
    role: Role,
    stacks: Mapping[Seen, int],
    phases: Mapping[Seen, Phase],
    main_samples: int,
    *,
    by_window: Sequence[Mapping[Seen, int]],
    weight: float,
) -> list[HotLine]:
    """Lines of one thread with their samples, by line, phase and activity. For `weight` see `unread`."""
    whole = main_samples + (weight - 1.0) * sum(count for seen, count in stacks.items() if moves(seen))
    groups: dict[tuple[str, int, str, Phase, str], list[tuple[int, Seen]]] = {}
    for seen, count in stacks.items():
        if seen.line is not None and not seen.idle:
            place = seen.line.file, seen.line.line, seen.line.function, phases[seen], seen.activity
            groups.setdefault(place, []).append((count, seen))
    found = []
    for (file, line, function, phase, activity), members in groups.items():
        samples = sum(count for count, _ in members)
        heaviest = max(members, key=lambda member: member[0])[1]
        found.append(
            HotLine(
                pid=key.pid,
                role=role,
                file=file,
                line=line,
                function=function,
                phase=phase,
                activity=activity,
                samples=samples,
                share=samples * (weight if moves(heaviest) else 1.0) / whole,
                text=heaviest.line.text if heaviest.line else None,
                thread=key.thread,
                via=heaviest.via,
                loop=heaviest.loop,
                seen_in=tuple(
                    number for number, window in enumerate(by_window) if any(seen in window for _, seen in members)
                ),
            )
        )
    return found
