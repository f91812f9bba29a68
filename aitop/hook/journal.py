"""What the wrappers note while the program runs, as briefly as they can. `Steps` makes sense of it a little later.

The code that runs in every step is out of the processor's caches when its turn comes, so it has to be short; the
rest is done for many steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOBODY = 0
GONE = -1

# Kinds of entries: (kind, begin, end, …) of a phase in monotonic nanoseconds.
LOADER, NEXT, FORWARD, BACKWARD, OPTIMIZER_BEGINS, OPTIMIZER_ENDS, SAVE, COLLECT, ASIDE = range(9)
# Kinds for measures to `note`; a and b are integers, a site is a number that the measure's facts explain:
# TRANSFER(bytes, site), BLOCKING(site, 0), COLLECTIVE(bytes, site), TOKENS(count, 0), GENERATE(tokens out, nanoseconds
# to the first), SKIPPED(0, 0).
TRANSFER, BLOCKING, COLLECTIVE, TOKENS, GENERATE, SKIPPED = range(9, 15)
Entry = tuple[Any, ...]


class Journal:
    """The live state of the thread that steps (`owner`).

    `busy` is set inside an outermost batch, forward or backward. `stepping` is when the optimizer's step began in which
    the thread is, else 0; `nested` counts further ones inside it. `fast` tells that steps are so short that measuring
    has to be brief. `cpu_clock` gives -1 where it costs too much. `tick` is called with the time once it is past `due`.
    """

    __slots__ = (
        "busy",
        "collecting",
        "cpu_clock",
        "device",
        "due",
        "entries",
        "fast",
        "last_step",
        "nested",
        "owner",
        "stepping",
        "steps",
        "tick",
    )

    def __init__(self, cpu_clock: Callable[[], int], tick: Callable[[int], None]) -> None:
        self.entries: list[Entry] = []
        self.tick = tick
        self.due = 0
        self.owner = NOBODY
        self.busy = False
        self.stepping = 0
        self.nested = 0
        self.last_step = 0
        self.steps = 0
        self.fast = False
        self.collecting = 0
        self.device: Any = None
        self.cpu_clock = cpu_clock

    def note(self, kind: int, start: int, end: int, a: int = 0, b: int = 0) -> None:
        """Keep an event of the thread that steps (the caller knows that it is `owner`), in monotonic nanoseconds."""
        self.entries.append((kind, start, end, a, b))

    @property
    def newest(self) -> int:
        """The kind of the newest entry, -1 without one."""
        return int(self.entries[-1][0]) if self.entries else -1

    def take(self) -> list[Entry]:
        """The entries so far, which then are no longer here. Other threads may be adding some."""
        entries = self.entries
        taken = entries[:]
        del entries[: len(taken)]
        return taken
