"""What aitop can see of one process and its tree, and which ways into it the hook has."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from aitop.attach.entrance import Survey, survey
from aitop.attach.ways import WITHOUT_PTRACE
from aitop.commands.doctor import machine
from aitop.commands.doctor.report import Check, fault, not_needed, works
from aitop.errors import AitopError
from aitop.sources import procfs
from aitop.sources.access import readable, why_denied
from aitop.sources.host.roles import ranks_of
from aitop.sources.host.target import look
from aitop.sources.host.tree import ProcessTree, places_of
from aitop.sources.source import SourceError
from aitop.sources.stacks.dump import take_dump

ANOTHER = "name the process that trains, or wait until it begins"


def checks(pid: int, no_ptrace: str | None = None, *, short_of: str | None = None) -> list[Check]:
    """Whether the process can be watched at all, then what can be seen of it.

    `no_ptrace` is the error with which ptrace is refused; `short_of` names the check of the limit that keeps aitop from
    working at all.
    """
    try:
        target = look(pid)
    except AitopError as error:
        return [fault("process", error.reason, error.remedy)]
    version = f", Python {target.python}" if target.python else ""
    members = ProcessTree([(pid, None)]).update()
    ranks = ranks_of(places_of(members)) or (pid,)
    maps = [memory_map for member in members if (memory_map := procfs.maps(member.stat.pid)) is not None]
    loaded = sorted({name for memory_map in maps if (name := procfs.framework_of(memory_map))})
    lines = [works("process", f"{pid} is {target.command}{version}"), access(pid), framework(loaded, seen=bool(maps))]
    if lines[1].state != "works":
        lines += [fault("stacks", "py-spy may not read it: see access"), fault("hook", "it may not enter: see access")]
    elif short_of is not None:
        lines += [fault(name, f"not within the limits of aitop itself: see {short_of}") for name in ("stacks", "hook")]
    else:
        lines.append(stacks(pid, target.python))
        torch = "torch" in loaded
        surveys = [(rank, closed_to_ptrace(survey(rank), no_ptrace)) for rank in ranks] if torch else []
        lines += hook(surveys) if torch else [not_needed("hook", "torch is not loaded")]
    return [*lines, machine.cgroup(ranks[0])]


def access(pid: int) -> Check:
    """Whether the kernel lets us read the process's memory."""
    if readable(pid):
        return works("access", "its memory may be read: stacks can be sampled and the hook put in")
    refused = why_denied(pid)
    return fault("access", f"no stacks and no hook: {refused.reason}", refused.remedy)


def framework(loaded: Sequence[str], *, seen: bool) -> Check:
    """What the processes of the tree have loaded."""
    if not seen:
        return not_needed("framework", "what it has loaded may not be read")
    if loaded:
        return works("framework", f"it has {', '.join(loaded)} loaded")
    return fault("framework", "it has neither torch, JAX nor TensorFlow loaded", ANOTHER)


def stacks(pid: int, python: str | None) -> Check:
    """Whether py-spy reads the stacks of process `pid`, by one look that stops nothing."""
    name = f"Python {python}" if python else "its Python"
    try:
        dump = take_dump([pid], script=None)
    except SourceError as error:
        return fault("stacks", error.reason, error.remedy)
    processes = len({thread.pid for thread in dump.threads})
    words = f"{name} can be read: {len(dump.threads)} threads of {processes} processes seen"
    return works("stacks", words + (f"; {len(dump.refused)} processes gave nothing" if dump.refused else ""))


def closed_to_ptrace(seen: Survey, error: str | None) -> Survey:
    """The survey where a filter refuses ptrace with this error, which only trying shows."""
    if error is None:
        return seen
    refused = f"ptrace is refused ({error})"
    ways = tuple((name, obstacle or (None if name in WITHOUT_PTRACE else refused)) for name, obstacle in seen.ways)
    return replace(seen, ways=ways)


def hook(surveys: Sequence[tuple[int, Survey]]) -> list[Check]:
    """The hook's check for all ranks, then each way in for the first rank that it cannot get into."""
    closed = [(pid, seen) for pid, seen in surveys if not seen.already and (seen.refused or not seen.open)]
    pid, seen = closed[0] if closed else surveys[0]
    lines = [_hook(len(surveys), len(closed), pid, seen)]
    return lines + [_way(name, obstacle, seen) for name, obstacle in seen.ways] + _folder(seen)


def _hook(asked: int, closed: int, pid: int, seen: Survey) -> Check:
    of_all = f" in {closed} of {asked} processes" if closed and asked > 1 else ""
    if seen.refused is not None and not seen.already:
        return fault("hook", f"closed{of_all}: {seen.refused.reason}", seen.refused.remedy)
    if closed:
        return fault("hook", f"no way into process {pid}{of_all}", "start the run with: aitop run -- CMD")
    if seen.already:
        return works("hook", "it is in already")
    every = f" in all {asked} processes" if asked > 1 else ""
    return works("hook", f"it can be put in{every}: {seen.open[0]} comes first")


def _way(name: str, obstacle: str | None, seen: Survey) -> Check:
    """The check of one way into the process. A closed one is a fault only if no other is open."""
    if obstacle is None:
        return works(f"way {name}", "open")
    if seen.open or seen.already:
        return not_needed(f"way {name}", f"closed: {obstacle}")
    return fault(f"way {name}", f"closed: {obstacle}")


def _folder(seen: Survey) -> list[Check]:
    if seen.folder is None:
        return []
    if not seen.folder:
        return [works("folder", "none is needed: memory of aitop's own carries the hook in")]
    return [works("folder", f"{seen.folder} takes the file that carries the hook in, for milliseconds")]
