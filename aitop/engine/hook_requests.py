"""Brings the hook into processes and takes it out, and remembers which processes make steps and so should get it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from aitop.attach.attempt import Attempt, Limit
from aitop.attach.entrance import begin, remove, settled
from aitop.attach.refusal import AttachRefused
from aitop.sources.host.source import LivingProcesses
from aitop.sources.ring.reader import find_ring, should_stay
from aitop.stacks.work import Level

SELF_REMOVAL_SECONDS = 0.6
# How long `bring_in` waits for a process at its first call, and at each later one.
FIRST_WAIT_SECONDS, NEXT_WAIT_SECONDS = 3.0, 0.2


def may_step(seen: LivingProcesses, watched: Sequence[int]) -> tuple[int, ...]:
    """The processes that may make steps themselves: some of the ranks, or of those `watched` if there are no ranks."""
    pids = seen.ranks or tuple(pid for pid in watched if pid not in seen.launchers)
    return tuple(pid for pid in pids if pid not in (*seen.engines, *seen.around))


def processes_to_hook(seen: LivingProcesses, watched: Sequence[int], known: Collection[int] | None) -> tuple[int, ...]:
    """The processes to put the hook into: engines and fronts of servers, and the processes that make steps.

    Never a launcher, which makes no steps, nor a process around an engine, whose work is measured in the engine. A
    process with children may leave the work to them. So it counts only once it is among `known`, those that have shown
    that they make steps; `known` is None where nothing would show it.
    """
    pids = may_step(seen, watched)
    if known is not None:
        pids = tuple(pid for pid in pids if pid in known or pid not in seen.parents)
    return tuple(dict.fromkeys((*seen.engines, *seen.fronts, *pids)))


class HookRequests:
    """The pending requests to put the hook into processes.

    A request that a process does not take in time stays queued in it, at no cost to it, until it returns to Python code
    or `give_up` is called. Any thread may call, but for the same process only one at a time. `hooked` has all processes
    that the hook was put into, even if it is no longer wanted there. `fronts` returns those that get it without torch.
    """

    def __init__(self, fronts: Callable[[], Collection[int]] = tuple) -> None:
        self._fronts = fronts
        self._attempts: dict[int, Attempt] = {}
        self._given_up = threading.Event()
        self._changed = threading.Condition()
        self._busy = 0
        self.hooked: set[int] = set()

    def bring_in(self, pid: int) -> None:
        """Put the hook into `pid`. Raises AttachRefused if it is not in by the end of the call."""
        with self._at_work():
            self._bring_in(pid)

    def withdraw(self, pid: int) -> None:
        """Withdraw a request that is queued in `pid`; one that begins meanwhile is not affected."""
        with self._at_work():
            attempt = self._attempts.pop(pid, None)
            late = attempt.close() if attempt is not None else None
            if late is not None:
                # It had begun by then.
                self.hooked.add(pid)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """While this lasts, `give_up` waits."""
        with self._changed:
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def give_up(self) -> None:
        """Withdraw all requests, and begin no new ones."""
        self._given_up.set()
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
            for pid in list(self._attempts):
                self._attempts.pop(pid).close()

    def _bring_in(self, pid: int) -> None:
        if self._given_up.is_set():
            raise AttachRefused("absent", "detached on request")
        attempt, patience = self._attempts.pop(pid, None), NEXT_WAIT_SECONDS
        waits_on, late = False, None
        if attempt is None:
            attempt, patience = begin(pid, torch=pid not in self._fronts()), FIRST_WAIT_SECONDS
        try:
            done = attempt.wait(Limit(time.monotonic() + patience, self._given_up.is_set))
            refusal = attempt.why_not() if done is None and not self._given_up.is_set() else None
            waits_on = refusal is not None and refusal.transient
        except AttachRefused as refused:
            # Another way may have brought the request in: then `close` returns the answer.
            done, refusal = None, refused
        finally:
            if waits_on:
                self._attempts[pid] = attempt
            else:
                late = attempt.close()
        done = done or late
        if done is None:
            raise refusal or AttachRefused("absent", "detached on request")
        settled(pid, done)
        self.hooked.add(pid)


def take_out(pids: Iterable[int]) -> bool:
    """Make sure that no hook of ours stays: wait until it removes itself, else ask the process to drop it.

    A hook that came with the program, or that another monitor uses, is left alone: then the answer is False.
    """
    deadline = time.monotonic() + SELF_REMOVAL_SECONDS
    hooked = [pid for pid in pids if find_ring(pid)]
    left = [pid for pid in hooked if not should_stay(pid)]
    all_ours = len(left) == len(hooked)
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [pid for pid in left if find_ring(pid)]
    # The lease has ended, so each leaves by itself as soon as its process runs Python again. A rank in a long call is
    # waited for, and many may be in the same collective: all at once.
    asking = [threading.Thread(target=_ask_to_leave, args=(pid,), name="aitop-remove", daemon=True) for pid in left]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return all_ours


def _ask_to_leave(pid: int) -> None:
    with contextlib.suppress(AttachRefused):
        remove(pid)


class SteppingProcesses:
    """Remembers which processes made steps, while they live: a trainer that evaluates or saves for a minute stays one.

    Where some processes update a model, those that only run one do not count: they feed the others. Any thread may ask.
    """

    def __init__(self) -> None:
        self._levels: dict[int, Level] = {}
        self._pids: frozenset[int] = frozenset()
        self._working: tuple[int, ...] = ()
        self._known = threading.Event()

    def update(self, levels: Mapping[int, Level], working: Sequence[int], alive: Collection[int]) -> None:
        """Take what the last Snapshot shows: how far each process makes steps, and which do the work, in order."""
        known = {pid: level for pid, level in self._levels.items() if pid in alive}
        for pid, level in levels.items():
            known[pid] = max(level, known.get(pid, 0))
        self._levels = known
        most = max(known.values(), default=0)
        self._pids = frozenset(pid for pid, level in known.items() if level == most and level)
        self._working = tuple(working)
        if self._pids:
            self._known.set()

    def pids(self) -> frozenset[int]:
        """The living processes that step."""
        return self._pids

    def working(self) -> tuple[int, ...]:
        """The processes that do the work by the last Snapshot; the one to show first comes first."""
        return self._working

    def wait_until_known(self, seconds: float) -> None:
        """Wait until any of them was seen to step."""
        self._known.wait(seconds)
