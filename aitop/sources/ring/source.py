"""The hooks of all ranks as one source: brings them in, reads their rings, keeps their leases, and lets them go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from aitop.model.event import Sample
from aitop.model.source import SourceName
from aitop.sources.burst_leftovers import remove_leftovers
from aitop.sources.ring.reader import HookRing
from aitop.sources.source import SourceError, unexpected

WAIT_FOR_RING_SECONDS = 1.0
LONGEST_ENTRY_SECONDS, BRIEF_SECONDS = 4.0, 0.1
# Above MANY rings they are read seldom.
OFTEN_SECONDS, SELDOM_SECONDS, MANY = 0.25, 1.0, 8
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, PASSING_RETRY_SECONDS = 5.0, 60.0, 1.0
# Processes that are entered at the same time.
ENTRIES_AT_ONCE = 4
LOOK_SECONDS = 0.01


class _Failure:
    """The reason why a process has no ring, and when to try again."""

    def __init__(self, error: SourceError, now: float, before: _Failure | None) -> None:
        self.error = error
        self.pause: float = FIRST_RETRY_SECONDS if before is None else min(2 * before.pause, LONGEST_RETRY_SECONDS)
        if error.passing:
            self.pause = PASSING_RETRY_SECONDS
        self.again_at = now + self.pause


class HookSource:
    """The source. `pids` returns the processes to hook; `way_in` puts the hook into one, or raises SourceError."""

    name: SourceName = "hook"
    interval = OFTEN_SECONDS
    patience = 5.0

    def __init__(self, pids: Callable[[], Sequence[int]], way_in: Callable[[int], None]) -> None:
        self._pids = pids
        self._way_in = way_in
        self._rings: dict[int, HookRing] = {}
        self._failures: dict[int, _Failure] = {}
        self._entries = Entries(self._enter)

    @property
    def note(self) -> str | None:
        """If the hook is in some processes only: in how many, and why not in another one. None where it is in all."""
        if not self._failures or not self._rings:
            return None
        pid, failure = next(iter(self._failures.items()))
        asked = len(self._rings) + len(self._failures)
        return f"in {len(self._rings)} of {asked} processes; {pid}: {failure.error.reason}"

    def open(self) -> None:
        """Open the ring of every process. Raises SourceError if there is none at all."""
        remove_leftovers()
        self._failures.clear()
        self._join(time.monotonic())
        self._complain_without_rings()

    def read(self) -> list[Sample]:
        """Return what is new in all rings. Raises SourceError if there is none at all."""
        self._join(time.monotonic())
        self._complain_without_rings()
        samples: list[Sample] = []
        self.interval = SELDOM_SECONDS if len(self._rings) > MANY else OFTEN_SECONDS
        for reader in list(self._rings.values()):
            reader.renew()
            sample = reader.read(time.monotonic())
            if sample.steps or sample.lost or sample.facts:
                samples.append(sample)
        return samples

    def interrupt(self) -> None:
        """Nothing to do: a read is short."""

    def close(self) -> None:
        """Release the leases: hooks that came by attach leave unless another monitor uses them."""
        for pid in list(self._rings):
            self._drop(pid)

    def _join(self, now: float) -> None:
        """Follow processes that come and go. What fails for one of them is tried again later."""
        wanted = self._pids()
        for pid in [pid for pid in self._rings if pid not in wanted or self._has_left(pid)]:
            self._drop(pid)
        for pid in [pid for pid in self._failures if pid not in wanted]:
            del self._failures[pid]
        due = [pid for pid in wanted if pid not in self._rings and self._is_due(pid, now)]
        deadline = now + LONGEST_ENTRY_SECONDS
        self._entries.ask(due)
        while self._entries.under_way():
            # If there are rings, do not wait for long: they have to be read, and their leases renewed.
            arrived = self._entries.collect(BRIEF_SECONDS if self._rings else deadline - time.monotonic())
            for pid, result in arrived:
                self._arrive(pid, result, pid in wanted)
                due = [other for other in due if other != pid]
            self._entries.ask(due)
            if not arrived:
                return

    def _is_due(self, pid: int, now: float) -> bool:
        failure = self._failures.get(pid)
        return failure is None or now >= failure.again_at

    def _arrive(self, pid: int, result: HookRing | SourceError, wanted: bool) -> None:
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
        return self._rings[pid].state in ("removed", "unreadable") or self._rings[pid].outlived

    def _drop(self, pid: int) -> None:
        reader = self._rings.pop(pid)
        reader.release()
        reader.close()

    def _complain_without_rings(self) -> None:
        if self._rings:
            return
        for failure in self._failures.values():
            raise failure.error
        if self._entries.under_way():
            raise SourceError("absent", "the hook is on its way in", passing=True)
        # `passing`: processes that come later are entered without a longer pause.
        raise SourceError("absent", "there is no process to hook: none was seen to make steps", passing=True)


class _Entry:
    """A way into one process, in a thread of its own, as it may take long: `ring` or `error` once it is `done`."""

    def __init__(self, call: Callable[[int], HookRing], pid: int) -> None:
        self.ring: HookRing | None = None
        self.error: SourceError | None = None
        self._thread = threading.Thread(target=self._run, args=(call, pid), name=f"aitop-hook-{pid}", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def _run(self, call: Callable[[int], HookRing], pid: int) -> None:
        try:
            self.ring = call(pid)
        except SourceError as error:
            self.error = error
        except Exception as error:  # a failure in one process must not end the others
            self.error = unexpected(error)


class Entries:
    """The ways into processes that are under way: calls `enter` for each. All methods belong to one thread."""

    def __init__(self, enter: Callable[[int], HookRing]) -> None:
        self._enter = enter
        self._under_way: dict[int, _Entry] = {}

    def ask(self, pids: Iterable[int]) -> None:
        """Begin with these processes, `ENTRIES_AT_ONCE` at most; one that is under way is not begun again."""
        for pid in pids:
            if len(self._under_way) >= ENTRIES_AT_ONCE:
                return
            if pid not in self._under_way:
                self._under_way[pid] = _Entry(self._enter, pid)

    def under_way(self) -> bool:
        """Return whether any result has not been collected yet."""
        return bool(self._under_way)

    def collect(self, patience: float) -> list[tuple[int, HookRing | SourceError]]:
        """Return the results of those that are done. Waits up to `patience` seconds for the first one."""
        deadline = time.monotonic() + patience
        while True:
            done = [pid for pid, entry in self._under_way.items() if entry.done]
            if done or not self._under_way or time.monotonic() >= deadline:
                break
            time.sleep(LOOK_SECONDS)
        results: list[tuple[int, HookRing | SourceError]] = []
        for pid in done:
            entry = self._under_way.pop(pid)
            if entry.error is not None:
                results.append((pid, entry.error))
            elif entry.ring is not None:
                results.append((pid, entry.ring))
        return results
