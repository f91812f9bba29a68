"""Writes events and facts to the ring: anonymous shared memory that monitors open through /proc/PID/fd.

Nothing here blocks, and nothing is written to disk. Only one process writes: callers check that it is no forked child.
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


# How long the hook stays if no monitor takes a lease: a monitor may be killed before its first one. Even with the time
# between two looks, and with an attach that a busy target answers late, this is less than two leases.
GRACE_NS = 6_000_000_000

# Maps that are kept, because closing them would close somebody else's descriptor.
_never_closed: list[object] = []


class Ring:
    """The ring of this process, as its writer. `way` is how the hook came in; `written` counts the events written."""

    def __init__(self, way: str) -> None:
        self.pid = os.getpid()
        fd = os.memfd_create(at.MEMFD_NAME, _CLOEXEC | _ALLOW_SEALING)
        try:
            os.ftruncate(fd, at.SIZE)
            fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
            status = os.fstat(fd)
            self._file = (status.st_dev, status.st_ino)
            # The map keeps a duplicate of the descriptor open. That is the one that monitors find.
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
        """Append events, five words each.

        Raises OverflowError or TypeError, and writes nothing, if a value is not a signed 64-bit integer.
        """
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
        """Write how many steps there were and until when the run counts as training, for monitors that come later."""
        self._words[at.W_STEPS] = steps
        self._words[at.W_TRAINS_UNTIL] = trains_until

    def write_sequence(self, sequence: int) -> None:
        """Write the sequence number, in the process group of all ranks, of the collective that begins now."""
        self._words[at.W_SEQUENCE] = sequence

    def write_alive(self, requests: int) -> None:
        """Write how many requests are in flight; -1: not measured."""
        self._words[at.W_ALIVE] = requests + 1

    def write_facts(self, text: bytes) -> None:
        """Replace the JSON area. A text that does not fit is not written."""
        if len(text) > at.JSON_ROOM:
            return
        words = self._words
        # The next odd number, even if a KeyboardInterrupt left the last text half written and the number odd.
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
        """The newest request for a profile: serial number in the bits above 16, number of steps below; 0 for none."""
        return int(self._words[at.W_BURST])

    def close(self, mark: bool = True) -> None:
        """Release the memory. With `mark`, monitors that still have it open see that the hook is gone."""
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
