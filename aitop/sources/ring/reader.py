"""Reads the ring of one process's hook, and keeps the hook there by a lease.

A ring is read with plain `pread` through /proc/PID/fd and never mapped, so a target cannot hurt its reader with it.
What the target writes is only data here: what makes no sense is dropped or clamped, and nothing raises.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Any, NamedTuple

import msgspec

from aitop.model.steps import AllocatorSample, HookFacts, HookSample
from aitop.protocol import ring
from aitop.protocol.events import KINDS, SERVING, UNTIMED
from aitop.sources import procfs
from aitop.sources.ring.memfd import find_memfd
from aitop.sources.ring.serving import ServingMaker
from aitop.sources.ring.step_maker import StepMaker
from aitop.sources.ring.steps import Event
from aitop.sources.source import SourceError

# How many past events a reader begins with.
FIRST_EVENTS = 2048
LEASE_SECONDS = 5.0
MOST_LOST = 10**9
MOST_COLLECTIVES = 10**15
MOST_ALIVE = 10**9
# An event that ends further in the future than this makes no sense.
AHEAD_NS = 10**9

_HEADER = struct.Struct(f"={ring.HEADER_WORDS}Q")
_SLOTS = struct.Struct(f"={2 * ring.SLOTS}Q")
_EVENT = struct.Struct(f"={ring.EVENT_WORDS}q")


class Header(NamedTuple):
    """The header of a ring. Times are monotonic nanoseconds.

    `written` counts the events written so far, `writing` includes those being written. `facts_seq` is odd while facts
    are being written. `steps` is roughly the number of steps so far; the run counts as training until `trains_until`.
    `sequence` is the number of the collective called last, 0 before the first. `alive` is one more than the number of
    requests under way, 0 where they are not watched.
    """

    pid: int
    written: int
    state: int
    way: str
    facts_seq: int
    facts_length: int
    writing: int
    steps: int
    trains_until: int
    sequence: int
    alive: int


def decode_header(data: bytes) -> Header | None:
    """Return the header of a ring, None where these bytes are not a ring of our version."""
    if len(data) < _HEADER.size:
        return None
    words = _HEADER.unpack_from(data)
    layout = [words[at] for at in (ring.W_MAGIC, ring.W_VERSION, ring.W_STRIDE, ring.W_CAPACITY, ring.W_JSON_ROOM)]
    if layout != [ring.MAGIC, ring.VERSION, ring.STRIDE, ring.CAPACITY, ring.JSON_ROOM]:
        return None
    way, state, length = words[ring.W_WAY], words[ring.W_STATE], words[ring.W_FACTS_LENGTH]
    if way >= len(ring.WAYS) or length > ring.JSON_ROOM or not ring.STATE_INSTALLED <= state <= ring.STATE_REMOVED:
        return None
    rest = (ring.W_FACTS_SEQ, ring.W_FACTS_LENGTH, ring.W_WRITING, ring.W_STEPS, ring.W_TRAINS_UNTIL, ring.W_SEQUENCE,
            ring.W_ALIVE)  # fmt: skip
    return Header(words[ring.W_PID], words[ring.W_WRITTEN], state, ring.WAYS[way], *(words[at] for at in rest))


def slot_offset(slot: int) -> int:
    """Return the offset in bytes of a lease slot, which holds a monitor's pid and its deadline."""
    return ring.WORD * (ring.W_SLOTS + 2 * slot)


def decode_slots(data: bytes) -> list[tuple[int, int]]:
    """Return the lease slots of a header, (pid, deadline in monotonic nanoseconds); empty where it is too short."""
    if len(data) < slot_offset(ring.SLOTS):
        return []
    words = _SLOTS.unpack_from(data, slot_offset(0))
    return [(words[index], words[index + 1]) for index in range(0, 2 * ring.SLOTS, 2)]


def decode_events(data: bytes, now_ns: int) -> tuple[list[Event], int]:
    """Return the events in these bytes, and the number of those that make no sense."""
    events: list[Event] = []
    latest, count = now_ns + AHEAD_NS, len(data) // ring.STRIDE
    for words in _EVENT.iter_unpack(memoryview(data)[: count * ring.STRIDE]):
        kind, start, end = words[:3]
        if (0 < start <= end <= latest and 0 <= kind < KINDS) or kind in UNTIMED:
            events.append(words)
    return events, count - len(events)


