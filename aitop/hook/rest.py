"""Rests: where steps are short, timing all of them would cost too much, so most are only counted.

A rest begins at the end of a step. Whatever is rare interrupts it: a step or a wait for a batch that is much longer
than the others, a new iterator, a save, a forward without gradient. It goes on some steps after that.

Where steps are all alike the rest is a deep one: waits and forwards are not timed, and only the end of a step tells
whether it was longer than the others. What made such a step long stays unseen, so for many times as long there are no
deep rests then: of all time no more than a hundredth is lost to sight.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

from .journal import (
    BACKWARD,
    FORWARD_ALONE,
    OPTIMIZER_BEGINS,
    OPTIMIZER_ENDS,
    PAUSE,
    PHASES_SKIPPED,
    RESTED,
    UNSEEN,
    WORDS,
    Journal,
)
from .stand_in import keep_from_compiling

REST_NS, TIMED_NS = 500_000_000, 50_000_000
# So many ticks with nothing but short steps come before the first rest, and so many more for one without.
FAST_TICKS, TICKS_LOST = 20, 5
# A step is none of the usual if it is longer than so many of them together, and this.
USUAL_STEPS, LEAST_LONG_NS = 4, 1_000_000
# There are no deep rests for so long from the first rest on, and for so many times the length of a step that was longer
# than the others.
SHALLOW_FIRST_NS, SHALLOW_TIMES = 10_000_000_000, 100
# A deep rest has room for so many times the calls of one wrapper that are expected.
CALLS = 3
# About so many phases are timed after an interruption.
PHASES_TIMED = 2 * PHASES_SKIPPED


class Rest:
    """Begins and ends the rests of one journal, in the thread that steps. `steps` counts those in rests, `deep` tells
    of what kind the last one was. Each of `told` is called with True as one begins, with False as it ends, and does not
    raise.
    """

    def __init__(self, journal: Journal, *told: Callable[[bool], None]) -> None:
        self._journal = journal
        self._fast_ticks = 0
        self._began = 0
        self._steps_then = 0
        self.steps = 0
        self._told = told
        self.deep = False
        self._usual = 1
        self._shallow_until = 0
        journal.pause, journal.wake, journal.shallow = self.begin, self.end, self.stay_shallow

    def consider(self, words: list[int], kinds: bytes) -> None:
        """Look at the events of a tick, and their kinds: is a rest due?"""
        journal = self._journal
        if not journal.resting:
            # Another thread may have counted it down as the rest ended.
            journal.deep = 0
        tail = kinds[kinds.rfind(RESTED) + 1 :]
        steps = tail.count(OPTIMIZER_ENDS)
        # An evaluation has many of them in one step, a model that teaches has some in most steps.
        alone = sum(FORWARD_ALONE in part for part in tail.split(bytes((OPTIMIZER_ENDS,))))
        journal.teaches = 2 * alone > steps
        journal.pause_due = False
        if not journal.fast or BACKWARD not in tail:
            # A stall does not make a slow run.
            self._fast_ticks = max(0, self._fast_ticks - TICKS_LOST)
            return
        self._fast_ticks = min(FAST_TICKS, self._fast_ticks + 1)
        if (
            self._fast_ticks < FAST_TICKS
            or steps < 2
            or journal.nests
            or journal.ops_due
            or OPTIMIZER_BEGINS in tail
            or (alone and not journal.teaches)
        ):
            return
        first = len(kinds) - len(tail)
        ends = [(first + at) * WORDS for at, kind in enumerate(tail) if kind == OPTIMIZER_ENDS]
        if len({words[at + 3] for at in ends}) > 1:
            # Several optimizers may make one step, which counting one of them would not tell.
            return
        lengths = sorted(words[after + 2] - words[before + 2] for before, after in pairwise(ends))
        self._usual = max(1, lengths[len(lengths) // 2])
        journal.longest = USUAL_STEPS * self._usual + LEAST_LONG_NS
        journal.pause_due = True

    def begin(self, now: int, optimizer: int) -> None:
        """A step of this optimizer has just ended, and a rest is due."""
        journal = self._journal
        journal.pause_due = False
        if now >= journal.rests_until:
            journal.rests_until = now + REST_NS
        journal.due = journal.rests_until
        journal.note(PAUSE, now, now, journal.longest)
        if journal.device is not None:
            journal.device.pause()
        self._began, self._steps_then = now, journal.steps
        journal.forward_began = 0
        # By it the ends of steps are known.
        journal.optimizer = optimizer
        journal.resting = True
        self._shallow_until = self._shallow_until or now + SHALLOW_FIRST_NS
        self.deep = now > self._shallow_until and not journal.teaches
        if self.deep:
            journal.deep = CALLS * REST_NS // self._usual
        for told in self._told:
            told(True)

    def end(self, now: int, whole: bool = False) -> None:
        """From now on all is noted. Of the step under way the `whole` was not seen, or what its first forward began."""
        journal = self._journal
        if not journal.resting:
            return
        journal.resting = False
        deep, journal.deep = journal.deep, 0
        journal.optimizer = 0
        last, count = journal.last_step, journal.steps - self._steps_then
        self.steps += count
        journal.note(RESTED, self._began, last, count)
        if deep and now - last > journal.longest:
            self._shallow_until = max(self._shallow_until, now) + SHALLOW_TIMES * (now - last)
        unseen = journal.forward_began if journal.forward_began > last else last
        if whole or unseen > last or (deep and now > last):
            journal.note(UNSEEN, unseen, now)
        if journal.device is not None:
            journal.device.resume(last)
        journal.pause_due = now < journal.rests_until
        journal.skip = PHASES_TIMED if journal.pause_due else 0
        journal.due = journal.rests_until if journal.pause_due else now + TIMED_NS
        for told in self._told:
            told(False)

    def stay_shallow(self, now: int) -> None:
        """This rest and those that follow for a while are none of the deep ones: those see what lies within a forward
        as something of its own.
        """
        self._journal.deep = 0
        self.deep = False
        self._shallow_until = max(self._shallow_until, now + SHALLOW_FIRST_NS)

    def over(self) -> None:
        """Say how many steps a rest has had so far, if there is one, and end it."""
        self.end(time.monotonic_ns())


keep_from_compiling(Rest.begin.__code__, Rest.end.__code__, Rest.stay_shallow.__code__, inner=True)
