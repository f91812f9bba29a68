"""Which units of work are timed and which are only counted. A unit ends with an optimizer step or, where none comes,
with a forward.

Timing a unit costs up to 30 µs, which is more than 1 % of those shorter than 3 ms. So where units are short, `COUNT_NS`
of only counting them and `TIMED` timed units take turns. The reader gives units that were only counted the phases of
units that were timed shortly before.

While optimizer steps are counted, all other calls are passed on without a look: only the end of a step tells that it
was longer than the others, and what made it so stays unseen. So for `LOOK_TIMES` its length all are timed. A save, a
new iterator, and the end of one also end the counting. While forwards are counted, batches are looked at, too.
"""

from __future__ import annotations

import time
from itertools import pairwise

from ..protocol.events import (
    BACKWARD,
    COUNTED,
    COUNTING_BEGINS,
    FORWARD,
    FORWARD_ALONE,
    NEXT,
    OPTIMIZER_BEGINS,
    OPTIMIZER_ENDS,
    UNSEEN,
)
from ..protocol.ring import EVENT_WORDS
from .compiler import keep_from_compiling
from .journal import Journal

COUNT_NS, TIMED, TIMED_NS = 500_000_000, 32, 50_000_000
# Ticks with short units before counting begins; one tick with long units takes TICKS_LOST of them back.
FAST_TICKS, TICKS_LOST = 20, 5
LOOK_TIMES = 20
# Beside other forwards than those that are counted, or as parts of something else, forwards are no units.
FORWARDS_ONLY = frozenset((FORWARD, FORWARD_ALONE, NEXT))
# A unit counts as much longer than the others if it exceeds MEDIAN_UNITS median units plus LEAST_LONG_NS.
MEDIAN_UNITS, LEAST_LONG_NS = 4, 1_000_000


class Sampling:
    """Begins and ends the counting of units, in the thread that makes them. `counted` are the steps, and `forwards` the
    forwards, that were only counted so far.
    """

    def __init__(self, journal: Journal) -> None:
        self.counted = self.forwards = 0
        self._journal = journal
        self._fast_ticks = 0
        self._began = 0
        self._steps_then = 0
        self._median = 1
        # Calls that go by in a step, other than its end.
        self._calls = 1
        self._timed_until = 0
        journal.begin_counting, journal.stop_counting = self.begin, self.end

    def consider(self, words: list[int], kinds: bytes, now: int) -> None:
        """Decide, by the events of a tick and their kinds, whether counting begins after the unit under way."""
        journal = self._journal
        tail = kinds[kinds.rfind(COUNTED) + 1 :]
        journal.count_soon = 0
        kind = self._unit(tail) if journal.fast else 0
        if not kind:
            # One tick does not make a slow run: it may be a stall.
            self._fast_ticks = max(0, self._fast_ticks - TICKS_LOST)
            return
        self._fast_ticks = min(FAST_TICKS, self._fast_ticks + 1)
        if self._fast_ticks < FAST_TICKS or now < self._timed_until or tail.count(kind) < 2:
            return
        first = len(kinds) - len(tail)
        ends = [(first + at) * EVENT_WORDS for at, each in enumerate(tail) if each == kind]
        if kind == OPTIMIZER_ENDS and (
            journal.nests or journal.ops_due or OPTIMIZER_BEGINS in tail or len({words[at + 3] for at in ends}) > 1
        ):
            # Several optimizers may make one step together, which a count of one optimizer's steps would not tell.
            return
        lengths = sorted(words[after + 2] - words[before + 2] for before, after in pairwise(ends))
        self._median = max(1, lengths[len(lengths) // 2])
        self._calls = len(tail) // len(ends)
        journal.longest = MEDIAN_UNITS * self._median + LEAST_LONG_NS
        journal.count_soon = kind

    def _unit(self, tail: bytes) -> int:
        """Return the kind of event that ends the units of these events, 0 for units that cannot be counted."""
        if BACKWARD in tail:
            return OPTIMIZER_ENDS if OPTIMIZER_ENDS in tail else 0
        kinds = set(tail)
        forwards = kinds & {FORWARD, FORWARD_ALONE}
        # The time of each forward is a part of a request where these are measured.
        if len(forwards) != 1 or kinds - FORWARDS_ONLY or self._journal.computed is not None:
            return 0
        return forwards.pop()

    def begin(self, now: int, optimizer: int) -> None:
        """Only count units from now on. A step of this optimizer, or a forward (0), has just ended."""
        journal = self._journal
        kind, journal.count_soon = journal.count_soon, 0
        journal.count_until = now + COUNT_NS
        journal.due = journal.count_until
        journal.note(COUNTING_BEGINS, now, now, journal.longest, kind)
        if journal.device is not None:
            journal.device.pause()
        self._began, self._steps_then = now, journal.steps
        journal.last_forward, journal.forwards = now, 0
        # Steps end with a step of this one.
        journal.optimizer = optimizer
        journal.skip = 1
        if optimizer:
            # Twice as many as are likely. Where no step ends any more they are used up, and the counting ends.
            journal.passes = 2 * self._calls * (COUNT_NS // self._median + 1)
        journal.counting = kind

    def end(self, now: int) -> None:
        """Time units from now on: `TIMED` of them, or if counting ends early, for longer."""
        journal = self._journal
        kind, journal.counting = journal.counting, 0
        if not kind:
            return
        journal.passes = journal.optimizer = 0
        if kind == OPTIMIZER_ENDS:
            last, count = journal.last_step, journal.steps - self._steps_then
            self.counted += count
        else:
            last, count = journal.last_forward, journal.forwards
            self.forwards += count
        journal.note(COUNTED, self._began, last, count, kind)
        if kind == OPTIMIZER_ENDS and now > last:
            journal.note(UNSEEN, last, now)
        if now < journal.count_until:
            self._timed_until = now + LOOK_TIMES * (now - last)
        if journal.device is not None:
            journal.device.resume(last)
        journal.count_soon = journal.skip = 0
        journal.due = now + min(TIMED_NS, TIMED * self._median)

    def over(self) -> None:
        """Stop counting, if units are counted now."""
        self.end(time.monotonic_ns())


keep_from_compiling(Sampling.begin.__code__, Sampling.end.__code__, Sampling._unit.__code__, inner=True)
