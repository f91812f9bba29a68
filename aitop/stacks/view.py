"""Merges windows of sampled stacks into the Stacks of a Snapshot: lines with phase and activity, call trees, threads.

Pure, apart from a cache of the windows and stacks that were read before.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from aitop.model.host import Role
from aitop.model.ledger import RESTS, Activity, Position
from aitop.model.phases import TIMED_ALONE
from aitop.model.snapshot import (
    HotLine,
    Lineless,
    Phases,
    ProcessStacks,
    Series,
    Stacks,
    ThreadPool,
    ThreadShare,
    ThreadTree,
)
from aitop.model.stacks import Flow, Frame, Look, StackCount, StackWindow, ThreadState
from aitop.model.steps import Caller
from aitop.stacks.activity import Parts, looks_of, parts_of_groups
from aitop.stacks.awaits import awaited
from aitop.stacks.call_tree import call_tree
from aitop.stacks.libraries import Phase, State, calls_model
from aitop.stacks.pool import Digest, Place, TakenAs, ThreadKey, alike, pooled, short_threads, summed, threads_at_once
from aitop.stacks.position import STEPPING, StepFunctions
from aitop.stacks.reading import Seen, read_stack

ROLES: tuple[Role, ...] = ("rank", "loader-worker", "launcher", "helper", "other")
MOST_LINES = 200
MOST_TREES = 48
# Both the length of a history and the size of the cache here: a cached reading keeps its window alive, so a larger
# cache would hold windows that the history has dropped.
MOST_WINDOWS = 40
# A library function below a line is reported if at least LEAST_BELOW of the line's samples end in it; and the one that
# most samples pass through if less than MOST_BELOW end in those.
LEAST_BELOW, MOST_BELOW = 0.2, 0.5
# Phases with a field of their own in `Phases`; all others count as `outside`.
INSIDE: frozenset[Phase] = frozenset({"data_wait", "transfer", "forward", "backward", "optimizer", "communication"})
# A main thread that was seen in no step, and of whose samples at most this share are not waits, may lose the lead.
_MAIN_WORKS = 0.1


class Group(NamedTuple):
    """The key by which stacks are grouped: a line in one phase, position and state.

    `line` is None without user code on the stack, and for an idle DataLoader worker. `closure`: in the closure of an
    optimizer's step. `apart`: in one of several calls of the model for a request, which do not need each other.
    """

    line: Frame | None
    phase: Phase
    position: Position | None
    state: State | None
    work: str | None
    closure: bool = False
    apart: bool = False


_Known = tuple[dict[int, Role], dict[int, tuple[Caller, ...]]]


class StackView:
    """Merges windows into Stacks, and makes series of them with a value for each window. Thread-safe."""

    def __init__(self) -> None:
        self._reader = _Reader()
        self._lock = threading.Lock()
        self._last: tuple[tuple[StackWindow, ...], _Known, Stacks] | None = None

    def view(
        self,
        windows: Sequence[StackWindow],
        roles: Mapping[int, Role],
        since: float,
        callers: Mapping[int, tuple[Caller, ...]] = MappingProxyType({}),
    ) -> Stacks | None:
        """Merge the windows taken after `since` (monotonic seconds); None if nothing was sampled.

        `callers` are the lines below which the hook saw the model called and updated, by pid.
        """
        recent = tuple(window for window in windows if window.time > since)
        if not recent:
            return None
        known = dict(roles), dict(callers)
        with self._lock:
            last = self._last
            if last is not None and last[1] == known and [*map(id, last[0])] == [*map(id, recent)]:
                return last[2]
            stacks = _merged_view([self._reader.read(window) for window in recent], *known)
            if stacks is not None:
                self._last = recent, known, stacks
            return stacks

    def idle_over_time(self, windows: Iterable[StackWindow], pids: Collection[int]) -> dict[int, Series]:
        """By pid, the share (0..1) of samples in each window in which the main thread had nothing to fetch."""
        points: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for window in windows:
            for key, stacks in self._digest(window).items():
                if key.main and key.pid in pids and stacks:
                    idle = sum(count for seen, count in stacks.items() if seen.idle)
                    points[key.pid].append((window.time, idle / stacks.total()))
        return {
            pid: Series(times=tuple(t for t, _ in each), values=tuple(v for _, v in each))
            for pid, each in points.items()
        }

    def phases_in(self, window: StackWindow) -> dict[int, set[Phase]]:
        """By pid, the phases in which any thread was sampled in `window`, other than while it imports."""
        phases: dict[int, set[Phase]] = defaultdict(set)
        for key, stacks in self._digest(window).items():
            phases[key.pid].update(seen.phase for seen in stacks if not seen.importing)
        return phases

    def lines_in(self, window: StackWindow, pid: int) -> Counter[str]:
        """Count the samples of the lead thread by "FILE:LINE", those without user code under "".

        Samples of imports are left out.
        """
        threads = {key: stacks for key, stacks in self._digest(window).items() if key.pid == pid}
        lead = lead_thread(threads, window.states)
        lines: Counter[str] = Counter()
        for seen, count in threads[lead].items() if lead is not None else ():
            if not seen.importing:
                lines[f"{seen.line.file}:{seen.line.line}" if seen.line is not None else ""] += count
        return lines

    def _digest(self, window: StackWindow) -> Digest:
        with self._lock:
            return self._reader.read(window).digest


class _Read(NamedTuple):
    """A window with its stacks read: sample counts by thread and distinct stack, for the window and for each look."""

    window: StackWindow
    digest: Digest
    looks: tuple[tuple[Look, Digest], ...]


class _Reader:
    """Reads windows and caches both windows and stacks. Equal stacks are one object, in all windows.

    A stack is forgotten with the last window that shows it.
    """

    def __init__(self) -> None:
        self._stacks = weakref.WeakValueDictionary[tuple[Frame, ...], Seen]()
        self._windows: dict[int, _Read] = {}

    def read(self, window: StackWindow) -> _Read:
        """The window with its stacks read."""
        cached = self._windows.get(id(window))
        # The cache holds the window itself, so that its id cannot be reused for another window.
        if cached is not None and cached.window is window:
            return cached
        while len(self._windows) >= MOST_WINDOWS:
            del self._windows[next(iter(self._windows))]
        looks = tuple((look, self._counted(window, look.stacks)) for look in window.looks)
        read = self._windows[id(window)] = _Read(window, self._counted(window, window.stacks), looks)
        return read

    def _counted(self, window: StackWindow, counts: Iterable[StackCount]) -> Digest:
        digest: Digest = defaultdict(Counter)
        for stack in counts:
            frames = tuple(window.frames[index] for index in stack.frames)
            seen = self._stacks.get(frames)
            if seen is None:
                seen = self._stacks[frames] = read_stack(frames)
            # A stack that changed while it was read may show nothing but our hook.
            if not seen.frames:
                continue
            digest[ThreadKey(stack.pid, stack.thread, stack.main)][seen] += stack.count
        return digest


def _merged_view(
    reads: Sequence[_Read], roles: Mapping[int, Role], callers: Mapping[int, tuple[Caller, ...]]
) -> Stacks | None:
    """Merge the windows into one Stacks; None without a sample, or with neither a lead thread nor a user line."""
    windows = [read.window for read in reads]
    digests, looks, states_in = _as_told(reads)
    states = [state for own in states_in for state in own]
    states_of = _by_thread(states)
    states_of_windows = [_by_thread(own) for own in states_in]
    merged = summed(digests)
    if not merged:
        return None
    processes: list[ProcessStacks] = []
    lines: list[HotLine] = []
    beside: Digest = {}
    known: dict[int, Role] = {}
    flows = _flows(windows)
    collecting = frozenset(_collecting(flows))
    for pid, threads in _by_process(merged).items():
        lead = lead_thread(threads, [state for state in states if state.pid == pid])
        main = threads[lead] if lead is not None else Counter[Seen]()
        role = _role(roles.get(pid), main)
        known[pid] = role
        of_process = [(look, digest) for look, digest in looks if look.pid == pid]

        def account(keys: Sequence[ThreadKey], at_once: float = 1.0) -> _Account:
            stacks = _together(keys, threads)  # noqa: B023
            steps = StepFunctions(stacks.items(), flows, callers.get(keys[0].pid, ()))
            groups = _groups(stacks, steps, collecting)
            of_threads = [(look, _together(keys, digest)) for look, digest in of_process]  # noqa: B023
            names = dict.fromkeys((key.pid, key.thread) for key in keys)
            own_states = ([state for name in names for state in own.get(name, ())] for own in states_of_windows)
            by_window = [_together(keys, digest) for digest in digests]
            looked = looks_of(of_threads, zip(own_states, by_window, strict=True), at_once)
            parts = parts_of_groups(groups, looked, {group: group.state for group in groups})
            return _Account(keys[0], groups, {group: sum(groups[group].values()) for group in groups}, parts, by_window)

        peers = alike(threads, lead)
        beside |= {key: stacks for key, stacks in threads.items() if key not in peers}
        accounts = [account([key]) for key in threads if key not in peers]
        samples = main.total()
        if lead is not None:
            at_once = threads_at_once(peers, threads)
            if at_once is not None:
                samples = round(sum(threads[key].total() for key in peers) / at_once)
                one, own = _as_one_worker(account(peers, at_once), role, peers, samples)
            else:
                one, own = account([lead]), None
            processes.append(_process(one, role, samples, own))
            accounts.append(one)
        for each in accounts:
            whole_time = samples if lead is not None else threads[each.key].total()
            for group, members in each.groups.items():
                # What libraries do in an event loop beside the lead thread has no line of the user's to stand at.
                serves = each.key not in peers and _heaviest(members).handler == "event-loop"
                line = _shared(members) if group.line is None and serves else group.line
                if line is not None:
                    lines.append(_hot_line(each.key, role, group, each, line, samples=whole_time))
    if not processes and not lines:
        return None
    # A server may have hundreds of waiting threads: lines of lead threads go first, so that those cannot displace them.
    leads = {(process.pid, process.thread) for process in processes}
    kept = sorted(lines, key=lambda line: ((line.pid, line.thread) not in leads, -line.samples))[:MOST_LINES]
    return Stacks(
        seconds=sum(window.seconds for window in windows),
        samples=sum(stacks.total() for stacks in merged.values()),
        processes=tuple(sorted(processes, key=lambda process: (ROLES.index(process.role), process.pid))),
        lines=tuple(sorted(kept, key=lambda line: (-line.samples, line.pid, line.file, line.line))),
        threads=_thread_shares(states_of, looks, merged),
        trees=_trees(beside, known),
    )


def _as_told(reads: Sequence[_Read]) -> tuple[list[Digest], list[tuple[Look, Digest]], list[list[ThreadState]]]:
    """The samples of each window, all looks, and the states of threads in each window.

    Short threads are taken together, and waits of event loops count for the lines that await.
    """
    digests, looks = [read.digest for read in reads], [look for read in reads for look in read.looks]
    states = [[*read.window.states] for read in reads]
    if short := short_threads([read.window for read in reads], digests):
        digests = [summed([digest], short) for digest in digests]
        looks = [(look, summed([digest], short)) for look, digest in looks]
        states = [[_renamed(state, short) for state in own] for own in states]
    if moved := {key: to for key, stacks in summed(digests).items() if (to := awaited(stacks))}:
        digests = [_moved(digest, moved) for digest in digests]
        looks = [(look, _moved(digest, moved)) for look, digest in looks]
    return digests, looks, states


def _by_thread(states: Iterable[ThreadState]) -> dict[tuple[int, str], list[ThreadState]]:
    """The states by pid and name of the thread."""
    by_thread: dict[tuple[int, str], list[ThreadState]] = defaultdict(list)
    for state in states:
        by_thread[state.pid, state.thread].append(state)
    return by_thread


def _renamed(state: ThreadState, taken_as: TakenAs) -> ThreadState:
    """The state of a thread under the name of the one that it is taken as."""
    one = taken_as.get(ThreadKey(state.pid, state.thread, state.main))
    return state if one is None else replace(state, thread=one.thread)


def _flows(windows: Sequence[StackWindow]) -> dict[str, list[Flow]]:
    """The newest dataflow of each function, by file."""
    newest = {(flow.file, flow.first): flow for window in windows for flow in window.flows}
    by_file: dict[str, list[Flow]] = {}
    for flow in newest.values():
        by_file.setdefault(flow.file, []).append(flow)
    return by_file


def _collecting(flows: Mapping[str, Sequence[Flow]]) -> Iterator[tuple[str, int]]:
    """Yield (file, line) for each line that calls the garbage collector."""
    for file, functions in flows.items():
        for statement in (statement for flow in functions for statement in flow.statements if statement.collects):
            yield from ((file, line) for line in range(statement.first, statement.last + 1))


def _by_process(merged: Digest) -> dict[int, Digest]:
    """The threads of each process. Samples of imports are left out, unless a process has no others."""
    steady: dict[int, Digest] = defaultdict(dict)
    starting: dict[int, Digest] = defaultdict(dict)
    for key, stacks in merged.items():
        starting[key.pid][key] = stacks
        rest = Counter({seen: count for seen, count in stacks.items() if not seen.importing})
        if rest:
            steady[key.pid][key] = rest
    return {**starting, **steady}


def lead_thread(threads: Digest, states: Iterable[ThreadState] = ()) -> ThreadKey | None:
    """Return the lead thread of a process, the one that makes its steps. `states` are those of its threads.

    That is the main thread, unless it was seen in no step, and either other threads have more samples in steps than it
    has at work, or it does hardly anything while others work. None if the main thread was not sampled and no other
    thread makes steps.
    """
    main = next((key for key in threads if key.main), None)
    others = {key: _stepping(stacks) for key, stacks in threads.items() if not key.main}
    least = _MAIN_WORKS * threads[main].total() if main is not None else 0.0
    if main is not None:
        # Of a thread that polls sockets or waits for messages, as a server's does, the stacks may not show that it
        # waits. The kernel does.
        own = min(_own_work(threads[main]), threads[main].total() * (1.0 - _for_others(states)))
        if _stepping(threads[main]) or own > max(least, sum(others.values())):
            return main
    most = max(others, key=lambda key: (others[key], _at_work(threads[key])), default=None)
    if most is None or others[most]:
        return most or main
    # No thread was seen in a step: it may be too long for a sample to show the model yet, or there are none. Threads
    # that were started with the same function count together: each of many connections has little to do.
    work = sum(_at_work(threads[key]) for key in alike(threads, most))
    return most if main is not None and work > least else main


def _for_others(states: Iterable[ThreadState]) -> float:
    """The share (0..1) of the time in which the kernel says that the main thread waited to be sent something."""
    own = [state for state in states if state.main and state.asked]
    asked = sum(state.asked for state in own)
    return sum(state.waits.get(kind, 0) for state in own for kind in ("network", "queue")) / asked if asked else 0.0


def _stepping(stacks: Counter[Seen]) -> int:
    return sum(count for seen, count in stacks.items() if seen.phase in STEPPING and not seen.importing)


def _own_work(stacks: Counter[Seen]) -> int:
    """The number of samples that are no known wait, nor in an event loop: that one works for the requests of others."""
    return sum(count for seen, count in stacks.items() if not _waits(seen) and seen.handler != "event-loop")


def _busy_samples(stacks: Counter[Seen]) -> int:
    """The number of samples that are no known wait."""
    return sum(count for seen, count in stacks.items() if not _waits(seen))


def _busy_share(stacks: Counter[Seen]) -> float:
    """The share (0..1) of samples that are no known wait."""
    return _busy_samples(stacks) / stacks.total() if stacks else 0.0


def _at_work(stacks: Counter[Seen]) -> int:
    """The number of samples on user lines that are no known wait."""
    return sum(count for seen, count in stacks.items() if seen.line is not None and not _waits(seen))


def _waits(seen: Seen) -> bool:
    return seen.state in RESTS or seen.work == "network"


def _thread_shares(
    states_of: Mapping[tuple[int, str], Sequence[ThreadState]], looks: Sequence[tuple[Look, Digest]], merged: Digest
) -> tuple[ThreadShare, ...]:
    """Make a ThreadShare of every sampled thread, by pid, the main thread first, then by time holding the GIL.

    `gil` is None for processes without a GIL look in these windows.
    """
    asked: Counter[int] = Counter()
    held: Counter[tuple[int, str]] = Counter()
    for look, threads in looks:
        if look.kind == "gil":
            asked[look.pid] += look.asked
            for key, stacks in threads.items():
                held[key.pid, key.thread] += stacks.total()
    shares = []
    for key, stacks in merged.items():
        own = states_of.get((key.pid, key.thread), ())
        looked = sum(state.asked for state in own)
        at_work = sum(state.at_work * state.asked for state in own) / looked if looked else _busy_share(stacks)
        gil = min(1.0, held[key.pid, key.thread] / asked[key.pid]) if asked[key.pid] else None
        share = ThreadShare(
            pid=key.pid, thread=key.thread, samples=stacks.total(), active=at_work, gil=gil, ran=_had_core(own)
        )
        shares.append((not key.main, share))
    return tuple(share for _, share in sorted(shares, key=lambda pair: (pair[1].pid, pair[0], -(pair[1].gil or 0.0))))


def _had_core(states: Sequence[ThreadState]) -> float | None:
    """The share (0..1) of its runnable time that a thread had a core; None if unknown, or if it was never runnable."""
    known = [state for state in states if state.delayed is not None]
    wanted = sum(state.on_core * state.asked for state in known)
    return 1.0 - sum((state.delayed or 0.0) * state.asked for state in known) / wanted if wanted > 0.0 else None


def _role(known: Role | None, main: Mapping[Seen, int]) -> Role:
    """The role of a process: `known` from how it was started, unless its stacks tell whether it works for a loader.

    Any child of multiprocessing looks like a loader's worker from outside.
    """
    loads = any(seen.worker for seen in main)
    if known == "loader-worker" and main and not loads:
        return "other"
    return known or ("loader-worker" if loads else "other")


def _trees(threads: Digest, roles: Mapping[int, Role]) -> tuple[ThreadTree, ...]:
    """The call trees of the MOST_TREES of these threads with the most samples that are no known wait, busiest first."""
    busiest = sorted(threads.items(), key=lambda thread: (-_busy_samples(thread[1]), thread[0].pid, thread[0].thread))
    return tuple(
        ThreadTree(pid=key.pid, role=roles.get(key.pid, "other"), thread=key.thread, samples=stacks.total(), tree=tree)
        for key, stacks in busiest[:MOST_TREES]
        if (tree := call_tree((seen.frames, count) for seen, count in stacks.items())) is not None
    )


class _Account(NamedTuple):
    """What was seen of one thread, or of a pool as one worker: stacks by group, samples that count, and activities.

    `key` is the thread, of a pool the first. `by_window` has the stacks of each window.
    """

    key: ThreadKey
    groups: dict[Group, dict[Seen, int]]
    counts: Mapping[Group, float]
    parts: Mapping[Group, Parts]
    by_window: Sequence[Counter[Seen]]


def _as_one_worker(
    account: _Account, role: Role, threads: Collection[ThreadKey], moments: int
) -> tuple[_Account, ThreadPool]:
    """Return the account of a pool's threads as that of one worker with `moments` samples, and the pool."""
    places = {
        group: Place(
            group.phase,
            max(account.parts[group], key=lambda activity: account.parts[group][activity]),
            group.work,
            _heaviest(stacks).handler,
            account.counts[group],
        )
        for group, stacks in account.groups.items()
    }
    own, counts = pooled(threads, places, moments)
    left = {group: stacks for group, stacks in account.groups.items() if counts[group]}
    # In the remaining moments no thread of the pool is alive, because there is nothing to do: the worker is idle.
    rest = Group(None, "outside", None, "wait-queue", None)
    counts[rest] = counts.get(rest, 0.0) + max(0.0, moments - sum(counts.values()))
    one = _Account(account.key, left, counts, {**account.parts, rest: {"wait-queue": 1.0}}, account.by_window)
    standing = [group for group, place in places.items() if group.line is not None and place.in_line]
    whole = sum(places[group].samples for group in standing)
    lines = (
        _hot_line(account.key, role, group, account, group.line, samples=whole)
        for group in standing
        if group.line is not None
    )
    return one, replace(own, lines=tuple(sorted(lines, key=lambda line: -line.share)))