def find_ring(pid: int) -> str | None:
    """Return the path under /proc/PID/fd of the ring of the hook in `pid`; None if none can be seen."""
    try:
        opened = _open(pid, os.O_RDONLY)
    except SourceError:
        return None
    if opened is None:
        return None
    os.close(opened[1])
    return opened[0]


def should_stay(pid: int) -> bool:
    """Return whether the hook in `pid` should stay when we go: it came with the program, or another monitor uses it."""
    try:
        opened = HookRing(pid)
    except SourceError:
        return False
    try:
        return opened.way not in (None, "attach") or opened.leased_by_others()
    finally:
        opened.close()


def _open(pid: int, access: int) -> tuple[str, int] | None:
    """Return the path of the process's ring and a descriptor of ours; None without a ring. Raises SourceError."""
    inner = procfs.inner_pid(pid)

    def look(fd: int) -> Header | None:
        header = decode_header(os.pread(fd, ring.HEADER_SIZE, 0))
        # A forked worker inherits the descriptor of its parent's ring.
        return header if header and header.pid == inner and header.state != ring.STATE_REMOVED else None

    memory = find_memfd(pid, ring.MEMFD_LINK, access, look)
    return memory[:2] if memory is not None else None


class HookRing:
    """One process's ring. Raises SourceError where there is none or it may not be read."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._maker = StepMaker()
        self._serving = ServingMaker()
        self._read_up_to: int | None = None
        self._watches: tuple[str, ...] = ()
        self._facts_seq = -1
        self._slot: int | None = None
        self._quiet, self._stack = True, procfs.main_stack(pid)
        opened = _open(pid, os.O_RDWR)
        if opened is None:
            raise SourceError("absent", f"no hook in process {pid}")
        self._fd = opened[1]

    @property
    def state(self) -> str:
        """The state of the hook: installed, removed, or unreadable."""
        header = self._header()
        if header is None:
            return "unreadable"
        return "installed" if header.state == ring.STATE_INSTALLED else "removed"

    @property
    def outlived(self) -> bool:
        """Whether the process is gone, or has become another program, so that nobody writes to the ring any more."""
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
        """Return what has finished since the last read, or shortly before the first, and facts that have changed."""
        header = self._header()
        if header is None:
            return HookSample(time=now, pid=self.pid)
        facts = self._read_facts(header)
        if facts is not None:
            self._watches = facts[0].watches
        events, lost = self._read_events(header, int(now * 1e9))
        served = self._serving.read(events)
        steps = self._maker.read([event for event in events if event[0] not in SERVING], self._watches)
        sample = HookSample(
            time=now,
            pid=self.pid,
            steps=tuple(steps),
            lost=min(lost, MOST_LOST),
            sequence=header.sequence if 0 < header.sequence < MOST_COLLECTIVES else None,
            requests=served.requests,
            iterations=served.iterations,
            pauses=served.pauses,
            # 0 says that requests are not watched.
            alive=header.alive - 1 if 0 < header.alive <= MOST_ALIVE else None,
        )
        if facts is None:
            return sample
        return msgspec.structs.replace(sample, facts=facts[0], allocators=facts[1])

    def renew(self) -> None:
        """Ask the hook to stay for LEASE_SECONDS from now."""
        now = time.monotonic_ns()
        slots = self._slots()
        mine = os.getpid()
        if self._slot is None or self._slot >= len(slots) or slots[self._slot][0] != mine:
            free = [i for i, (pid, deadline) in enumerate(slots) if pid == mine or not pid or deadline <= now]
            if not free:
                return
            self._slot = free[0]
        self._write_slot(mine, now + int(LEASE_SECONDS * 1e9))

    def release(self) -> None:
        """Give up our lease. When nobody has one any more, a hook that came by attach leaves."""
        if self._slot is not None:
            slots = self._slots()
            if self._slot < len(slots) and slots[self._slot][0] == os.getpid():
                self._write_slot(0, ring.RELEASED)
            self._slot = None

    def leased_by_others(self) -> bool:
        """Return whether another monitor has a lease now."""
        now, mine = time.monotonic_ns(), os.getpid()
        return any(pid not in (0, mine) and deadline > now for pid, deadline in self._slots())

    def ask_for_burst(self, serial: int, steps: int) -> None:
        """Ask for a profile of `steps` steps (1 to 1000) under a serial number of ours; 0 steps withdraw a request.

        See burst.py.
        """
        self._pwrite(struct.pack("=Q", serial << 16 | steps), ring.WORD * ring.W_BURST)

    def close(self) -> None:
        """Close the ring. The lease runs out unless it was released."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_events(self, header: Header, now_ns: int) -> tuple[list[Event], int]:
        """Return the events since the last read, and how many are lost: overwritten before being read, or invalid."""
        first, written = self._read_up_to, header.written
        self._read_up_to = written
        self._quiet = first in (None, written)
        if first is None:
            first = max(0, written - FIRST_EVENTS)
            if first:
                self._maker.join_late(header.steps, now_ns < header.trains_until)
        elif written < first:
            first = written  # The count went backwards: which events are new cannot be known.
        oldest = max(first, written - ring.CAPACITY)
        data = b"".join(
            self._pread(count * ring.STRIDE, ring.RECORDS_AT + (start % ring.CAPACITY) * ring.STRIDE)
            for start, count in _runs(oldest, written)
        )
        after = self._header()
        whole = max(oldest, min(written, (written if after is None else after.writing) - ring.CAPACITY))
        events, odd = decode_events(data[(whole - oldest) * ring.STRIDE :], now_ns)
        if whole > first:
            self._maker.gap()
        return events, whole - first + odd

    def _read_facts(self, header: Header) -> tuple[HookFacts, tuple[AllocatorSample, ...]] | None:
        """Return what the JSON area says; None where it has not changed, is being written, or makes no sense."""
        if header.facts_seq == self._facts_seq or header.facts_seq % 2:
            return None
        data = self._pread(header.facts_length, ring.HEADER_SIZE)
        after = self._header()
        if after is None or after.facts_seq != header.facts_seq:
            return None
        self._facts_seq = header.facts_seq
        return decode_facts(data)

    def _slots(self) -> list[tuple[int, int]]:
        return decode_slots(self._pread(ring.HEADER_SIZE, 0))

    def _header(self) -> Header | None:
        return decode_header(self._pread(ring.HEADER_SIZE, 0))

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError:
            return b""

    def _pwrite(self, data: bytes, offset: int) -> None:
        try:
            os.pwrite(self._fd, data, offset)
        except OSError:
            # The ring is gone, and a lease is not needed any more.
            pass

    def _write_slot(self, pid: int, deadline: int) -> None:
        if self._slot is not None:
            self._pwrite(struct.pack("=2Q", pid, deadline), slot_offset(self._slot))


