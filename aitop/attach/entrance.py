"""The interface for other packages: install or remove the hook in a running process, or survey which ways are open."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from aitop.attach.attempt import WAYS, Attachment, Attempt, Limit, opened
from aitop.attach.inspection.preflight import check_torch, without_torch
from aitop.attach.payload.bundle import Action, Sources, hook_sources
from aitop.attach.payload.carriers import first_folder, may_look_into_us
from aitop.attach.refusal import AttachRefused
from aitop.attach.ways import WayIn
from aitop.sources.ring.reader import should_stay

# How long to wait for another monitor that is attaching to the same process.
TURN_S = 1.0


def install(pid: int, *, timeout: float = 5.0) -> Attachment:
    """Install the hook in process `pid`, waiting at most about `timeout` seconds for a safe point.

    Raises AttachRefused if that fails; the target is then unchanged.
    """
    return settled(pid, deliver(pid, "install", hook_sources(), timeout=timeout))


def begin(pid: int, *, torch: bool = True) -> Attempt:
    """Begin to install the hook in process `pid`. The attempt may be waited for repeatedly, and must be closed.

    Raises AttachRefused, with the target unchanged, if there is no way in, or if `torch` is required and not loaded.
    """
    return Attempt(pid, "install", hook_sources(), WAYS, time.monotonic() + TURN_S, torch=torch)


def settled(pid: int, done: Attachment) -> Attachment:
    """Return the answer to an install. Raises AttachRefused if it says that the hook is not in."""
    if done.answer in ("installed", "already"):
        return done
    if done.answer == "no-torch":
        raise without_torch(pid)
    raise AttachRefused("failed", f"the hook did not settle in process {pid}: {done.answer}")


def remove(pid: int, *, timeout: float = 3.0) -> str:
    """Remove the hook from process `pid`. Returns `removed`, or `absent` if it was not in.

    Raises AttachRefused if the process cannot be reached or the hook could not leave.
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
    """Bring one request in and return the hook's answer, whatever it is. Raises AttachRefused if none comes in time.

    `timeout` is in seconds. With `torch` False a process without torch is entered as well.
    """
    limit = Limit(time.monotonic() + timeout)
    attempt = Attempt(pid, action, sources, ways, limit.deadline, torch=torch)
    try:
        done = attempt.wait(limit)
        refusal = attempt.why_not()
    except AttachRefused as refused:
        # Another way may have brought the request in: then `close` returns the answer.
        done, refusal = None, refused
    finally:
        late = attempt.close()
    answer = done or late
    if answer is None:
        raise refusal
    return answer


class Survey(msgspec.Struct, frozen=True):
    """What stands in the way of the hook, found out before an attach is tried.

    `already`: a hook is in and is going to stay. `ways` lists each way in with the reason why it is closed, None if it
    is open. It is empty if the process cannot be entered at all; `refused` then says why. `folder` is where the file
    that carries the hook would be, as the target names it; "" if no file is needed because our memory carries it; None
    if not known.
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
    """Find out which ways into process `pid` are open, by only reading its memory. A refusal is returned, not raised.

    With `torch` False a process without torch is not refused.
    """
    seen = Survey(already=should_stay(pid))
    try:
        with opened(pid) as target:
            obstacles = [(way, way.obstacle(target)) for way in WAYS]
            closed = {way.name: obstacle.reason if obstacle else None for way, obstacle in obstacles}
            seen = replace(seen, ways=tuple(closed.items()))
            needs_file = any(way.exclusive and obstacle is None for way, obstacle in obstacles)
            in_memory = not needs_file and may_look_into_us(target.status)
            seen = replace(seen, folder="" if in_memory else first_folder(target.status))
            if torch:
                check_torch(pid)
    except AttachRefused as refused:
        return replace(seen, refused=refused)
    return seen
