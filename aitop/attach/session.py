"""Getting the hook into a live process and out again: what others call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from aitop.attach.already import hook_is_there
from aitop.attach.attempt import Attachment, Attempt, Limit
from aitop.attach.bundle import Action, Sources, hook_sources
from aitop.attach.preflight import without_torch
from aitop.attach.proc_status import read_status
from aitop.attach.refusal import AttachRefused
from aitop.attach.ways import WAYS, WayIn

TURN_S = 1.0


def _never() -> bool:
    return False


def install(pid: int, *, timeout: float = 5.0, given_up: Callable[[], bool] = _never) -> Attachment:
    """Puts the hook into process `pid`, waiting at most about `timeout` seconds for a safe point.

    A hook that is there and in use is found without touching the process. `given_up` is asked while waiting: the
    request is withdrawn when it says True. Raises AttachRefused, with the target as it was, where that is not
    possible.
    """
    if hook_is_there(pid):
        return ALREADY
    return settled(pid, deliver(pid, "install", hook_sources(), timeout=timeout, given_up=given_up))


# What `install` says of a hook that is there already.
ALREADY = Attachment("already-there", "already", 0.0, 0.0)


def begin(pid: int) -> Attempt:
    """Sets out to put the hook into process `pid`: to be waited for, as often as one likes, and closed at the end.

    Raises AttachRefused, with the target as it was, where there is no way in.
    """
    attempt = Attempt(pid, "install", hook_sources(), WAYS)
    attempt.open(time.monotonic() + TURN_S)
    return attempt


def settled(pid: int, done: Attachment) -> Attachment:
    """The answer to an install, or AttachRefused where it means that the hook is not in."""
    if done.answer in ("installed", "already"):
        return done
    if done.answer == "no-torch":
        raise without_torch(pid)
    raise AttachRefused("failed", f"the hook did not settle in process {pid}: {done.answer}")


def remove(pid: int, *, timeout: float = 3.0) -> str:
    """Takes the hook out of process `pid`: `removed`, or `absent` where it was not in.

    Raises AttachRefused where the process cannot be reached or the hook could not leave.
    """
    done = deliver(pid, "remove", (), timeout=timeout)
    if done.answer in ("removed", "absent"):
        return done.answer
    raise AttachRefused("failed", f"the hook did not leave process {pid}: {done.answer}")


def begin_dropping(pid: int, started: int) -> Attempt:
    """Sets out to have process `pid`, begun at `started` (clock ticks after boot), forget the parts of an attach that
    was never ended. To be waited for and closed like that of `begin`. Raises AttachRefused.
    """
    status = read_status(pid)
    if status is None or status.started != started:
        raise AttachRefused("absent", f"process {pid} ended")
    # What is left is not worth a stop of the whole program.
    attempt = Attempt(pid, "drop", (), [way for way in WAYS if not way.costly])
    attempt.open(time.monotonic() + TURN_S)
    return attempt


def deliver(
    pid: int,
    action: Action,
    sources: Sources,
    *,
    timeout: float,
    ways: Sequence[WayIn] = WAYS,
    torch: bool = True,
    given_up: Callable[[], bool] = _never,
) -> Attachment:
    """Brings one request in and returns the hook's answer, whatever it says.

    `torch` False lets a process without torch pass.
    """
    limit = Limit(time.monotonic() + timeout, given_up)
    attempt = Attempt(pid, action, sources, ways, torch=torch)
    attempt.open(limit.deadline)
    try:
        done = attempt.wait(limit)
        refusal = None if done else attempt.why_not()
    finally:
        late = attempt.close()
    if done is None and late is None and refusal is not None:
        raise refusal
    answer = done or late
    assert answer is not None
    return answer
