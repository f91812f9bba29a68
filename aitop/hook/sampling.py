"""Decides which steps are timed and which are only counted.

Timing costs more than 1 % of a step that is shorter than 2.5 ms. So where steps are short, two periods alternate: for
`COUNT_NS` steps are only counted, at a third of the cost, and for `TIME_NS` they are timed. The reader gives the
counted steps the phases of steps that were timed shortly before.

While steps are counted, the wrappers that only time phases are removed, and those of batches and forwards only call the
original. A long step is then noticed only at its end, and its cause stays unknown. After such a step all batches and
forwards are examined for `LOOK_TIMES` its length. That doubles the cost, but leaves at most a hundredth of the time
unexplained.

These always end the counting, and are noted: a new iterator, the last batch of one, a save. While batches and forwards
are examined, a data wait that is much longer than the others and a forward without gradient end it as well. The
counting resumes a few steps later.
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
from .journal import GONE, Journal

COUNT_NS, TIME_NS = 500_000_000, 50_000_000
# Ticks with short steps that it takes before counting begins. A tick with long steps cancels TICKS_LOST of them.
FAST_TICKS, TICKS_LOST = 20, 5
# How long all batches and forwards are examined: after a forward without gradient, and after a long step as a multiple
# of its length.
LOOK_NS, LOOK_TIMES = 10_000_000_000, 100
# Batches and forwards per counted step that may be passed on without being examined.
PASSES = 3
# Phases that are timed after something has ended the counting early, before it resumes.
PHASES_TIMED = 32
# A step counts as much longer than the others if it exceeds MEDIAN_STEPS median steps plus LEAST_LONG_NS.
MEDIAN_STEPS, LEAST_LONG_NS = 4, 1_000_000


class Sampling:
    """Begins and ends the counting of steps, in the stepping thread. `counted`: steps so far that were only counted.

    `rest(True)` takes out the wrappers that counted steps do not need, `rest(False)` puts them back.
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
        """Decide whether counting begins at the end of the current step.

        `words` are the events of a tick, five words each, and `kinds` their kinds, a byte each.
        """
        journal = self._journal
        tail = kinds[kinds.rfind(COUNTED) + 1 :]
        steps = tail.count(OPTIMIZER_ENDS)
        # An evaluation has many forwards without gradient in one step; a teacher model has some in most steps.
        alone = sum(FORWARD_ALONE in part for part in tail.split(bytes((OPTIMIZER_ENDS,))))
        journal.has_teacher = 2 * alone > steps
        journal.count_soon = False
        if not journal.fast or BACKWARD not in tail:
            # A single tick with long steps may be a stall: it does not make this a slow run.
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
            # Several optimizers may make one step together. A count of one optimizer's steps would not show that.
            return
        if any(words[(first + at) * EVENT_WORDS + 3] == 2 for at, kind in enumerate(tail) if kind == BACKWARD):
            # Others step within the backward pass, which is not seen while steps are only counted.
            return
        lengths = sorted(words[after + 2] - words[before + 2] for before, after in pairwise(ends))
        self._median = max(1, lengths[len(lengths) // 2])
        journal.longest = MEDIAN_STEPS * self._median + LEAST_LONG_NS
        journal.count_soon = True

    def begin(self, now: int, optimizer: int) -> None:
        """Only count steps from now on. `optimizer` is the id of the one whose step has just ended."""
        journal = self._journal
        journal.count_soon = False
        if journal.owner == GONE:
            # The tick at the end of this step has decided that the hook leaves.
            return
        if now >= journal.count_until:
            journal.count_until = now + COUNT_NS
        journal.due = journal.count_until
        journal.note(COUNTING_BEGINS, now, now, journal.longest)
        if journal.device is not None:
            journal.device.pause()
        self._began, self._steps_then = now, journal.steps
        journal.forward_began = 0
        # The optimizer whose steps are counted.
        journal.optimizer = optimizer
        journal.skip = 1
        if now > self._look_until and not journal.has_teacher:
            journal.passes = PASSES * (journal.count_until - now) // self._median
        journal.counting = True
        self._rest(True)

    def end(self, now: int, whole: bool = False) -> None:
        """Time steps again: for `TIME_NS`, or for `PHASES_TIMED` phases if the counting ended early.

        `whole`: the current step ends now, so none of it is timed.
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
        # If this step's forwards were looked at, anything long before its first one would have ended the counting
        # earlier. Then only the time since that forward is unseen; otherwise the whole step is.
        looked = journal.longest and not passes
        unseen = max(journal.forward_began, last) if looked else last
        if whole or unseen > last or not looked:
            journal.note(UNSEEN, unseen, now)
        if now < journal.count_until:
            look = LOOK_TIMES * (now - last) if journal.longest else LOOK_NS
            self._look_until = max(self._look_until, now + look)
        if journal.device is not None:
            journal.device.resume(last)
        # What ended the counting early may happen often, so the counting resumes after a few steps.
        journal.count_soon = now < journal.count_until and journal.longest > 0
        journal.skip = PHASES_TIMED if journal.count_soon else 0
        journal.due = journal.count_until if journal.count_soon else now + TIME_NS

    def over(self) -> None:
        """Stop counting, if steps are counted now."""
        self.end(time.monotonic_ns())


keep_from_compiling(Sampling.begin.__code__, Sampling.end.__code__, inner=True)
