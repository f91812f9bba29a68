"""Detects that no rank of a job moves, and tells where each of them stands. Pure.

Whether a rank moves is told by the kernel's counters of its main thread (CPU time and context switches), so this also
works where the target never runs another Python instruction. Where it stands is told by stacks, and which pause is too
long by the steps that the hook saw before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, islice

from msgspec.structs import replace

from aitop.engine.history import History
from aitop.model.host import HostSample, ProcessSample
from aitop.model.ranks import Doing, Standing, Standstill
from aitop.model.snapshot import Snapshot
from aitop.model.stacks import Frame, StackDump
from aitop.stacks.groups import below_user, own_frames
from aitop.stacks.libraries import meaning
from aitop.stacks.reading import read_stack

# A main thread stands still with at most this many switches a second and this much of a core. Not 0: a wait with a
# time-out of seconds wakes now and then, and looking at a thread wakes it, too.
STILL_SWITCHES, STILL_CORES = 3.0, 0.03
# Seconds without movement: after LOOK all stacks are read; a standstill is reported after FIRST where every rank's
# stack is known, after BLIND where not, and after SLEEPING where a rank sleeps on purpose.
LOOK_SECONDS, FIRST_SECONDS, BLIND_SECONDS, SLEEPING_SECONDS = 2.0, 4.0, 6.0, 60.0
OF_LONGEST = 1.5
# In these the kernel has a thread wait for a child, or for what one writes to a pipe or reads from it. A child works if
# it uses so much of a core.
CHILD_CHANNELS = frozenset({"do_wait", "pipe_read", "pipe_write", "pipe_wait", "anon_pipe_read", "anon_pipe_write"})
CHILD_CORES = 0.1
# This file wraps the collectives: the call inside the wrapper is the one that people know.
_WRAPPER = "/torch/distributed/c10d_logger.py"
_SERVING = re.compile(r"/(?:asyncio/\w+|socketserver|http/server|grpc/\w+|uvicorn/\w+)\.py$")


def wants_look(history: History, now: float, looked: float) -> bool:
    """Whether nothing has moved for so long that all stacks ought to be looked at.

    `looked` is when the last look began that was asked for. One that could not read any stack is repeated more and more
    seldom.
    """
    still = standing_for(history, now)
    if still < LOOK_SECONDS:
        return False
    since, seen = now - still, history.dump.time if history.dump is not None else 0.0
    pause = history.reach.again if seen >= looked else max(history.reach.again, looked - since)
    last = max(looked, seen)
    return last < since or now - last > pause


def standing_for(history: History, now: float) -> float:
    """Seconds for which nothing has moved; 0 where something does."""
    since = _still_since(history, now)
    return 0.0 if since is None else max(0.0, now - since)


def standstill(history: History, now: float) -> Standstill | None:
    """Where all ranks stand; None while one of them moves, and as long as such a pause is normal for this run."""
    seconds, host, dump = standing_for(history, now), numbered(history), history.dump
    if seconds < LOOK_SECONDS or host is None:
        return None
    timed = [hook.steps for hook in history.hooks.values() if len(hook.steps) > 1]
    usual = max((step.seconds for steps in timed for step in steps), default=None)
    ranks, workers = _standing(
        host,
        dump if dump is not None and dump.time >= now - seconds else None,
        {pid: hook.steps[-1].index for pid, hook in history.hooks.items() if hook.steps},
        {pid: hook.sequence for pid, hook in history.hooks.items()},
    )
    gone = _gone(history, ranks, host)
    if _may_be_idle(history, host, ranks, gone):
        return None
    known = all(standing.doing is not None for standing in ranks)
    limit = FIRST_SECONDS if known else BLIND_SECONDS
    if usual is not None:
        limit = max(limit, OF_LONGEST * usual)
    stepped = usual is not None or any(standing.pid in history.stepped for standing in ranks)
    # Without the hook it is not known how long the run's own pauses usually are.
    alone = usual is None and bool(ranks) and all(standing.doing == "own" for standing in ranks)
    if alone or any(standing.doing == "sleeping" for standing in (*ranks, *workers)):
        limit = max(limit, SLEEPING_SECONDS)
    if seconds < limit or any(standing.doing == "serving" for standing in ranks) or not _waits(ranks, gone, stepped):
        return None
    world, notes = world_size(history, host), history.exchange_notes
    elsewhere = max(0, world - len(ranks) - len(gone))
    return Standstill(
        seconds=seconds,
        usual=usual,
        ranks=ranks,
        workers=workers,
        gone=gone,
        elsewhere=elsewhere,
        notes=notes if notes is not None and notes.time >= now - seconds else None,
    )


def _may_be_idle(history: History, host: HostSample, ranks: Sequence[Standing], gone: Sequence[int]) -> bool:
    """Whether the processes may simply have no request to answer: none was seen to train.

    `stalled` looks at requests that are under way. Where no serving software is known, a wait for other ranks or for a
    loader is no lack of requests.
    """
    made = [hook.steps[-1].kind for hook in history.hooks.values() if hook.steps]
    if history.updated or "train" in made:
        return False
    meets = any(standing.doing == "collective" for standing in ranks)
    if gone and meets:
        return False
    # Workers of a server come and go, too.
    waits = bool(gone) or meets or any(standing.doing == "loading" for standing in ranks)
    return host.engine is not None or (not waits and bool(history.stepped or made))


def _waits(ranks: Sequence[Standing], gone: Sequence[int], stepped: bool) -> bool:
    """Whether the ranks wait for something that should come, rather than having nothing to do.

    `stepped`: they were seen to make steps before.
    """
    if gone or any(standing.doing in ("collective", "loading") for standing in ranks):
        return True
    if all(standing.doing is None for standing in ranks):
        return len(ranks) > 1
    return stepped


def _still_since(history: History, now: float) -> float | None:
    """The time since when no rank and no worker has moved; None where any of them moves, or nothing is known.

    A sample of the host covers the time since the sample before it.
    """
    since: float | None = None
    before = chain(islice(reversed(history.hosts), 1, None), [None])
    for host, earlier in zip(reversed(history.hosts), before, strict=False):
        alive = [process for process in host.processes if process.state != "Z"]
        working = [process for process in alive if process.role in ("rank", "loader-worker")]
        ranked = any(process.role == "rank" for process in working)
        if not ranked or not all(_is_still(process, host, history) for process in working):
            break
        since = earlier.time if earlier is not None else host.time
    stepped = max((hook.steps[-1].end for hook in history.hooks.values() if hook.steps), default=None)
    return since if since is None or stepped is None else max(since, stepped)


def _is_still(process: ProcessSample, host: HostSample, history: History) -> bool:
    """Whether the main thread did nothing since the sample before `host`, nor did a child that it waits for.

    A spinning thread is judged by its stacks.
    """
    moved = (process.read_bytes or 0.0) + (process.write_bytes or 0.0)
    if process.voluntary_switches is None or moved > 0:
        return False
    if process.state in ("T", "t"):
        return True
    # A kernel without schedstat does not count the CPU time of the main thread alone.
    used = process.cpu if process.main_cpu is None else process.main_cpu
    if process.voluntary_switches <= STILL_SWITCHES and used is not None and used <= STILL_CORES:
        return (process.cpu or 0.0) <= 1.0 and not _has_working_child(process, host)
    since = _spins_since(process.pid, host, history)
    return since is not None and host.time > since


def _has_working_child(process: ProcessSample, host: HostSample) -> bool:
    """Whether the main thread waits for a process below it that is at work, such as an evaluation that it started."""
    if process.channel not in CHILD_CHANNELS:
        return False
    below = {process.pid}
    while more := {each.pid for each in host.processes if each.ppid in below} - below:
        below |= more
    below.remove(process.pid)
    return any((each.cpu or 0.0) >= CHILD_CORES for each in host.processes if each.pid in below)


def _spins_since(pid: int, host: HostSample, history: History) -> float | None:
    """Since when the main thread spins in a wait for other ranks; None where it does not.

    That is the time for which it has had one and the same stack, of at least two windows. Only where there are GPUs.
    """
    if not history.gpus or world_size(history, host) < 2:
        return None
    same: tuple[Frame, ...] | None = None
    since, count = None, 0
    for window in reversed(history.windows):
        stacks = {tuple(window.frames[at] for at in one.frames) for one in window.stacks if one.pid == pid and one.main}
        if not stacks:
            continue
        stack = stacks.pop()
        if stacks or stack != (same or stack):
            break
        same, since, count = stack, window.time - window.seconds, count + 1
    waits = same is not None and count > 1 and waiting_for(own_frames(same))[0] == "collective"
    return since if waits else None


def standing_at(snapshot: Snapshot, dump: StackDump) -> Standstill:
    """Where ranks and workers stand in this dump, whether or not they stand still."""
    views = snapshot.ranks.ranks if snapshot.ranks else ()
    host = snapshot.host
    steps = {view.pid: view.step for view in views if view.step is not None}
    sequences = {rank.pid: rank.sequence for rank in snapshot.standstill.ranks} if snapshot.standstill else {}
    ranks, workers = _standing(host, dump, steps, sequences) if host else ((), ())
    if snapshot.standstill is not None:
        return replace(snapshot.standstill, ranks=ranks, workers=workers)
    world = (snapshot.ranks.world_size if snapshot.ranks else None) or 0
    return Standstill(seconds=0.0, ranks=ranks, workers=workers, elsewhere=max(0, world - len(ranks)))


def _standing(
    host: HostSample,
    dump: StackDump | None,
    steps: Mapping[int, int],
    sequences: Mapping[int, int | None],
) -> tuple[tuple[Standing, ...], tuple[Standing, ...]]:
    """Where ranks and workers stand, by the last dump of all stacks.

    `steps` and `sequences` are by pid; see Standing.
    """
    mains = [thread for thread in dump.threads if thread.main and thread.frames] if dump else []
    stacks = {main.pid: own_frames([dump.frames[index] for index in main.frames]) for main in mains} if dump else {}
    standing = []
    for process in host.processes:
        if process.role not in ("rank", "loader-worker") or process.state == "Z":
            continue
        frames = stacks.get(process.pid)
        doing, call = waiting_for(frames, process.channel) if frames else (None, None)
        standing.append(
            Standing(
                pid=process.pid,
                rank=process.rank,
                role=process.role,
                doing=doing,
                call=call,
                frames=frames or (),
                where=next((frame for frame in reversed(frames or ()) if frame.user), None),
                state=process.state,
                channel=process.channel,
                step=steps.get(process.pid),
                sequence=sequences.get(process.pid),
            )
        )
    standing.sort(key=lambda place: (place.rank is None, place.rank or 0, place.pid))
    ranks = tuple(place for place in standing if place.role == "rank")
    return ranks, tuple(place for place in standing if place.role == "loader-worker")


def rank_number(history: History, process: ProcessSample) -> int | None:
    """The number of a rank: what it says itself through the hook, else the first number that was seen of it.

    Ranks that nothing numbers are counted, and counted anew when one is gone, so a later number may be wrong.
    """
    hook = history.hooks.get(process.pid)
    if process.role == "rank" and hook is not None and hook.facts is not None and hook.facts.rank is not None:
        return hook.facts.rank
    return history.rank_numbers.get(process.pid, process.rank)


def numbered(history: History) -> HostSample | None:
    """The newest sample of the host, in which ranks and their workers have the numbers that `rank_number` gives."""
    host = history.hosts.last
    if host is None:
        return None
    ranks = [process for process in host.processes if process.role == "rank"]
    numbers = {process.pid: rank_number(history, process) for process in ranks}
    if all(process.rank == numbers[process.pid] for process in ranks):
        return host
    fed: dict[int | None, int | None] = {process.rank: numbers[process.pid] for process in ranks} | {None: None}
    wanted = [numbers.get(process.pid, fed.get(process.rank, process.rank)) for process in host.processes]
    processes = [replace(process, rank=rank) for process, rank in zip(host.processes, wanted, strict=True)]
    return replace(host, processes=tuple(processes))


def _gone(history: History, ranks: Sequence[Standing], host: HostSample) -> tuple[int, ...]:
    """The numbers of ranks of this machine that have ended and that no other process has taken over."""
    present = {rank.rank for rank in ranks if rank.rank is not None}
    missing = set(history.rank_numbers.values()) - present
    processes = host.living_ranks
    here = max((process.local_world_size or 0 for process in processes), default=0)
    offsets = {one.rank - one.local_rank for one in processes if one.rank is not None and one.local_rank is not None}
    if here and len(offsets) == 1:
        first = offsets.pop()
        missing |= set(range(first, first + here)) - present
    if not missing and len(present) == len(ranks):
        unseen = set(range(world_size(history, host))) - present
        parents = {process.ppid for process in processes}
        ended = sum(process.state == "Z" and process.ppid in parents for process in host.processes)
        # Ranks that were never seen have ended if the whole job is on this machine, or as many siblings are zombies.
        if (history.exchange_notes is not None and history.exchange_notes.local) or len(unseen) == ended:
            missing = unseen
    return tuple(sorted(missing))


def world_size(history: History, host: HostSample) -> int:
    """The number of ranks of the job, as its launcher or the ranks themselves give it; 0 where neither does."""
    sizes = [process.world_size for process in host.processes]
    hooks = (history.hooks.get(process.pid) for process in host.processes)
    sizes += [hook.facts.world_size for hook in hooks if hook is not None and hook.facts is not None]
    return max((size or 0 for size in sizes), default=0)


def waiting_for(frames: Sequence[Frame], channel: str | None = None) -> tuple[Doing, str | None]:
    """What the process does, and the name of the call it is in, by its main thread's own frames (outermost first).

    `channel` is what the main thread waits in, in the kernel's words.
    """
    seen = read_stack(frames)
    if seen.worker:
        return ("unused", None) if seen.idle else ("fetching", _innermost_call(frames))
    for frame in (frame for frame in frames if not frame.user):
        phase = meaning(frame).phase
        if phase == "communication" and not frame.file.endswith(_WRAPPER):
            return "collective", frame.function
        if phase == "data_wait":
            return "loading", "DataLoader"
        if _SERVING.search(frame.file):
            return "serving", frame.function
    innermost = meaning(frames[-1]) if frames and not frames[-1].user else None
    if innermost is not None and innermost.phase == "backward":
        return "collective", "backward"
    if innermost is not None and innermost.state == "wait-device":
        return "collective", "synchronize"
    return ("sleeping", "sleep") if channel and "nanosleep" in channel else ("own", _innermost_call(frames))


def _innermost_call(frames: Sequence[Frame]) -> str | None:
    """The library function that the user's innermost line called; None where that line is the end of the stack."""
    below = below_user(frames)
    return below[0].function if below else None
