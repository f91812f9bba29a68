"""Gets the hook into a running process and out again, and says beforehand which ways are open. What others call."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from aitop.attach.attempt import WAYS, Attachment, Attempt, Limit, unreachable
from aitop.attach.inspection.preflight import check_alive, check_consent, check_torch, open_memory, without_torch
from aitop.attach.inspection.python_image import locate_python
from aitop.attach.payload.bundle import Action, Sources, hook_sources
from aitop.attach.payload.carriers import first_folder, may_look_into_us
from aitop.attach.refusal import AttachRefused
from aitop.attach.ways import TargetProcess, WayIn
from aitop.sources.ring.reader import should_stay

# How long to wait for another monitor that is attaching to the same process.
TURN_S = 1.0


def install(pid: int, *, timeout: float = 5.0) -> Attachment:
    """Puts the hook into process `pid`, waiting at most about `timeout` seconds for a safe point.

    Raises AttachRefused, with the target as it was.
    """
    return settled(pid, deliver(pid, "install", hook_sources(), timeout=timeout))


def begin(pid: int, *, torch: bool = True) -> Attempt:
    """Begins to put the hook into process `pid`. The attempt may be waited for repeatedly, and must be closed.

    Raises AttachRefused, with the target as it was, where there is no way in, or with `torch` none is loaded there.
    """
    return Attempt(pid, "install", hook_sources(), WAYS, time.monotonic() + TURN_S, torch=torch)


def settled(pid: int, done: Attachment) -> Attachment:
    """The answer to an install; raises AttachRefused where it means that the hook is not in."""
    if done.answer in ("installed", "already"):
        return done
    if done.answer == "no-torch":
        raise without_torch(pid)
    raise AttachRefused("failed", f"the hook did not settle in process {pid}: {done.answer}")


def remove(pid: int, *, timeout: float = 3.0) -> str:
    """Takes the hook out of process `pid`. Returns `removed`, or `absent` where it was not in.

    Raises AttachRefused where the process cannot be reached or the hook could not leave.
    """
    done = deliver(pid, "remove", (), timeout=timeout)
    if done.answer in ("removed", "absent"):
        return done.answer
    raise AttachRefused("failed", f"the hook did not leave process {pid}: {done.answer}")


def deliver(
    pid: int,
    action: Action,
    sources: Sources,
    *,
    timeout: float,
    ways: Sequence[WayIn] = WAYS,
    torch: bool = True,
) -> Attachment:
    """Brings one request in and returns the hook's answer, whatever it is. Raises AttachRefused where none came.

    With `torch` False a process without torch is entered as well.
    """
    limit = Limit(time.monotonic() + timeout)
    attempt = Attempt(pid, action, sources, ways, limit.deadline, torch=torch)
    try:
        done = attempt.wait(limit)
        refusal = attempt.why_not()
    finally:
        late = attempt.close()
    answer = done or late
    if answer is None:
        raise refusal
    return answer


class Survey(msgspec.Struct, frozen=True):
    """What stands in the way of the hook, before it is tried.

    `already`: a hook is in, and going to stay. `ways` has each way in with the reason why it is closed, None where it
    is open; it is empty where the process cannot be entered at all, and `refused` says why. `folder` takes the file
    that carries the hook, as the target names it; "" where no file is needed, because memory of ours carries it.
    """

    already: bool = False
    ways: tuple[tuple[str, str | None], ...] = ()
    folder: str | None = None
    refused: AttachRefused | None = None

    @property
    def open(self) -> tuple[str, ...]:
        """The names of the ways that are open, best first."""
        return tuple(name for name, obstacle in self.ways if obstacle is None)


def survey(pid: int, *, torch: bool = True) -> Survey:
    """Say which ways into process `pid` are open, by only reading its memory. A refusal is returned, not raised.

    With `torch` False that is not missed.
    """
    seen = Survey(already=should_stay(pid))
    try:
        status = check_alive(pid)
        memory = open_memory(status)
    except AttachRefused as refused:
        return replace(seen, refused=refused)
    try:
        check_consent(pid)
        target = TargetProcess(status, memory, locate_python(pid, memory))
        obstacles = [(way, way.obstacle(target)) for way in WAYS]
        closed = {way.name: obstacle.reason if obstacle else None for way, obstacle in obstacles}
        seen = replace(seen, ways=tuple(closed.items()))
        needs_file = any(way.exclusive and obstacle is None for way, obstacle in obstacles)
        seen = replace(seen, folder="" if not needs_file and may_look_into_us(status) else first_folder(status))
        if torch:
            check_torch(pid)
    except AttachRefused as refused:
        return replace(seen, refused=refused)
    except OSError as error:
        return replace(seen, refused=unreachable(status, error))
    finally:
        memory.close()
    return seen
