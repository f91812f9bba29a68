"""One attempt to bring a request into a process: tries the ways in, best first, and waits for the answer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from aitop.attach.inspection.preflight import check_alive, check_consent, check_torch, open_memory
from aitop.attach.inspection.process import interpreter_of, same_process
from aitop.attach.inspection.python_image import locate_python
from aitop.attach.payload.bundle import Action, Sources, pack
from aitop.attach.payload.request import Request
from aitop.attach.refusal import AttachRefused, NotNow, WaitingForTarget, ended
from aitop.attach.ways import TargetProcess, WayIn
from aitop.attach.ways.gdb import Gdb
from aitop.attach.ways.remote_debug import RemoteDebug
from aitop.attach.ways.signal_frame import SignalFrame, SleepingCall
from aitop.sources.process_status import ProcStatus

# Best first.
WAYS: tuple[WayIn, ...] = (RemoteDebug(), SignalFrame(), SleepingCall(), Gdb())

# Seconds between polls for the answer: first and longest.
ANSWER_POLLS_S = (0.001, 0.02)
# Seconds before a way is tried again after NotNow: first and longest.
RETRIES_S = (0.03, 0.5)
# After the answer the target still has to return from CPython's pending calls before the next attach.
SETTLE_S = 0.005
# How long to wait for a hook that has begun to install itself, because then the request cannot be withdrawn any more.
BEGUN_PATIENCE_S = 3.0
TURN_POLL_S = 0.01


class Attachment(msgspec.Struct, frozen=True):
    """The answer from the target.

    `way` is the name of the way in. `answer` is `installed`, `already`, `removed`, `absent`, or an error in words.
    """

    way: str
    answer: str


class Limit(msgspec.Struct, frozen=True):
    """How long to wait for the target: until `deadline` (monotonic seconds), or until `given_up` returns True."""

    deadline: float
    given_up: Callable[[], bool] = lambda: False

    def over(self) -> bool:
        return time.monotonic() >= self.deadline or self.given_up()


@contextlib.contextmanager
def opened(pid: int) -> Iterator[TargetProcess]:
    """Check that process `pid` may be entered, and hold its memory open. Errors of the system become AttachRefused."""
    status = check_alive(pid)
    try:
        with open_memory(status) as memory:
            check_consent(pid)
            yield TargetProcess(status, memory, locate_python(pid, memory))
    except OSError as error:
        raise unreachable(status, error) from error


@contextlib.contextmanager
def turn(pid: int, deadline: float) -> Iterator[None]:
    """Hold the lock that lets one monitor at a time attach to process `pid`.

    Waits until `deadline` (monotonic seconds). The lock is on `/proc/PID/mem`: only those who may attach can open it,
    and the kernel frees the lock when its owner dies. Raises OSError if that file cannot be opened, and AttachRefused
    if the lock is still taken at the deadline.
    """
    fd = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        while not _locked(fd):
            if time.monotonic() > deadline:
                reason = f"another aitop is attaching to process {pid}"
                raise AttachRefused("failed", reason, "try again", transient=True)
            time.sleep(TURN_POLL_S)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    """Try to take the lock. Return whether that succeeded."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass
class _Backoff:
    """When to try again (monotonic seconds), and the pause after the next failure (seconds)."""

    again_at: float = 0.0
    pause: float = RETRIES_S[0]

    def put_off(self) -> None:
        self.again_at = time.monotonic() + self.pause
        self.pause = min(2 * self.pause, RETRIES_S[1])


@dataclass
class _Pending:
    """A request that waits for its answer: the ways that may be tried, and `entered`, those that have brought it in."""

    request: Request
    ways: dict[WayIn, _Backoff]
    entered: list[WayIn] = field(default_factory=list)
    next_way_at: float = 0.0

    @property
    def way(self) -> str:
        return self.entered[-1].name if self.entered else ""


