"""Writes events and facts to the ring, anonymous shared memory that monitors open through /proc/PID/fd.

Nothing here blocks, and nothing is on disk. One process writes; a forked child must not (callers check that).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from array import array

from ..protocol import ring as at

_SEALS = 0x0002 | 0x0004  # F_SEAL_SHRINK | F_SEAL_GROW: nobody can cut the memory from under the process
_ADD_SEALS = 1033
_ALLOW_SEALING = 0x0002
_CLOEXEC = 0x0001


# How long the hook stays before any monitor has taken a lease. With the time between two looks, and with an attach that
# a busy target takes late, that is less than two leases: a monitor may be killed before its first.
GRACE_NS = 6_000_000_000

# Maps that cannot be closed.
_never_closed: list[object] = []


class Ring:
    """The ring of this process, from the writer's end."""

    def __init__(self, way: str) -> None:
        self.pid = os.getpid()
        fd = os.memfd_create(at.MEMFD_NAME, _CLOEXEC | _ALLOW_SEALING)
        try:
            os.ftruncate(fd, at.SIZE)
            fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
            status = os.fstat(fd)
            self._file = (status.st_dev, status.st_ino)
            # The map holds its own duplicate of the descriptor: that one stays open for monitors to find.
            self._map = mmap.mmap(fd, at.SIZE, flags=mmap.MAP_SHARED)
        finally:
            os.close(fd)
        self._bytes = memoryview(self._map)
        self._words = self._bytes[: at.HEADER_SIZE].cast("Q")
        self._events = self._bytes[at.RECORDS_AT : at.RECORDS_AT + at.CAPACITY * at.STRIDE].cast("q")
        self.written = 0
        words = self._words
        words[at.W_VERSION] = at.VERSION
        words[at.W_PID] = self.pid
        words[at.W_STRIDE] = at.STRIDE
        words[at.W_CAPACITY] = at.CAPACITY
        words[at.W_JSON_ROOM] = at.JSON_ROOM
        words[at.W_WAY] = at.WAYS.index(way)
        words[at.W_INSTALLED] = time.monotonic_ns()
        words[at.W_STATE] = at.STATE_INSTALLED
        words[at.W_MAGIC] = at.MAGIC

    def write(self, words: list[int]) -> None:
        """Append events, five words each. Writes nothing and raises OverflowError or TypeError for other values."""
        events = self._events
        if len(words) > len(events):
            words = words[-len(events) :]
        packed = memoryview(array("q", words))
        at_word = self.written * at.EVENT_WORDS % len(events)
        before_end = len(events) - at_word
        self._words[at.W_WRITING] = self.written + len(packed) // at.EVENT_WORDS
        events[at_word : at_word + len(packed)] = packed[:before_end]
        if len(packed) > before_end:
            events[: len(packed) - before_end] = packed[before_end:]
        self.written += len(packed) // at.EVENT_WORDS
        self._words[at.W_WRITTEN] = self.written

    def write_progress(self, steps: int, trains_until: int) -> None:
        """Write for monitors that come later how many steps there were, and until when the run counts as training."""
        self._words[at.W_STEPS] = steps
        self._words[at.W_TRAINS_UNTIL] = trains_until

    def write_sequence(self, sequence: int) -> None:
        """Write that the collective with this number in the group of all ranks begins now."""
        self._words[at.W_SEQUENCE] = sequence

    def write_alive(self, requests: int) -> None:
        """Write how many requests are under way now."""
        self._words[at.W_ALIVE] = requests + 1

    def write_facts(self, text: bytes) -> None:
        """Replace the JSON area. A text that does not fit is not written."""
        if len(text) > at.JSON_ROOM:
            return
        words = self._words
        # Odd also where a KeyboardInterrupt left the last text half written.
        writing = words[at.W_FACTS_SEQ] + 1 | 1
        words[at.W_FACTS_SEQ] = writing
        self._bytes[at.HEADER_SIZE : at.HEADER_SIZE + len(text)] = text
        words[at.W_FACTS_LENGTH] = len(text)
        words[at.W_FACTS_SEQ] = writing + 1

    def wanted(self, now: int) -> bool:
        """Return whether a monitor holds a lease, or may still take the first one within the grace period."""
        words = self._words
        taken = False
        for slot in range(at.W_SLOTS, at.W_SLOTS + 2 * at.SLOTS, 2):
            deadline = words[slot + 1]
            if deadline:
                taken = True
                if words[slot] and deadline > now:
                    return True
        return not taken and now - words[at.W_INSTALLED] < GRACE_NS

    @property
    def burst(self) -> int:
        """The newest request for a profile: a serial number above 16 bits, the number of steps below; 0 for none."""
        return int(self._words[at.W_BURST])

    def leaving(self) -> None:
        """Let monitors see that the hook is about to leave."""
        self._words[at.W_STATE] = at.STATE_REMOVING

    def close(self, mark: bool = True) -> None:
        """Give the memory back. With `mark`, monitors that still have it open see that the hook is gone."""
        if mark:
            self._words[at.W_STATE] = at.STATE_REMOVED
        self._words.release()
        self._events.release()
        self._bytes.release()
        if self._descriptor_is_ours():
            self._map.close()
        else:
            # Closing the map would close whatever file now has the number of our descriptor.
            _never_closed.append(self._map)

    def _descriptor_is_ours(self) -> bool:
        for name in os.listdir("/proc/self/fd"):
            try:
                status = os.stat(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if (status.st_dev, status.st_ino) == self._file:
                return True
        return False
