"""One attempt to get a request into a process: the ways in are tried best first, then the answer is waited for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from aitop.attach.inspection.preflight import check_alive, check_consent, check_torch, open_memory
from aitop.attach.inspection.process import ProcStatus, interpreter_of, same_process
from aitop.attach.inspection.python_image import locate_python
from aitop.attach.payload.bundle import Action, Sources, pack
from aitop.attach.payload.request import Request
from aitop.attach.refusal import AttachRefused, NotNow, WaitingForTarget, ended
from aitop.attach.ways import TargetProcess, WayIn
from aitop.attach.ways.gdb import Gdb
from aitop.attach.ways.remote_debug import RemoteDebug
from aitop.attach.ways.signal_frame import SignalFrame, SleepingCall

# Best first.
WAYS: tuple[WayIn, ...] = (RemoteDebug(), SignalFrame(), SleepingCall(), Gdb())

# Pauses between looks for the answer, the first and the longest.
ANSWER_POLLS_S = (0.001, 0.02)
# Pauses before a way is tried again after a moment that did not suit, the first and the longest.
RETRIES_S = (0.03, 0.5)
# After its answer the target still has to leave CPython's pending-call machinery before anybody comes in again.
SETTLE_S = 0.005
# A hook that has begun to install itself cannot be taken back: it is waited for.
BEGUN_PATIENCE_S = 3.0
TURN_POLL_S = 0.01


@dataclass(frozen=True)
class Attachment:
    """The target's answer.

    `way` names the way in. `answer` is the hook's: `installed` or `already`, `removed` or `absent`, or what went wrong.
    """

    way: str
    answer: str


@dataclass(frozen=True)
class Limit:
    """How long to wait for the target: until `deadline` (monotonic seconds), or until `given_up` returns True."""

    deadline: float
    given_up: Callable[[], bool] = lambda: False

    def over(self) -> bool:
        return time.monotonic() >= self.deadline or self.given_up()


@contextlib.contextmanager
def turn(pid: int, deadline: float) -> Iterator[None]:
    """A lock between all monitors, so that one at a time attaches to process `pid`.

    It is waited for until `deadline` (monotonic seconds). It lies on `/proc/PID/mem`: only those who may attach can
    open that, and the kernel frees the lock when its owner dies. Raises OSError where that file cannot be opened.
    """
    fd = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        while not _locked(fd):
            if time.monotonic() > deadline:
                reason = f"another aitop is attaching to process {pid}"
                raise AttachRefused("failed", reason, "try again", passing=True)
            time.sleep(TURN_POLL_S)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    """Tries to take the lock, and returns whether it is ours now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass
class _Backoff:
    """When something may be tried again (monotonic seconds), and the pause after the next failure (seconds)."""

    again_at: float = 0.0
    pause: float = RETRIES_S[0]

    def put_off(self) -> None:
        self.again_at = time.monotonic() + self.pause
        self.pause = min(2 * self.pause, RETRIES_S[1])


@dataclass
class _Pending:
    """A request under way: all the ways that may be tried, and those that brought it in."""

    request: Request
    ways: dict[WayIn, _Backoff]
    entered: list[WayIn] = field(default_factory=list)
    next_way_at: float = 0.0

    @property
    def way(self) -> str:
        return self.entered[-1].name if self.entered else ""


