"""The hooks around the steps of optimizers, which end the steps of a training run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .frames import within_step
from .journal import LATE_NS, OPTIMIZER_BEGINS, OPTIMIZER_ENDS, Journal
from .stand_in import keep_from_compiling
from .wrappers import Keeper, look_after

_now = time.monotonic_ns


def optimizer_hooks(keeper: Keeper) -> tuple[Callable[..., None], Callable[..., None]]:
    """The pair for `register_optimizer_step_pre_hook` and `…_post_hook`."""
    return _hook_before(keeper), _hook_after(keeper)


def _hook_before(keeper: Keeper) -> Callable[..., None]:
    journal, clock, identity, extend = keeper.journal, _now, id, keeper.journal.extend
    compiling = keeper.compiling

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiling() or journal.resting:
            return
        owned = journal.owned
        if not owned() and keeper.not_owner(training=True):
            return
        if journal.stepping:
            if within_step(2):
                # An optimizer inside another one, or a subclass that calls its base.
                journal.nested += 1
                journal.nests = True
                return
            # It was left by an exception.
            journal.nested = 0
        journal.busy = False
        if journal.device is not None:
            journal.device.begin_optimizer()
        # Not itself: where its step raises, the program may want to be rid of it and its memory.
        journal.optimizer = identity(optimizer)
        journal.stepping = now = clock()
        try:
            (_,) = args
            if not kwargs:
                return
        except ValueError:
            pass
        # A closure's forward and backward will come in between.
        extend((OPTIMIZER_BEGINS, now, now, 0, 0))

    return before_step


def _hook_after(keeper: Keeper) -> Callable[..., None]:
    journal, clock, identity, extend = keeper.journal, _now, id, keeper.journal.extend
    compiling, kind, late = keeper.compiling, OPTIMIZER_ENDS, LATE_NS

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiling():
            return
        key = identity(optimizer)
        if journal.resting:
            now = clock()
            if now - journal.last_step < journal.longest and now < journal.rests_until and journal.optimizer == key:
                journal.last_step = now
                journal.steps += 1
            elif journal.owned():
                _end_rest(journal, key, now)
            else:
                # The thread that stepped may have ended in the rest.
                keeper.not_owner(training=True)
            return
        if journal.nested or journal.optimizer != key:
            # One inside, or one of another thread.
            if journal.nested and journal.owned():
                journal.nested -= 1
            return
        now = clock()
        if journal.device is not None:
            journal.device.step_ends(now)
        cpu = -1
        if journal.cpu_reads:
            journal.cpu_reads -= 1
            cpu = ask_optimizer(optimizer, keeper)
        extend((kind, journal.stepping, now, key, cpu))
        journal.optimizer = 0
        journal.stepping = 0
        journal.steps += 1
        journal.last_step = now
        if journal.skip and now - journal.due < late:
            journal.skip -= 1
        else:
            look_after(journal, now)
            if journal.pause_due:
                journal.pause(now, key)

    return after_step


def ask_optimizer(optimizer: Any, keeper: Keeper) -> int:
    """The thread's CPU clock; an optimizer that is not known yet is met."""
    if id(optimizer) not in keeper.optimizers:
        keeper.met_optimizer(optimizer)
    return keeper.journal.cpu_clock()


def _end_rest(journal: Journal, key: int, now: int) -> None:
    """A step has ended in a rest: later than others, or too late for the rest, or it was another optimizer's."""
    usual = now - journal.last_step < journal.longest and journal.optimizer == key
    if not usual:
        journal.wake(now, True)
        journal.note(OPTIMIZER_ENDS, now, now, key, -1)
    journal.last_step = now
    journal.steps += 1
    if usual:
        journal.wake(now)


keep_from_compiling(_end_rest.__code__, inner=True)
