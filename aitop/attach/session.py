"""Getting the hook into a live process and out again: the only part that others call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from aitop.attach.bundle import Action, Sources, hook_sources, pack
from aitop.attach.preflight import check_alive, check_consent, check_torch, open_memory
from aitop.attach.proc_status import same_process
from aitop.attach.python_image import locate_python
from aitop.attach.refusal import AttachRefused, NotNow
from aitop.attach.request import Request
from aitop.attach.target import Target, wipe
from aitop.attach.turn import Turn
from aitop.attach.ways import WAYS, WayIn

ANSWER_POLL_S = 0.001
RETRY_S = 0.03
# After its answer the target still has to leave CPython's pending-call machinery; nobody may come in before.
SETTLE_S = 0.005
# A hook that has begun is waited for: it cannot be taken back half-way.
BEGUN_PATIENCE_S = 3.0
STILL_TO_COME = ("busy",)


@dataclass(frozen=True)
class Attachment:
    """The hook is in.

    `way` names the way in. `answer` is `installed` or `already`. `pause_us` is the longest time for which
    a thread of the target stood still, in microseconds; `ack_ms` the time from the first touch to the
    hook's answer, in milliseconds.
    """

    way: str
    answer: str
    pause_us: float
    ack_ms: float


def _never() -> bool:
    return False


@dataclass(frozen=True)
class _Limit:
    """How long to wait for the target: until `deadline` (monotonic seconds), or until `given_up` says so."""

    deadline: float
    given_up: Callable[[], bool]

    def over(self) -> bool:
        return time.monotonic() >= self.deadline or self.given_up()


def install(pid: int, *, timeout: float = 5.0, given_up: Callable[[], bool] = _never) -> Attachment:
    """Puts the hook into process `pid`, waiting at most about `timeout` seconds for a safe point.

    `given_up` is asked while waiting: the request is withdrawn when it says True. Raises AttachRefused, with
    the target as it was, where that is not possible.
    """
    done = deliver(pid, "install", hook_sources(), timeout=timeout, given_up=given_up)
    if done.answer in ("installed", "already"):
        return done
    if done.answer == "no-torch":
        raise AttachRefused("absent", f"process {pid} has not loaded torch", "try again once it has imported torch")
    raise AttachRefused("failed", f"the hook did not settle in process {pid}: {done.answer}")


def remove(pid: int, *, timeout: float = 3.0) -> str:
    """Takes the hook out of process `pid`: `removed`, or `absent` where it was not in.

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
    ways: tuple[WayIn, ...] = WAYS,
    torch: bool = True,
    given_up: Callable[[], bool] = _never,
) -> Attachment:
    """Brings one request in and returns the hook's answer, whatever it says.

    `torch` False lets a process without torch pass.
    """
    limit = _Limit(time.monotonic() + timeout, given_up)
    status = check_alive(pid)
    try:
        with open_memory(status) as memory:
            check_consent(pid)
            target = Target(status, memory, locate_python(pid, memory))
            if torch and action == "install":
                check_torch(pid)
            return _until_settled(target, _open_ways(target, ways), pack(action, tuple(sources)), limit)
    except OSError as error:
        # Wherever it ended, /proc and ptrace say so in words of their own.
        if not same_process(status):
            raise AttachRefused("absent", f"process {pid} ended") from error
        raise AttachRefused("failed", f"process {pid} could not be reached: {error}") from error


def _until_settled(target: Target, ways: list[WayIn], payload: bytes, limit: _Limit) -> Attachment:
    """Asks again for as long as the hook says that the moment does not suit it."""
    with Turn(target.pid, limit.deadline):
        since = time.monotonic()
        pause = 0.0
        while True:
            done = _once(target, ways, payload, since, limit)
            pause = max(pause, done.pause_us)
            if done.answer not in STILL_TO_COME or time.monotonic() + RETRY_S > limit.deadline or limit.given_up():
                return Attachment(done.way, done.answer, pause, done.ack_ms)
            time.sleep(RETRY_S)


def _open_ways(target: Target, ways: tuple[WayIn, ...]) -> list[WayIn]:
    """The ways that are not closed for this target; raises AttachRefused where all are."""
    obstacles = {way: way.obstacle(target) for way in ways}
    free = [way for way, obstacle in obstacles.items() if obstacle is None]
    if not free:
        reasons = ", ".join(str(obstacle) for obstacle in obstacles.values())
        raise AttachRefused("absent", f"there is no way into process {target.pid}: {reasons}", "aitop run -- CMD")
    return free


@dataclass
class _Knock:
    """What came of going down the ladder: the answer, the way that worked, the longest pause, why another did not."""

    answer: str | None = None
    way: str | None = None
    pause_us: float = 0.0
    obstacle: str = ""


def _once(target: Target, ways: list[WayIn], payload: bytes, since: float, limit: _Limit) -> Attachment:
    """One request from file to answer; withdrawn, with AttachRefused, where no answer comes in time."""
    with Request(target.status, payload) as request:
        knock = _Knock()
        try:
            _go_down(target, ways, request, limit, knock)
        finally:
            wipe(target, in_use=knock.answer is None and knock.way is not None)
        if knock.answer is None and not request.cancel():
            knock.answer = _wait(target, request, _Limit(time.monotonic() + BEGUN_PATIENCE_S, _never))
        if knock.answer is None:
            raise _not_in_time(target, knock)
        ack_ms = (time.monotonic() - since) * 1e3
        time.sleep(SETTLE_S)
        return Attachment(knock.way or "", knock.answer, knock.pause_us, ack_ms)


def _go_down(target: Target, ways: list[WayIn], request: Request, limit: _Limit, knock: _Knock) -> None:
    """Tries the ways in turn until there is an answer; one that found a bad moment is tried again."""
    worked: set[str] = set()
    while knock.answer is None and not limit.over():
        for way in ways:
            if way.name in worked or limit.over():
                continue
            patience = way.patience
            try:
                knock.pause_us = max(knock.pause_us, way.enter(target, request.line))
            except NotNow as moment:
                knock.obstacle, patience = str(moment), RETRY_S
            else:
                worked.add(way.name)
                knock.way = way.name
            until = min(time.monotonic() + patience, limit.deadline)
            knock.answer = _wait(target, request, _Limit(until, limit.given_up))
            if knock.answer is not None:
                return
        if len(worked) == len(ways):
            knock.answer = _wait(target, request, limit)


def _wait(target: Target, request: Request, limit: _Limit) -> str | None:
    """The answer, None if there is none in time; raises AttachRefused as soon as the process is gone."""
    while True:
        answer = request.answer()
        if answer is not None:
            return answer
        if not same_process(target.status):
            raise AttachRefused("absent", f"process {target.pid} ended")
        if limit.over():
            return None
        time.sleep(ANSWER_POLL_S)


def _not_in_time(target: Target, knock: _Knock) -> AttachRefused:
    if not same_process(target.status):
        return AttachRefused("absent", f"process {target.pid} ended")
    if knock.way is None:
        return AttachRefused("absent", f"hook waiting for the target: {knock.obstacle}", "try again")
    reason = f"hook waiting for the target: process {target.pid} is inside one long call"
    return AttachRefused("absent", reason, "try again when it is back in Python code")
