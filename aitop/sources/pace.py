"""How often aitop looks: less often where no core is idle, as it then takes its time from what it watches."""

from __future__ import annotations

import threading
import time

from aitop.sources import procfs

# Of all cores together. With less than that idle, whatever wakes up mostly meets somebody on its core.
LEAST_IDLE = 0.25
# The kernel counts in hundredths of a second, so the first answer takes this long; later ones are over more time, as
# what aitop itself does in a moment is no sign of a full machine.
FIRST_SECONDS, SECONDS = 0.1, 1.0
# Where no core is idle each source, and the diagnosis, takes at most this part of one, but pauses no longer than this:
# the hook's lease is to be renewed within five seconds.
MOST_OF_A_CORE, LONGEST_PAUSE = 0.01, 2.0


class Pace:
    """Counts the machine's idle cores and says how long to pause. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._then, self._idle = time.monotonic(), _idle_seconds()
        self._crowded: bool | None = None

    def crowded(self) -> bool:
        """Whether no core was idle lately; False where the kernel does not say. The first call may take a moment."""
        with self._lock:
            now = time.monotonic()
            if self._crowded is None and now - self._then < FIRST_SECONDS:
                time.sleep(self._then + FIRST_SECONDS - now)
                now = time.monotonic()
            if self._crowded is None or now - self._then >= SECONDS:
                idle = _idle_seconds()
                spare = idle - self._idle if idle is not None and self._idle is not None else None
                self._crowded = spare is not None and spare < LEAST_IDLE * (now - self._then)
                self._then, self._idle = now, idle
            return self._crowded

    def pause(self, usual: float, spent: float, longest: float = LONGEST_PAUSE) -> float:
        """Seconds from the start of a piece of work to the next one's, after one that took `spent` seconds of CPU.

        `usual`: what it is where a core is idle.
        """
        return max(usual, min(longest, spent / MOST_OF_A_CORE)) if self.crowded() else usual


def _idle_seconds() -> float | None:
    """Seconds since boot in which cores did nothing, all cores together."""
    words = (procfs.text(f"{procfs.PROC}/stat") or "").partition("\n")[0].split()
    if len(words) < 6 or words[0] != "cpu":
        return None
    return (int(words[4]) + int(words[5])) / procfs.TICKS_PER_SECOND
