"""The hooks of all ranks as one source: brings them in, reads their rings, keeps their leases, and lets them go."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from aitop.model.event import Sample
from aitop.model.source import SourceName
from aitop.sources.ring.burst import remove_leftovers
from aitop.sources.ring.reader import HookRing
from aitop.sources.source import Source, SourceError, unexpected

WAIT_FOR_RING_SECONDS = 1.0
LONGEST_ENTRY_SECONDS, BRIEF_SECONDS = 4.0, 0.1
# Above MANY rings they are read seldom.
OFTEN_SECONDS, SELDOM_SECONDS, MANY = 0.25, 1.0, 8
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, TRANSIENT_RETRY_SECONDS = 5.0, 60.0, 1.0
# Processes that are entered at the same time.
ENTRIES_AT_ONCE = 4


class _Failure:
    """The reason why a process has no ring, and when to try again."""

    def __init__(self, error: SourceError, now: float, before: _Failure | None) -> None:
        self.error = error
        longer = FIRST_RETRY_SECONDS if before is None else min(2 * before.pause, LONGEST_RETRY_SECONDS)
        self.pause: float = TRANSIENT_RETRY_SECONDS if error.transient else longer
        self.again_at = now + self.pause


class HookSource(Source):
    """The source. `pids` returns the processes to hook; `way_in` puts the hook into one, or raises SourceError.
    `withdraw` ends what `way_in` has left queued in a process that is no longer one of them.

    With `seldom` the rings are read as seldom as their leases allow, however few there are.
    """

    name: SourceName = "hook"
    interval = OFTEN_SECONDS
    patience = 5.0

    def __init__(
        self,
        pids: Callable[[], Sequence[int]],
        way_in: Callable[[int], None],
        withdraw: Callable[[int], None],
        *,
        seldom: bool = False,
    ) -> None:
        self._pids = pids
        self._withdraw = withdraw
        self._seldom = seldom
        self._way_in = way_in
        self._rings: dict[int, HookRing] = {}
        self._failures: dict[int, _Failure] = {}
        # The number of the last collective of each process that was told.
        self._sequences: dict[int, int | None] = {}
        # Processes that are being entered, each by a thread of its own, as it may take long.
        self._entering: set[int] = set()
        self._results: queue.SimpleQueue[tuple[int, HookRing | SourceError]] = queue.SimpleQueue()
        # While closed nobody takes a ring from the results. The lock guards both.
        self._closed = False
        self._lock = threading.Lock()

    @property
    def note(self) -> str | None:
        """If the hook is in some processes only: in how many, and why not in another. None if in all or in none."""
        if not self._failures or not self._rings:
            return None
        pid, failure = next(iter(self._failures.items()))
        asked = len(self._rings) + len(self._failures)
        return f"in {len(self._rings)} of {asked} processes; {pid}: {failure.error.reason}"

    def open(self) -> None:
        """Open the ring of every process. Raises SourceError if there is none at all."""
        remove_leftovers()
        with self._lock:
            self._closed = False
        now = time.monotonic()
        # Not forgotten: a process that is no longer wanted may still have a request queued.
        for failure in self._failures.values():
            failure.again_at = now
        self._join(now)
        self._complain_without_rings()

    def read(self) -> list[Sample]:
        """Return what is new in all rings. Raises SourceError if there is none at all."""
        self._join(time.monotonic())
        self._complain_without_rings()
        samples: list[Sample] = []
        self.interval = SELDOM_SECONDS if self._seldom or len(self._rings) > MANY else OFTEN_SECONDS
        for pid, reader in list(self._rings.items()):
            reader.renew()
            sample = reader.read(time.monotonic())
            served = sample.requests or sample.iterations or sample.pauses
            # Requests under way are reported even while nothing happens, as a server may hang with them; and so is a
            # collective that was called since, as a rank may never return from it.
            called = sample.sequence != self._sequences.get(pid)
            if sample.steps or sample.lost or sample.facts or served or sample.alive or called:
                samples.append(sample)
                self._sequences[pid] = sample.sequence
        return samples

    def close(self) -> None:
        """Release the leases: hooks that came by attach leave unless another monitor uses them."""
        with self._lock:
            self._closed = True
        while not self._results.empty():
            pid, result = self._results.get()
            self._entering.discard(pid)
            self._arrive(pid, result, wanted=False)
        for pid in list(self._rings):
            self._drop(pid)

    def _join(self, now: float) -> None:
        """Follow processes that come and go. What fails for one of them is tried again later."""
        wanted = self._pids()
        for pid in [pid for pid in self._rings if pid not in wanted or self._has_left(pid)]:
            self._drop(pid)
        for pid in [pid for pid in self._failures if pid not in wanted and pid not in self._entering]:
            del self._failures[pid]
            self._withdraw(pid)
        due = [pid for pid in wanted if pid not in self._rings and self._is_due(pid, now)]
        deadline = now + LONGEST_ENTRY_SECONDS
        self._begin(due)
        while self._entering:
            # If there are rings, do not wait for long: they have to be read, and their leases renewed.
            patience = BRIEF_SECONDS if self._rings else deadline - time.monotonic()
            try:
                pid, result = self._results.get(timeout=max(0.0, patience))
            except queue.Empty:
                return
            self._entering.discard(pid)
            self._arrive(pid, result, wanted=pid in wanted)
            due = [other for other in due if other != pid]
            self._begin(due)

    def _begin(self, pids: Iterable[int]) -> None:
        """Enter these processes, `ENTRIES_AT_ONCE` at most at a time."""
        for pid in pids:
            if len(self._entering) < ENTRIES_AT_ONCE and pid not in self._entering:
                self._entering.add(pid)
                threading.Thread(target=self._try, args=(pid,), name=f"aitop-hook-{pid}", daemon=True).start()

    def _try(self, pid: int) -> None:
        result: HookRing | SourceError
        try:
            result = self._enter(pid)
        except SourceError as error:
            result = error
        except Exception as error:  # a failure in one process must not end the others
            result = unexpected(error)
        with self._lock:
            if self._closed and isinstance(result, HookRing):
                result.close()
                self._entering.discard(pid)
            else:
                self._results.put((pid, result))

    def _is_due(self, pid: int, now: float) -> bool:
        failure = self._failures.get(pid)
        return failure is None or now >= failure.again_at

    def _arrive(self, pid: int, result: HookRing | SourceError, *, wanted: bool) -> None:
        """Take the ring of a process that was entered, or the reason why there is none."""
        if isinstance(result, SourceError):
            self._failures[pid] = _Failure(result, time.monotonic(), self._failures.get(pid))
        elif wanted:
            self._rings[pid] = result
            result.renew()
            self._failures.pop(pid, None)
        else:
            result.close()

    def _enter(self, pid: int) -> HookRing:
        try:
            return HookRing(pid)
        except SourceError as error:
            if error.state != "absent":
                raise
        self._way_in(pid)
        until = time.monotonic() + WAIT_FOR_RING_SECONDS
        while True:
            try:
                return HookRing(pid)
            except SourceError as error:
                if error.state != "absent" or time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def _has_left(self, pid: int) -> bool:
        return self._rings[pid].state != "installed" or self._rings[pid].outlived

    def _drop(self, pid: int) -> None:
        reader = self._rings.pop(pid)
        self._sequences.pop(pid, None)
        reader.release()
        reader.close()

    def _complain_without_rings(self) -> None:
        if self._rings:
            return
        for failure in self._failures.values():
            raise failure.error
        if self._entering:
            raise SourceError("absent", "the hook is on its way in", transient=True)
        # `transient`: processes that come later are entered without a longer pause.
        raise SourceError("absent", "there is no process to hook: none was seen to make steps", transient=True)