def _runs(first: int, end: int) -> list[tuple[int, int]]:
    """Return the records first..end-1 as (start, count) runs that do not wrap around."""
    runs = []
    while first < end:
        count = min(end - first, ring.CAPACITY - first % ring.CAPACITY)
        runs.append((first, count))
        first += count
    return runs


# --- the JSON area ----------------------------------------------------------------------------------------------------


LONGEST_TEXT = 1000
MOST_ITEMS = 1024
LARGEST_COUNT, LARGEST_FLOAT = 10**15, 1e24
MOST_RANKS = 10**6


class _Area(msgspec.Struct, frozen=True):
    facts: HookFacts
    allocators: tuple[AllocatorSample, ...] = ()


_decoder = msgspec.json.Decoder(_Area)


def decode_facts(data: bytes) -> tuple[HookFacts, tuple[AllocatorSample, ...]] | None:
    """Return the facts and the allocators in the ring's JSON area; None where that is not what a hook writes."""
    try:
        area = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    facts = area.facts
    # A program may say -1 for none.
    rank, world_size = (value if 0 <= (value or 0) <= MOST_RANKS else None for value in (facts.rank, facts.world_size))
    facts = msgspec.structs.replace(facts, rank=rank, world_size=world_size)
    return (facts, area.allocators) if _plausible(facts) and _plausible(area.allocators) else None


def _plausible(value: Any) -> bool:
    """Return whether all texts, numbers and lists in it are of a size that a hook writes; no number is negative."""
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    if isinstance(value, int):
        return 0 <= value <= LARGEST_COUNT
    if isinstance(value, float):
        return 0 <= value <= LARGEST_FLOAT
    if isinstance(value, tuple):
        return len(value) <= MOST_ITEMS and all(map(_plausible, value))
    return value is None or all(_plausible(getattr(value, name)) for name in value.__struct_fields__)