class Attempt:
    """One action (install or remove) on one process. Until `close` no other monitor can attach to it.

    A request that was brought in stays queued in the target, at no cost to it, until it is answered or withdrawn, even
    while nobody is in `wait`. If another monitor is attaching, the constructor waits until `deadline` (monotonic
    seconds). It raises AttachRefused, and leaves the target unchanged, if there is no way in. `sources` are the hook's
    files. With `torch` False it also enters a process without torch.
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
        self._pending: _Pending | None = None
        self._busy = _Backoff()
        self._obstacle = ""
        with contextlib.ExitStack() as held:
            self._target = held.enter_context(opened(pid))
            status = self._target.status
            if torch and action == "install":
                check_torch(pid)
            same_python = action == "remove" or self._target.python.version == sys.version_info[:2]
            self._open_ways = _open_ways(self._target, ways)
            self._payload = pack(action, tuple(sources), None if same_python else interpreter_of(status))
            held.enter_context(turn(pid, deadline))
            self._held = held.pop_all()

    def wait(self, limit: Limit) -> Attachment | None:
        """Go on with the attempt. Returns the answer, or None if there is none when the `limit` is reached."""
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
            # If the process ends while we work on it, /proc and ptrace raise errors of many kinds.
            raise unreachable(self._target.status, error) from error

    def why_not(self) -> AttachRefused:
        """Return the refusal to raise if no answer came."""
        if not same_process(self._target.status):
            return ended(self._pid)
        if self._pending is None or not self._pending.entered:
            what, remedy = self._obstacle or "it is importing a module, or the hook is just leaving it", "try again"
        else:
            what, remedy = f"process {self._pid} is inside one long call", "try again when it is back in Python code"
        return WaitingForTarget(what, remedy)

    def close(self) -> Attachment | None:
        """Withdraw the request. Idempotent.

        If the target has already begun with it, wait for the answer and return it.
        """
        with self._held:
            return self._withdraw()

    def _step(self) -> Attachment | None:
        """Check for the answer; if there is none, try the next way that is due."""
        if self._pending is None:
            if time.monotonic() < self._busy.again_at:
                return None
            needs_file = any(way.exclusive for way in self._open_ways)
            request = Request(self._target.status, self._payload, file=needs_file)
            self._pending = _Pending(request, {way: _Backoff() for way in self._open_ways})
        answer = self._pending.request.answer()
        if answer is None:
            self._try_next_way(self._pending)
            answer = self._pending.request.answer()
        return None if answer is None else self._settle(self._pending, answer)

    def _settle(self, pending: _Pending, answer: str) -> Attachment | None:
        """Clean up after an answer. Returns None if the hook answered "busy"; a new request is then made later."""
        self._pending = None
        for way in pending.entered:
            # If a second way queued the line as well, the target may be reading it now.
            way.withdraw(self._target, in_use=len(pending.entered) > 1)
        pending.request.close()
        time.sleep(SETTLE_S)
        if answer == "busy":
            self._busy.put_off()
            return None
        return Attachment(pending.way, answer)

    def _try_next_way(self, pending: _Pending) -> None:
        """Try the best way that is due. A way that has already brought the request in is not used again."""
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
        """Withdraw the request; if the target has already begun with it, wait for the answer and return it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        with contextlib.closing(pending.request) as request:
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
    """Return the ways that are open for this target. Raises AttachRefused if there are none."""
    obstacles = [(way, way.obstacle(target)) for way in ways]
    usable = [way for way, obstacle in obstacles if obstacle is None]
    if not usable:
        closed = [obstacle for _, obstacle in obstacles if obstacle is not None]
        reasons = ", ".join(dict.fromkeys(obstacle.reason for obstacle in closed))
        remedy = next((obstacle.remedy for obstacle in closed if obstacle.remedy), "aitop run -- CMD")
        raise AttachRefused("absent", f"there is no way into process {target.pid}: {reasons}", remedy)
    return usable


def unreachable(status: ProcStatus, error: OSError) -> AttachRefused:
    """Return the refusal for an error of the operating system."""
    if not same_process(status):
        return ended(status.pid)
    return AttachRefused("failed", f"process {status.pid} could not be reached: {error}")