def _together(keys: Sequence[ThreadKey], digest: Digest) -> Counter[Seen]:
    """The stacks of these threads together."""
    if len(keys) == 1:
        return digest.get(keys[0], Counter())
    stacks: Counter[Seen] = Counter()
    for key in keys:
        stacks.update(digest.get(key, Counter()))
    return stacks


def _moved(digest: Digest, to: Mapping[ThreadKey, Mapping[Seen, Seen]]) -> Digest:
    """The same counts; of the threads in `to`, those of some stacks are at other ones."""
    changed: Digest = dict(digest)
    for key, others in to.items():
        counts: Counter[Seen] = Counter()
        for seen, count in digest.get(key, {}).items():
            counts[others.get(seen, seen)] += count
        if counts:
            changed[key] = counts
    return changed


def _heaviest(stacks: Mapping[Seen, int]) -> Seen:
    return max(stacks, key=lambda seen: stacks[seen])


def _process(account: _Account, role: Role, samples: int, own: ThreadPool | None) -> ProcessStacks:
    """Make the ProcessStacks of the account of the lead thread, or of the pool that this thread belongs to."""
    stacks: dict[Seen, float] = {}
    for group, members in account.groups.items():
        part = account.counts[group] / sum(members.values())
        stacks |= {seen: count * part for seen, count in members.items()}
    loads = all(seen.worker for seen in stacks)
    idle = sum(count for seen, count in stacks.items() if seen.idle)
    return ProcessStacks(
        pid=account.key.pid,
        role=role,
        samples=samples,
        phases=Phases() if loads else _phases(account.counts),
        tree=call_tree((seen.frames, round(count)) for seen, count in stacks.items()),
        idle=idle / samples if samples and (loads or role == "loader-worker") else None,
        thread=account.key.thread,
        by_window=tuple(sum(window.values()) for window in account.by_window),
        lineless=_lineless(account, samples),
        pool=own,
    )


