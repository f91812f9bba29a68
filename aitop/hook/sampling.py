"""Which steps are timed and which are only counted.

Timing a step costs more than 1 % of steps shorter than 2.5 ms. So where steps are short, `COUNT_NS` of only counting
them, at a third of the cost, and `TIME_NS` of timing them take turns. The reader gives the steps that were only counted
the phases of steps that were timed shortly before.

While steps are counted, what only tells when a phase of a timed step began and ended is taken out, and batches and
forwards are passed on without a look. Only the end of a step then tells that it was longer than the others, and what
made it so stays unseen. After such a step all are looked at for `LOOK_TIMES` its length, which doubles the cost, so
that at most a hundredth of the time stays unexplained.

A new iterator, the last batch and a save are noted as always, and so is, where the wrappers look, a wait for a batch
that is much longer than the others, and a forward without gradient. The counting goes on some steps later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

from ..protocol.events import (
    BACKWARD,
    COUNTED,
    COUNTING_BEGINS,
    FORWARD_ALONE,
    OPTIMIZER_BEGINS,
    OPTIMIZER_ENDS,
    UNSEEN,
)
from ..protocol.ring import EVENT_WORDS
from .compiler import keep_from_compiling
from .journal import Journal

COUNT_NS, TIME_NS = 500_000_000, 50_000_000
# Ticks with short steps before counting begins; one tick with long steps takes TICKS_LOST of them back.
FAST_TICKS, TICKS_LOST = 20, 5
# How long batches and forwards are looked at after a forward without gradient, and after a long step by its length.
LOOK_NS, LOOK_TIMES = 10_000_000_000, 100
# The most batches and forwards of a step that are passed on without a look.
PASSES = 3
# Phases that are timed when something has ended the counting early.
PHASES_TIMED = 32
# A step counts as much longer than the others if it exceeds MEDIAN_STEPS median steps plus LEAST_LONG_NS.
MEDIAN_STEPS, LEAST_LONG_NS = 4, 1_000_000


class Sampling:
    """Begins and ends the counting of steps, in the thread that steps. `counted` is the number of such steps so far.

    `rest` takes out the wrappers that counted steps do not need, or puts them back in.
    """

    def __init__(self, journal: Journal, rest: Callable[[bool], None]) -> None:
        self.counted = 0
        self._journal = journal
        self._rest = rest
        self._fast_ticks = 0
        self._began = 0
        self._steps_then = 0
        self._median = 1
        self._look_until = 0
        journal.begin_counting, journal.stop_counting = self.begin, self.end

    def consider(self, words: list[int], kinds: bytes) -> None:
        """Decide, by the events of a tick and their kinds, whether counting begins after the step under way."""
        journal = self._journal
        tail = kinds[kinds.rfind(COUNTED) + 1 :]
        steps = tail.count(OPTIMIZER_ENDS)
        # An evaluation has many forwards without gradient in one step; a teacher model has some in most steps.
        alone = sum(FORWARD_ALONE in part for part in tail.split(bytes((OPTIMIZER_ENDS,))))
        journal.has_teacher = 2 * alone > steps
        journal.count_soon = False
        if not journal.fast or BACKWARD not in tail:
            # One tick does not make a slow run: it may be a stall.
            self._fast_ticks = max(0, self._fast_ticks - TICKS_LOST)
            return
        self._fast_ticks = min(FAST_TICKS, self._fast_ticks + 1)
        if (
            self._fast_ticks < FAST_TICKS
            or steps < 2
            or journal.nests
            or journal.ops_due
            or OPTIMIZER_BEGINS in tail
            or (alone and not journal.has_teacher)
        ):
            return
        first = len(kinds) - len(tail)
        ends = [(first + at) * EVENT_WORDS for at, kind in enumerate(tail) if kind == OPTIMIZER_ENDS]
        if len({words[at + 3] for at in ends}) > 1:
            # Several optimizers may make one step together, which a count of one optimizer's steps would not tell.
            return
        lengths = sorted(words[after + 2] - words[before + 2] for before, after in pairwise(ends))
        self._median = max(1, lengths[len(lengths) // 2])
        journal.longest = MEDIAN_STEPS * self._median + LEAST_LONG_NS
        journal.count_soon = True

    def begin(self, now: int, optimizer: int) -> None:
        """Only count steps from now on. A step of this optimizer has just ended."""
        journal = self._journal
        journal.count_soon = False
        if now >= journal.count_until:
            journal.count_until = now + COUNT_NS
        journal.due = journal.count_until
        journal.note(COUNTING_BEGINS, now, now, journal.longest)
        if journal.device is not None:
            journal.device.pause()
        self._began, self._steps_then = now, journal.steps
        journal.forward_began = 0
        # Steps end with a step of this one.
        journal.optimizer = optimizer
        journal.skip = 1
        if now > self._look_until and not journal.has_teacher:
            journal.passes = PASSES * (journal.count_until - now) // self._median
        journal.counting = True
        self._rest(True)

    def end(self, now: int, whole: bool = False) -> None:
        """Time steps from now on: for `TIME_NS`, or if counting ends early, for some steps.

        `whole` tells that the step under way ends now.
        """
        journal = self._journal
        if not journal.counting:
            return
        self._rest(False)
        journal.counting = False
        passes, journal.passes = journal.passes, 0
        journal.optimizer = 0
        last, count = journal.last_step, journal.steps - self._steps_then
        self.counted += count
        journal.note(COUNTED, self._began, last, count)
        # Where forwards are looked at, what came before the first one is known: nothing that was worth noting.
        looked = journal.longest and not passes
        unseen = max(journal.forward_began, last) if looked else last
        if whole or unseen > last or not looked:
            journal.note(UNSEEN, unseen, now)
        if now < journal.count_until:
            look = LOOK_TIMES * (now - last) if journal.longest else LOOK_NS
            self._look_until = max(self._look_until, now + look)
        if journal.device is not None:
            journal.device.resume(last)
        # What ended the counting early may happen often: it goes on after a few steps.
        journal.count_soon = now < journal.count_until and journal.longest > 0
        journal.skip = PHASES_TIMED if journal.count_soon else 0
        journal.due = journal.count_until if journal.count_soon else now + TIME_NS

    def over(self) -> None:
        """Stop counting, if steps are counted now."""
        self.end(time.monotonic_ns())


keep_from_compiling(Sampling.begin.__code__, Sampling.end.__code__, inner=True)
