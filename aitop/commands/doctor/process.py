"""What aitop can see of one process and its tree, and which ways into it the hook has."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from aitop.attach.entrance import Survey, survey
from aitop.attach.ways import WITHOUT_PTRACE
from aitop.commands.doctor import machine
from aitop.commands.doctor.report import Check, fault, not_needed, works
from aitop.errors import AitopError
from aitop.model.stacks import StackDump
from aitop.model.units import plural
from aitop.sources import procfs
from aitop.sources.access import readable, why_denied
from aitop.sources.host.roles import ranks_of
from aitop.sources.host.target import look
from aitop.sources.host.tree import Member, ProcessTree, places_of
from aitop.sources.servers.recognition import Recogniser, Server
from aitop.sources.source import SourceError
from aitop.sources.stacks.dump import take_dump

ANOTHER = "name the process that trains or serves, or wait until it does"


def checks(pid: int, no_ptrace: str | None = None, *, short_of: str | None = None) -> list[Check]:
    """The checks of a process: whether it can be watched at all, then what can be seen of it.

    `no_ptrace` is the error with which ptrace is refused, None where it is not; `short_of` names the check of a limit
    that is too low for aitop to work at all, None where there is none.
    """
    try:
        target = look(pid)
    except AitopError as error:
        return [fault("process", error.reason, error.remedy)]
    version = f", Python {target.python}" if target.python else ""
    members = ProcessTree([(pid, None)]).update()
    ranks = ranks_of(places_of(members)) or (pid,)
    maps = {member.stat.pid: procfs.maps(member.stat.pid) for member in members}
    has = {number: name for number, memory_map in maps.items() if (name := procfs.framework_of(memory_map or b""))}
    lines = [works("process", f"{pid} is {target.command}{version}"), access(pid)]
    closed: str | None = None
    if lines[1].state != "works":
        closed = "it may not be looked into: see access"
    elif short_of is not None:
        closed = f"aitop's own limits are too low for this: see {short_of}"
    sees, dump = stacks(pid, target.python) if closed is None else (fault("stacks", closed), None)
    server = server_of(members, dump)
    fronts = server.fronts if server is not None else ()
    seen = any(memory_map is not None for memory_map in maps.values())
    lines += [framework(sorted(set(has.values())), server if fronts else None, seen=seen), sees]
    asked = [*fronts, *(rank for rank in ranks if rank not in fronts and (has.get(rank) == "torch" or not fronts))]
    if closed is not None:
        lines.append(fault("hook", closed))
    elif fronts or "torch" in has.values():
        lines += hook([(each, closed_to_ptrace(survey(each, torch=each not in fronts), no_ptrace)) for each in asked])
    else:
        lines.append(not_needed("hook", "torch is not loaded"))
    return [*lines, machine.cgroup(ranks[0])]


def access(pid: int) -> Check:
    """Whether the kernel lets us read the process's memory."""
    if readable(pid):
        return works("access", "its memory may be read: stacks can be sampled and the hook put in")
    refused = why_denied(pid)
    return fault("access", f"no stacks and no hook: {refused.reason}", refused.remedy)


def server_of(members: Sequence[Member], dump: StackDump | None) -> Server | None:
    """The server that these processes form, by their names and by one look at their stacks; None if they form none."""
    recogniser = Recogniser()
    if dump is not None:
        recogniser.saw_once(dump)
    return recogniser.look([member for member in members if not member.stat.ended])


def framework(loaded: Sequence[str], server: Server | None, *, seen: bool) -> Check:
    """Which frameworks the processes of the tree have loaded. A `server` needs none: its requests can be measured."""
    if not seen:
        return not_needed("framework", "what it has loaded may not be read")
    if loaded:
        return works("framework", f"it has {', '.join(loaded)} loaded")
    if server is not None:
        return not_needed("framework", f"none is loaded; the requests that {server.name} takes are measured without")
    return fault("framework", "it has neither torch, JAX nor TensorFlow loaded", ANOTHER)


def stacks(pid: int, python: str | None) -> tuple[Check, StackDump | None]:
    """Whether py-spy can read the stacks of process `pid`, and the stacks. Reading them once stops nothing."""
    name = f"Python {python}" if python else "its Python"
    try:
        dump = take_dump([pid], script=None)
    except SourceError as error:
        return fault("stacks", error.reason, error.remedy), None
    processes = len({thread.pid for thread in dump.threads})
    seen = f"{plural(len(dump.threads), 'thread')} of {plural(processes, 'process', 'processes')}"
    words = f"{name} can be read: {seen} seen"
    if dump.refused:
        words += f"; {plural(len(dump.refused), 'process', 'processes')} gave nothing"
    return works("stacks", words), dump


def closed_to_ptrace(seen: Survey, error: str | None) -> Survey:
    """The survey with the ways closed that need ptrace, if trying ptrace failed with this error (as by a filter)."""
    if error is None:
        return seen
    refused = f"ptrace is refused ({error})"
    ways = tuple((name, obstacle or (None if name in WITHOUT_PTRACE else refused)) for name, obstacle in seen.ways)
    return replace(seen, ways=ways)


def hook(surveys: Sequence[tuple[int, Survey]]) -> list[Check]:
    """The check of the hook over all ranks, then of each way into the first rank that is closed, else the first one."""
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
