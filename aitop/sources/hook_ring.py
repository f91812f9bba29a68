"""Reads what hooks write into their rings: steps, facts, allocator figures. Keeps the hooks there by a lease.

A ring is read with plain `pread` through /proc/PID/fd and never mapped: a target cannot hurt its reader with it.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence

import msgspec

from aitop.model.event import Sample
from aitop.model.source import SourceName
from aitop.model.steps import AllocatorSample, HookFacts, HookSample
from aitop.sources import procfs
from aitop.sources import ring_format as ring
from aitop.sources.burst_leftovers import remove_leftovers
from aitop.sources.hook_entry import Entries
from aitop.sources.shared_memory import open_memfd
from aitop.sources.source import SourceError
from aitop.sources.step_maker import StepMaker
from aitop.sources.step_maker.events import Event

FIRST_EVENTS = 2048
LEASE_SECONDS = 5.0
WAIT_FOR_RING_SECONDS = 1.0
LONGEST_ENTRY_SECONDS, BRIEF_SECONDS, OFTEN_SECONDS, SELDOM_SECONDS, MANY = 4.0, 0.1, 0.25, 1.0, 8
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, PASSING_RETRY_SECONDS = 5.0, 60.0, 1.0
RELEASED = 1
MOST_LOST = 10**9
MOST_COLLECTIVES = 10**15


def find_ring(pid: int) -> str | None:
    """The path under /proc/PID/fd of the ring of a hook that is in `pid`; None if there is none, or none to be seen."""
    try:
        found = _open(pid, os.O_RDONLY)
    except (OSError, ValueError):
        return None
    if found is not None:
        os.close(found[1])
    return found and found[0]


def should_stay(pid: int) -> bool:
    """Whether the hook in `pid` is to stay when we go: it came with the program, or another monitor uses it."""
    try:
        found = _open(pid, os.O_RDONLY)
        if found is None:
            return False
        try:
            data = os.pread(found[1], ring.HEADER_SIZE, 0)
        finally:
            os.close(found[1])
    except (OSError, ValueError):
        return False
    header = ring.decode_header(data)
    if header is None:
        return False
    now = time.monotonic_ns()
    leases = [slot for slot in ring.decode_slots(data) if slot[0] not in (0, os.getpid()) and slot[1] > now]
    return header.way != "attach" or bool(leases)


def _open(pid: int, access: int) -> tuple[str, int] | None:
    """Path and our own descriptor of the process's ring. What was looked at is what stays open: the number in
    the path may mean another file of the process's a moment later.
    """
    folder = f"/proc/{pid}/fd"
    inner = procfs.inner_pid(pid)
    for name in os.listdir(folder):
        path = f"{folder}/{name}"
        try:
            fd = open_memfd(path, ring.MEMFD_LINK, access)
        except FileNotFoundError:
            continue
        if fd is None:
            continue
        wanted = False
        try:
            header = ring.decode_header(os.pread(fd, ring.HEADER_SIZE, 0))
            # A forked worker inherits the descriptor of its parent's ring, which is not its own.
            wanted = header is not None and header.pid == inner and header.state != ring.STATE_REMOVED
        finally:
            if not wanted:
                os.close(fd)
        if wanted:
            return path, fd
    return None


def _number(sequence: int) -> int | None:
    """None of what is no number of a collective."""
    return sequence if 0 < sequence < MOST_COLLECTIVES else None


class HookRing:
    """One process's ring. Raises SourceError where there is none or it may not be read."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._maker = StepMaker()
        self._read_up_to: int | None = None
        self._watches: tuple[str, ...] = ()
        self._facts_seq = -1
        self._slot: int | None = None
        self._quiet, self._stack = True, procfs.main_stack(pid)
        try:
            found = _open(pid, os.O_RDWR)
            if found is None:
                raise SourceError("absent", f"no hook in process {pid}")
            self._fd = found[1]
        except PermissionError as error:
            raise SourceError(
                "denied", f"the descriptors of process {pid} may not be read", "run aitop as the same user, or as root"
            ) from error
        except (FileNotFoundError, ProcessLookupError) as error:
            raise SourceError("absent", f"process {pid} is gone") from error
        except (OSError, ValueError) as error:
            raise SourceError("failed", f"the ring of process {pid} cannot be opened: {error}") from error

    @property
    def state(self) -> str:
        """installed, removing, removed, or unreadable."""
        header = self._header()
        if header is None:
            return "unreadable"
        return {ring.STATE_INSTALLED: "installed", ring.STATE_REMOVING: "removing"}.get(header.state, "removed")

    @property
    def outlived(self) -> bool:
        """Whether the process is gone, or has become another program, after which nobody writes here any more."""
        if not self._quiet:
            return False
        now = procfs.main_stack(self.pid)
        return procfs.gone(self.pid) if now is None else self._stack not in (None, now)

    @property
    def way(self) -> str | None:
        """How the hook came in: attach, run or import."""
        header = self._header()
        return None if header is None else header.way

    def read(self, now: float) -> HookSample:
        """The steps finished since the last read (the first time of the last events), and facts that have changed."""
        header = self._header()
        if header is None:
            return HookSample(time=now, pid=self.pid)
        facts = self._read_facts(header)
        if facts is not None:
            self._watches = facts[0].watches
        events, lost = self._read_events(header, int(now * 1e9))
        steps = tuple(self._maker.read(events, self._watches))
        lost = min(lost, MOST_LOST)
        found = HookSample(time=now, pid=self.pid, steps=steps, lost=lost, sequence=_number(header.sequence))
        if facts is None:
            return found
        return msgspec.structs.replace(found, facts=facts[0], allocators=facts[1])

    def renew(self, seconds: float = LEASE_SECONDS) -> None:
        """Ask the hook to stay for so long from now."""
        now = time.monotonic_ns()
        slots = ring.decode_slots(self._pread(ring.HEADER_SIZE, 0))
        mine = os.getpid()
        if self._slot is None or self._slot >= len(slots) or slots[self._slot][0] != mine:
            free = [i for i, (pid, deadline) in enumerate(slots) if pid == mine or not pid or deadline <= now]
            if not free:
                return
            self._slot = free[0]
        self._write_slot(mine, now + int(seconds * 1e9))

    def release(self) -> None:
        """Tell the hook that we need it no longer. The last one out makes it leave."""
        if self._slot is not None:
            slots = ring.decode_slots(self._pread(ring.HEADER_SIZE, 0))
            if self._slot < len(slots) and slots[self._slot][0] == os.getpid():
                self._write_slot(0, RELEASED)
            self._slot = None

    def ask_to_leave(self) -> None:
        """Make the hook leave at its next step, however it came in and whoever else uses it."""
        self._pwrite(struct.pack("=Q", ring.CONTROL_LEAVE), ring.WORD * ring.W_CONTROL)

    def ask_for_burst(self, serial: int, steps: int) -> None:
        """Ask for a profile of so many steps (1 to 1000) under a number of our choice. See aitop.sources.burst."""
        self._pwrite(struct.pack("=Q", serial << 16 | steps), ring.WORD * ring.W_BURST)

    def close(self) -> None:
        """Let go of the ring; the lease runs out unless it was released."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_events(self, header: ring.Header, now_ns: int) -> tuple[list[Event], int]:
        """The events since the last read, and how many were overwritten before or while they were read."""
        first, written = self._read_up_to, header.written
        self._read_up_to = written
        self._quiet = first in (None, written)
        if first is None:
            first = max(0, written - FIRST_EVENTS)
            if first:
                self._maker.join_late(header.steps, now_ns < header.trains_until)
        elif written < first:
            first = written  # it went backwards: nothing there can be told apart
        kept = max(first, written - ring.CAPACITY)
        data = b"".join(
            self._pread(count * ring.STRIDE, ring.RECORDS_AT + (start % ring.CAPACITY) * ring.STRIDE)
            for start, count in _runs(kept, written)
        )
        after = self._header()
        whole = max(kept, min(written, (written if after is None else after.writing) - ring.CAPACITY))
        events, odd = ring.decode_events(data[(whole - kept) * ring.STRIDE :], now_ns)
        if whole > first:
            self._maker.gap()
        return events, whole - first + odd

    def _read_facts(self, header: ring.Header) -> tuple[HookFacts, tuple[AllocatorSample, ...]] | None:
        """The JSON area, None where it has not changed, is being written, or is not what a hook writes."""
        if header.facts_seq == self._facts_seq or header.facts_seq % 2:
            return None
        data = self._pread(header.facts_length, ring.HEADER_SIZE)
        after = self._header()
        if after is None or after.facts_seq != header.facts_seq:
            return None
        self._facts_seq = header.facts_seq
        return ring.decode_facts(data)

    def _header(self) -> ring.Header | None:
        return ring.decode_header(self._pread(ring.HEADER_SIZE, 0))

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError:
            return b""

    def _pwrite(self, data: bytes, offset: int) -> None:
        try:
            os.pwrite(self._fd, data, offset)
        except OSError:
            # The ring is gone, and with it the need for a lease.
            pass

    def _write_slot(self, pid: int, deadline: int) -> None:
        if self._slot is not None:
            self._pwrite(struct.pack("=2Q", pid, deadline), ring.slot_offset(self._slot))


def _runs(first: int, end: int) -> list[tuple[int, int]]:
    """Records first..end-1 as (start, count) runs that do not wrap."""
    runs = []
    while first < end:
        count = min(end - first, ring.CAPACITY - first % ring.CAPACITY)
        runs.append((first, count))
        first += count
    return runs


class _Failure:
    """Why a process has no ring, and when to try again."""

    def __init__(self, error: SourceError, now: float, before: _Failure | None) -> None:
        self.error = error
        self.pause: float = FIRST_RETRY_SECONDS if before is None else min(2 * before.pause, LONGEST_RETRY_SECONDS)
        if error.passing:
            self.pause = PASSING_RETRY_SECONDS
        self.again_at = now + self.pause


class HookSource:
    """The hooks of all ranks. `pids` tells which processes; `way_in` puts the hook into one, or raises SourceError."""

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
        """In which processes there is no hook, and why, where it is in others; None where it is in all."""
        if not self._failures or not self._rings:
            return None
        pid, failure = next(iter(self._failures.items()))
        asked = len(self._rings) + len(self._failures)
        return f"in {len(self._rings)} of {asked} processes; {pid}: {failure.error.reason}"

    def open(self) -> None:
        """Get at every process's ring. Raises SourceError if there is none at all."""
        remove_leftovers()
        self._failures.clear()
        self._join(time.monotonic())
        self._complain_without_rings()

    def read(self) -> list[Sample]:
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
        """A read is short."""

    def close(self) -> None:
        """Release the leases: hooks that came by attach leave unless another monitor uses them."""
        for pid in list(self._rings):
            self._drop(pid)

    def _join(self, now: float) -> None:
        """Follow the processes that come and go. What fails for one is kept, and tried again later."""
        wanted = self._pids()
        for pid in [pid for pid in self._rings if pid not in wanted or self._has_left(pid)]:
            self._drop(pid)
        for pid in [pid for pid in self._failures if pid not in wanted]:
            del self._failures[pid]
        due = [pid for pid in wanted if pid not in self._rings and self._is_due(pid, now)]
        deadline = now + LONGEST_ENTRY_SECONDS
        self._entries.ask(due)
        while self._entries.under_way():
            # Where there are rings, they are read meanwhile: their leases are to be renewed.
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
        """A way into a process has ended with its ring, or with the reason why there is none."""
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
        # Those that are to come are looked for as often as at first.
        raise SourceError("absent", "there is no process to hook: none was seen to make steps", passing=True)
