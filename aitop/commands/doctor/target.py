"""What can be seen of one process and its tree, and which ways in the hook has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aitop.attach.survey import Survey, readable, survey
from aitop.commands.doctor import limits, sampler
from aitop.commands.doctor.check import Check, fault, not_needed, works
from aitop.errors import AitopError
from aitop.sources import procfs
from aitop.sources.host.roles import ranks_of
from aitop.sources.host.tree import ProcessEvidence, ProcessTree, places_of
from aitop.sources.stacks.refusal import why_denied
from aitop.sources.target import look

# The one way that only writes the process's memory.
BY_MEMORY = "remote-debug"
ANOTHER = "name the process that trains, or wait until it begins"


def checks(pid: int, no_ptrace: str | None = None, *, short_of: str | None = None) -> list[Check]:
    """Whether it can be watched at all, then each thing by itself.

    `no_ptrace`: with what error ptrace is refused; `short_of`: the line that says which limit keeps aitop
    from working at all.
    """
    try:
        target = look(pid)
    except AitopError as error:
        reason, _, remedy = str(error).partition(": ")
        return [fault("process", reason, remedy or None)]
    version = f", Python {target.python}" if target.python else ""
    members = ProcessTree([(pid, None)]).update()
    ranks = ranks_of(places_of(members, ProcessEvidence())) or (pid,)
    maps = [memory_map for member in members if (memory_map := procfs.maps(member.stat.pid)) is not None]
    loaded = sorted({name for memory_map in maps if (name := procfs.framework_of(memory_map))})
    found = [works("process", f"{pid} is {target.command}{version}"), access(pid), framework(loaded, seen=bool(maps))]
    if found[1].state != "works":
        found += [fault("stacks", "py-spy may not read it: see access"), fault("hook", "it may not enter: see access")]
    elif short_of is not None:
        found += [fault(name, f"not within the limits of aitop itself: see {short_of}") for name in ("stacks", "hook")]
    else:
        found.append(sampler.stacks(pid, target.python))
        torch = "torch" in loaded
        surveys = [(rank, closed_to_ptrace(survey(rank), no_ptrace)) for rank in ranks] if torch else []
        found += hook(surveys) if torch else [not_needed("hook", "torch is not loaded")]
    return [*found, limits.check(ranks[0])]


def access(pid: int) -> Check:
    """Whether the kernel lets us at the process."""
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


def closed_to_ptrace(found: Survey, error: str | None) -> Survey:
    """The same where a filter refuses ptrace with this error, which only trying it shows."""
    if error is None:
        return found
    ways = tuple((name, obstacle or (f"ptrace is refused ({error})" if name != BY_MEMORY else None))
                 for name, obstacle in found.ways)  # fmt: skip
    return replace(found, ways=ways)


def hook(surveys: Sequence[tuple[int, Survey]]) -> list[Check]:
    """The hook's line for all ranks, then each way of the ladder for the first rank that has one closed."""
    closed = [(pid, found) for pid, found in surveys if not found.already and (found.refused or not found.open)]
    pid, found = closed[0] if closed else surveys[0]
    lines = [_hook(len(surveys), len(closed), pid, found)]
    return lines + [_way(name, obstacle, found) for name, obstacle in found.ways] + _folder(found)


def _hook(asked: int, closed: int, pid: int, found: Survey) -> Check:
    of_all = f" in {closed} of {asked} processes" if closed and asked > 1 else ""
    if found.refused is not None and not found.already:
        return fault("hook", f"closed{of_all}: {found.refused.reason}", found.refused.remedy)
    if closed:
        return fault("hook", f"no way into process {pid}{of_all}", "start the run with: aitop run -- CMD")
    if found.already:
        return works("hook", "it is in already")
    every = f" in all {asked} processes" if asked > 1 else ""
    return works("hook", f"it can be put in{every}: {found.open[0]} comes first")


def _way(name: str, obstacle: str | None, found: Survey) -> Check:
    """A closed way is a fault only where no other is open; then the line of the hook says what to do."""
    if obstacle is None:
        return works(f"way {name}", "open")
    if found.open or found.already:
        return not_needed(f"way {name}", f"closed: {obstacle}")
    return fault(f"way {name}", f"closed: {obstacle}")


def _folder(found: Survey) -> list[Check]:
    if found.folder is None:
        return []
    if not found.folder:
        return [works("folder", "none is needed: memory of aitop's own carries the hook in")]
    return [works("folder", f"{found.folder} takes the file that carries the hook in, for milliseconds")]