def _phases(of_groups: Mapping[Group, float]) -> Phases:
    """Each phase's share of the samples. Phases that stacks often miss are None, not 0, if they were never seen."""
    counts: dict[Phase, float] = defaultdict(float)
    for group, count in of_groups.items():
        counts[group.phase] += count
    samples = sum(counts.values())
    if not samples:
        return Phases()
    rare: tuple[Phase, ...] = ("transfer", "communication")
    return Phases(
        **{phase: counts[phase] / samples for phase in INSIDE if counts[phase] or phase not in rare},
        outside=sum(count for phase, count in counts.items() if phase not in INSIDE) / samples,
        others={phase.key: counts[phase.key] / samples for phase in TIMED_ALONE if counts[phase.key]},
    )


def _groups(
    stacks: Mapping[Seen, int], steps: StepFunctions, collecting: Collection[tuple[str, int]]
) -> dict[Group, dict[Seen, int]]:
    """Group the stacks of a thread. `collecting` has the lines that call the garbage collector."""
    groups: dict[Group, dict[Seen, int]] = {}
    for seen, count in stacks.items():
        collects = seen.leaf and seen.line is not None and (seen.line.file, seen.line.line) in collecting
        phase = steps.phase(seen)
        position = steps.position(seen) if phase in ("outside", "environment") else None
        state = "collect" if collects else seen.state
        apart = phase == "forward" and steps.apart(seen)
        group = Group(None if seen.idle else seen.line, phase, position, state, seen.work, seen.closure, apart)
        groups.setdefault(group, {})[seen] = count
    return groups