class Attempt:
    """One action on one process. From here to `close` no other monitor attaches to it.

    A request that was brought in stays queued in the target, at no cost to it, until it is answered or withdrawn,
    whether anybody waits or not. While another monitor attaches to the target, it is waited for until `deadline`
    (monotonic seconds). Raises AttachRefused, with the target as it was, where there is no way in. With `torch` False a
    process without torch is entered as well.
    """

    def __init__(
        self,
        pid: int,
        action: Action,
        sources: Sources,
        ways: Sequence[WayIn],
        deadline: float,
        *,
        torch: bool = True,
    ) -> None:
        self._pid = pid
        self._held = contextlib.ExitStack()
        self._pending: _Pending | None = None
        self._busy = _Backoff()
        self._obstacle = ""
        status = check_alive(pid)
        try:
            memory = self._held.enter_context(open_memory(status))
            check_consent(pid)
            self._target = TargetProcess(status, memory, locate_python(pid, memory))
            if torch and action == "install":
                check_torch(pid)
            same_python = action == "remove" or self._target.python.version == sys.version_info[:2]
            self._open_ways = _open_ways(self._target, ways)
            self._payload = pack(action, tuple(sources), None if same_python else interpreter_of(status))
            self._held.enter_context(turn(pid, deadline))
        except OSError as error:
            self._held.close()
            raise unreachable(status, error) from error
        except BaseException:
            self._held.close()
            raise

    def wait(self, limit: Limit) -> Attachment | None:
        """Goes on with the attempt. Returns the answer, None where there is none when the `limit` is reached."""
        poll = ANSWER_POLLS_S[0]
        try:
            while True:
                done = self._step()
                if done is not None:
                    return done
                if not same_process(self._target.status):
                    raise ended(self._pid)
                if limit.over():
                    return None
                time.sleep(poll)
                poll = min(1.03 * poll, ANSWER_POLLS_S[1])
        except OSError as error:
            # A process that ends meanwhile shows in /proc and ptrace as errors of many kinds.
            raise unreachable(self._target.status, error) from error

    def why_not(self) -> AttachRefused:
        """The refusal where no answer came."""
        if not same_process(self._target.status):
            return ended(self._pid)
        if self._pending is None or not self._pending.entered:
            what, remedy = self._obstacle or "the hook says that the moment does not suit it", "try again"
        else:
            what, remedy = f"process {self._pid} is inside one long call", "try again when it is back in Python code"
        return WaitingForTarget(what, remedy)

    def close(self) -> Attachment | None:
        """Withdraws the request. Idempotent.

        A request that the target has begun is waited for, and its answer returned.
        """
        with self._held:
            return self._withdraw()

    def _step(self) -> Attachment | None:
        """Looks for the answer; where there is none, tries the next way that is due."""
        if self._pending is None:
            if time.monotonic() < self._busy.again_at:
                return None
            needs_file = any(way.exclusive for way in self._open_ways)
            request = Request(self._target.status, self._payload, file=needs_file)
            request.open()
            self._pending = _Pending(request, {way: _Backoff() for way in self._open_ways})
        answer = self._pending.request.answer()
        if answer is None:
            self._try_next_way(self._pending)
            answer = self._pending.request.answer()
        return None if answer is None else self._settle(self._pending, answer)

    def _settle(self, pending: _Pending, answer: str) -> Attachment | None:
        """Cleans up after an answer. None where the hook asks for another moment."""
        self._pending = None
        for way in pending.entered:
            # Where a second way queued the line too, it may be read at this moment.
            way.withdraw(self._target, in_use=len(pending.entered) > 1)
        pending.request.close()
        time.sleep(SETTLE_S)
        if answer == "busy":
            self._busy.put_off()
            return None
        return Attachment(pending.way, answer)

    def _try_next_way(self, pending: _Pending) -> None:
        """Tries the best way that is due. A way that brought the request in is not used again."""
        now = time.monotonic()
        if now < pending.next_way_at:
            return
        for way, backoff in pending.ways.items():
            if way in pending.entered or now < backoff.again_at or (way.costly and pending.entered):
                continue
            if pending.entered and pending.entered[-1].exclusive:
                pending.entered[-1].withdraw(self._target, in_use=True)
                if not pending.request.is_there():  # the target has begun with it
                    return
            try:
                way.enter(self._target, pending.request)
            except NotNow as not_now:
                self._obstacle = str(not_now)
                backoff.put_off()
                continue
            pending.entered.append(way)
            pending.next_way_at = time.monotonic() + way.patience
            return

    def _withdraw(self) -> Attachment | None:
        """Withdraws the request; where the target has begun with it, waits for the answer and returns that."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        with pending.request as request:
            try:
                for way in pending.entered:
                    way.withdraw(self._target, in_use=True)
            except OSError:  # the process is gone, and the request with it
                return None
            if not pending.entered or request.cancel():
                return None
            limit = Limit(time.monotonic() + BEGUN_PATIENCE_S)
            while not limit.over() and same_process(self._target.status):
                if (answer := request.answer()) is not None:
                    return Attachment(pending.way, answer)
                time.sleep(ANSWER_POLLS_S[0])
        return None


def _open_ways(target: TargetProcess, ways: Sequence[WayIn]) -> list[WayIn]:
    """The ways that are open for this target; raises AttachRefused where none is."""
    obstacles = [(way, way.obstacle(target)) for way in ways]
    usable = [way for way, obstacle in obstacles if obstacle is None]
    if not usable:
        closed = [obstacle for _, obstacle in obstacles if obstacle is not None]
        reasons = ", ".join(dict.fromkeys(obstacle.reason for obstacle in closed))
        remedy = next((obstacle.remedy for obstacle in closed if obstacle.remedy), "aitop run -- CMD")
        raise AttachRefused("absent", f"there is no way into process {target.pid}: {reasons}", remedy)
    return usable


def unreachable(status: ProcStatus, error: OSError) -> AttachRefused:
    """The refusal that an error of the system means."""
    if not same_process(status):
        return ended(status.pid)
    return AttachRefused("failed", f"process {status.pid} could not be reached: {error}")
