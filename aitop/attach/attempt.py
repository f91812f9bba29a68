"""One attempt to get a request into a process: down the ladder politely, then waiting, withdrawn at any moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from aitop.attach.bundle import Action, Sources, pack, parts
from aitop.attach.debugger import MISSING
from aitop.attach.other_python import interpreter_of
from aitop.attach.preflight import check_alive, check_consent, check_torch, open_memory
from aitop.attach.proc_status import ProcStatus, same_process
from aitop.attach.python_image import locate_python
from aitop.attach.refusal import AttachRefused, NotNow
from aitop.attach.request import Request
from aitop.attach.target import Target
from aitop.attach.turn import Turn
from aitop.attach.watchdog import WATCHDOG
from aitop.attach.ways import WayIn

# Once an answer is late it is looked for less often, down to ANSWER_POLLS_S[1] from one to the next.
ANSWER_POLLS_S = (0.001, 0.02)
# A moment that did not suit is followed by longer and longer pauses.
RETRIES_S = (0.03, 0.5)
# After its answer the target still has to leave CPython's pending-call machinery; nobody may come in before.
SETTLE_S = 0.005
# A hook that has begun is waited for: it cannot be taken back half-way.
BEGUN_PATIENCE_S = 3.0
DROP_PATIENCE_S = 1.0
# A target that lets a part wait for longer is sent all in one go: it would have to come back for each, and stands still
# for long anyway.
SLOW_S = 0.25


@dataclass(frozen=True)
class Attachment:
    """The target has answered.

    `way` names the way in. `answer` is the hook's: `installed` or `already`, `removed` or `absent`, or words of
    woe. `pause_us` is the longest time for which a thread of the target stood still, in microseconds; `ack_ms`
    the time from the first touch to the answer, in milliseconds.
    """

    way: str
    answer: str
    pause_us: float
    ack_ms: float


@dataclass(frozen=True)
class Limit:
    """How long to wait for the target: until `deadline` (monotonic seconds), or until `given_up` says so."""

    deadline: float
    given_up: Callable[[], bool] = lambda: False

    def over(self) -> bool:
        return time.monotonic() >= self.deadline or self.given_up()


@dataclass
class _Rung:
    """One way on the ladder: when it may be tried again (monotonic seconds), and the pause after the next failure."""

    way: WayIn
    again_at: float = 0.0
    pause: float = RETRIES_S[0]

    def put_off(self) -> None:
        self.again_at = time.monotonic() + self.pause
        self.pause = min(2 * self.pause, RETRIES_S[1])


@dataclass
class _Knock:
    """One request on its way: what brought it in so far, and what is still to be tried."""

    request: Request
    ladder: list[_Rung]
    entered: list[WayIn] = field(default_factory=list)
    next_way_at: float = 0.0

    @property
    def way(self) -> str:
        return self.entered[-1].name if self.entered else ""


class Attempt:
    """From `open` to `close` nobody else gets at the target; at the end the request is taken back.

    A request that was brought in stays queued in the target until it is answered or withdrawn, whether anybody
    waits for it or not, and costs it nothing. Raises AttachRefused, with the target as it was, where there is no
    way in. `torch` False lets a process without torch pass.
    """

    def __init__(
        self, pid: int, action: Action, sources: Sources, ways: Sequence[WayIn], *, torch: bool = True
    ) -> None:
        self._pid, self._ways = pid, ways
        self._action, self._sources = action, tuple(sources)
        self._interpreter: str | None = None
        self._parcels: list[bytes] = []
        self._needs_torch = torch and action == "install"
        self._held = ExitStack()
        self._knock: _Knock | None = None
        self._again_at, self._again_pause = 0.0, RETRIES_S[0]
        self._since = self._asked_at = time.monotonic()
        self._pause_us = 0.0
        self._obstacle = ""
        self._taken_back = self._parts_wait = False

    def open(self, deadline: float) -> None:
        """Looks at the target and takes the turn, waiting for it until `deadline` (monotonic seconds)."""
        status = check_alive(self._pid)
        try:
            memory = self._held.enter_context(open_memory(status))
            check_consent(self._pid)
            self._target = Target(status, memory, locate_python(self._pid, memory))
            if self._needs_torch:
                check_torch(self._pid)
            if self._action == "install" and self._target.python.version != sys.version_info[:2]:
                self._interpreter = interpreter_of(status)
            self._open_ways = _open_ways(self._target, self._ways)
            self._prepare(whole=self._open_ways[0].costly)
            self._held.enter_context(Turn(self._pid, deadline))
            if len(self._parcels) > 1:
                self._held.enter_context(WATCHDOG.over(status))
        except OSError as error:
            self._held.close()
            raise unreachable(status, error) from error
        except BaseException:
            self._held.close()
            raise

    def _prepare(self, *, whole: bool) -> None:
        make = pack if whole else parts
        made = make(self._action, self._sources, self._interpreter)
        self._parcels = [made] if isinstance(made, bytes) else list(made)

    def wait(self, limit: Limit) -> Attachment | None:
        """The answer, None where there is none yet when the `limit` is reached. Goes on with what is to be tried."""
        poll = ANSWER_POLLS_S[0]
        try:
            while True:
                done = self._step()
                if done is not None:
                    return done
                if not same_process(self._target.status):
                    raise _ended(self._pid)
                if limit.over():
                    return None
                time.sleep(poll)
                poll = min(1.03 * poll, ANSWER_POLLS_S[1])
        except OSError as error:
            # Wherever it ended, /proc and ptrace say so in words of their own.
            raise unreachable(self._target.status, error) from error

    def why_not(self) -> AttachRefused:
        """What there is to say when no answer came."""
        if not same_process(self._target.status):
            return _ended(self._pid)
        if self._knock is None or not self._knock.entered:
            what, remedy = self._obstacle or "the hook says that the moment does not suit it", "try again"
        else:
            what, remedy = f"process {self._pid} is inside one long call", "try again when it is back in Python code"
        return AttachRefused("absent", f"hook waiting for the target: {what}", remedy, passing=True)

    def close(self) -> Attachment | None:
        """Takes the request back, and the parts that have come. What had already begun is waited for, and its answer
        returned. Idempotent.
        """
        with self._held:
            done = self._withdraw()
            if self._parts_wait and (done is None or done.answer in ("next", "busy")):
                self._drop_parts()
                return None
            return done

    def _drop_parts(self) -> None:
        """Has the target forget the parts that wait in it for the rest."""
        self._parts_wait = False
        self._action, self._sources = "drop", ()
        self._prepare(whole=True)
        self._again_at = 0.0
        limit = Limit(time.monotonic() + DROP_PATIENCE_S)
        try:
            while self._step() is None and same_process(self._target.status) and not limit.over():
                time.sleep(ANSWER_POLLS_S[0])
            self._withdraw()
        except (AttachRefused, OSError):
            # It is gone, or stopped: there is nobody to ask.
            pass

    def _step(self) -> Attachment | None:
        """Looks for the answer; where there is none, does what is due."""
        if self._knock is None:
            if time.monotonic() < self._again_at:
                return None
            request = Request(self._target.status, self._parcels[0], file=any(way.alone for way in self._open_ways))
            request.open()
            self._asked_at = time.monotonic()
            self._knock = _Knock(request, [_Rung(way) for way in self._open_ways])
        answer = self._knock.request.answer()
        if answer is None:
            self._climb(self._knock)
            answer = self._knock.request.answer()
        if answer is not None:
            return self._settle(self._knock, answer)
        if len(self._parcels) > 1 and self._knock.entered and time.monotonic() - self._asked_at > SLOW_S:
            self._take_back(self._knock)
        return None

    def _take_back(self, knock: _Knock) -> None:
        """Has all come in one block instead of a part that the target has not begun with."""
        for way in knock.entered:
            way.withdraw(self._target, in_use=True)
        if knock.request.cancel():
            knock.request.close()
            self._knock, self._taken_back = None, True
            self._prepare(whole=True)

    def _settle(self, knock: _Knock, answer: str) -> Attachment | None:
        """Clears up after an answer; None where more is to be brought in, or the hook asks for another moment."""
        ack_ms = (time.monotonic() - self._since) * 1e3
        self._knock = None
        for way in knock.entered:
            # What another way brought in, or was queued for what was taken back, may be running this moment.
            way.withdraw(self._target, in_use=len(knock.entered) > 1 or self._taken_back)
        knock.request.close()
        time.sleep(SETTLE_S)
        self._parts_wait = answer == "next" or (answer == "busy" and self._parts_wait)
        if answer in ("next", "lost"):
            if answer == "next" and time.monotonic() - self._asked_at < SLOW_S and not knock.entered[-1].costly:
                del self._parcels[0]
            else:
                self._prepare(whole=True)
            return None
        if answer == "busy":
            self._again_at = time.monotonic() + self._again_pause
            self._again_pause = min(2 * self._again_pause, RETRIES_S[1])
            return None
        return Attachment(knock.way, answer, self._pause_us, ack_ms)

    def _climb(self, knock: _Knock) -> None:
        """Tries the next way that is due, if there is one. A way that brought the request in is not used again."""
        now = time.monotonic()
        if now < knock.next_way_at:
            return
        for rung in knock.ladder:
            if rung.way in knock.entered or now < rung.again_at or (rung.way.costly and knock.entered):
                continue
            if knock.entered and knock.entered[-1].alone and not self._let_go_of(knock):
                return
            try:
                self._pause_us = max(self._pause_us, rung.way.enter(self._target, knock.request))
            except NotNow as moment:
                self._obstacle = str(moment)
                rung.put_off()
                continue
            knock.entered.append(rung.way)
            knock.next_way_at = time.monotonic() + rung.way.patience
            return

    def _let_go_of(self, knock: _Knock) -> bool:
        """Takes the last way's request back; False where the target has begun with it."""
        knock.entered[-1].withdraw(self._target, in_use=True)
        return knock.request.is_there()

    def _withdraw(self) -> Attachment | None:
        knock, self._knock = self._knock, None
        if knock is None:
            return None
        with knock.request as request:
            try:
                for way in knock.entered:
                    way.withdraw(self._target, in_use=True)
            except OSError:  # the process is gone, and the request with it
                return None
            if not knock.entered or request.cancel():
                return None
            limit = Limit(time.monotonic() + BEGUN_PATIENCE_S)
            while not limit.over() and same_process(self._target.status):
                if (answer := request.answer()) is not None:
                    self._parts_wait = answer == "next" or (answer == "busy" and self._parts_wait)
                    return Attachment(knock.way, answer, self._pause_us, (time.monotonic() - self._since) * 1e3)
                time.sleep(ANSWER_POLLS_S[0])
        return None


def _open_ways(target: Target, ways: Sequence[WayIn]) -> list[WayIn]:
    """The ways that are not closed for this target; raises AttachRefused where all are."""
    obstacles = [(way, way.obstacle(target)) for way in ways]
    free = [way for way, obstacle in obstacles if obstacle is None]
    if not free:
        reasons = ", ".join(dict.fromkeys(str(obstacle) for _, obstacle in obstacles))
        remedy = "install gdb, or start it with: aitop run -- CMD" if MISSING in reasons else "aitop run -- CMD"
        raise AttachRefused("absent", f"there is no way into process {target.pid}: {reasons}", remedy)
    return free


def unreachable(status: ProcStatus, error: OSError) -> AttachRefused:
    """What an error of the system's means for the target."""
    if not same_process(status):
        return _ended(status.pid)
    return AttachRefused("failed", f"process {status.pid} could not be reached: {error}")


def _ended(pid: int) -> AttachRefused:
    return AttachRefused("absent", f"process {pid} ended")