def _lineless(account: _Account, samples: int) -> tuple[Lineless, ...]:
    """The time without a user line on the stack, as shares of `samples`, the largest first."""
    shares: dict[tuple[Phase, Activity], float] = defaultdict(float)
    stacks: dict[Phase, dict[Seen, int]] = defaultdict(dict)
    for group, count in account.counts.items():
        if group.line is None:
            stacks[group.phase] |= account.groups.get(group, {})
            for activity, part in account.parts.get(group, {}).items():
                shares[group.phase, activity] += part * count / samples
    places = {phase: _shared(own) for phase, own in stacks.items()}
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return tuple(Lineless(phase, activity, share, places[phase]) for (phase, activity), share in ordered if share > 0.0)


def _shared(stacks: Mapping[Seen, int]) -> Frame | None:
    """The innermost function that most of these samples have on their stack below the same callers, at its usual line.

    None where not even the outermost one is that of most.
    """
    most, depth, place = 0.5 * sum(stacks.values()), 0, None
    left = [(seen.frames, count) for seen, count in stacks.items()]
    while left:
        met: dict[tuple[str, str], Counter[Frame]] = {}
        for frames, count in left:
            if depth < len(frames):
                met.setdefault((frames[depth].file, frames[depth].function), Counter())[frames[depth]] += count
        function = max(met, key=lambda function: met[function].total(), default=None)
        if function is None or met[function].total() <= most:
            break
        place = met[function].most_common(1)[0][0]
        left = [
            (frames, count)
            for frames, count in left
            if depth < len(frames) and (frames[depth].file, frames[depth].function) == function
        ]
        depth += 1
    return place


def _hot_line(key: ThreadKey, role: Role, group: Group, account: _Account, line: Frame, *, samples: float) -> HotLine:
    """What one thread does in a group of its stacks, at `line`, with its share of `samples`."""
    stacks, doing = account.groups[group], account.parts.get(group, {})
    heaviest = _heaviest(stacks)
    count = account.counts[group]
    return HotLine(
        pid=key.pid,
        role=role,
        file=line.file,
        line=line.line,
        function=line.function,
        phase=group.phase,
        position=group.position,
        activity=max(doing, key=lambda activity: doing[activity], default="python"),
        parts=tuple(sorted(doing.items(), key=lambda part: -part[1])),
        work=group.work,
        samples=round(count),
        share=count / samples,
        text=line.text,
        thread=key.thread,
        via=heaviest.via,
        callers=len(heaviest.callers),
        by_window=tuple(sum(window.get(seen, 0) for seen in stacks) for window in account.by_window),
        handler=heaviest.handler,
        below=_below(stacks, line),
        closure=group.closure,
        apart=group.apart,
    )


def _below(stacks: Mapping[Seen, int], line: Frame) -> tuple[tuple[Frame, float], ...]:
    """Library functions below `line` in which at least LEAST_BELOW of these samples end, with their shares.

    The largest comes first. Where most samples end in others, the innermost function that most of them pass through
    instead.
    """
    ends: dict[tuple[str, str], Counter[Frame]] = {}
    for seen, count in stacks.items():
        if seen.end is not None:
            ends.setdefault((seen.end.file, seen.end.function), Counter())[seen.end] += count
    whole = sum(stacks.values())
    shares = [(lines.most_common(1)[0][0], sum(lines.values()) / whole) for lines in ends.values()]
    large = sorted((pair for pair in shares if pair[1] >= LEAST_BELOW), key=lambda pair: -pair[1])
    passed = _shared(stacks) if ends and sum(share for _, share in large) < MOST_BELOW else None
    if (
        passed is None
        or passed.user
        or calls_model(passed)
        or (passed.file, passed.function) == (line.file, line.function)
    ):
        return tuple(large)
    way = (passed.file, passed.function)
    through = sum(n for seen, n in stacks.items() if any((one.file, one.function) == way for one in seen.frames))
    return ((passed, through / whole),)
