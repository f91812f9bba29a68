"""One stay of the hook in a process: puts the patches in, looks after the lease, and takes everything back."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from . import cost, wrappers
from .arguments import leading
from .backward import Backwards
from .burst import Burst
from .collector import gc_callback
from .device import DeviceClock, allocators
from .facts import Facts
from .frames import hooks_are_iterated
from .journal import (
    ASIDE,
    BACKWARD,
    FORWARD,
    FORWARD_ALONE,
    GONE,
    MOST_WORDS,
    NOBODY,
    OPTIMIZER_ENDS,
    OWNER,
    TRAINED,
    WORDS,
    Journal,
)
from .known import Known
from .measures import MEASURES, Measure, gathered
from .optimizers import OptimizerWatch
from .patches import Patches
from .process import forget_modules, is_loader_worker
from .rest import Rest
from .ring import Presence, Ring
from .roots import Roots
from .stand_in import keep_from_compiling

TICK_EVERY_NS = 50_000_000
FAST_STEPS_IN_A_TICK = 12
LOOK_EVERY_NS = 200_000_000
ALLOCATORS_EVERY_NS = 1_000_000_000
FACTS_EVERY_NS = 3_000_000_000
OPS_AT_BACKWARD = 3
OPS_EVERY_NS = 60_000_000_000
MOST_ERRORS = 3
NEW_OWNER_AFTER_NS = 5_000_000_000
DEAREST_CPU_CLOCK_NS = 1000
# A run that for so long has made no gradients is taken for inference from then on.
TRAINING_ENDS_AFTER_NS = 300_000_000_000
GUESSED_TRAINING_ENDS_AFTER_NS = 20_000_000_000
# More forwards with gradient than that before a backward mean inference that forgot no_grad.
MOST_UNUSED = 8


class Session:
    """The hook at work. It is the keeper of its wrappers, which may call it from any thread."""

    def __init__(self, torch: Any, way: str, waits_for_a_step: bool) -> None:
        self.torch = torch
        self.pid = os.getpid()
        self.stays = way != "attach"
        # While tracing, dynamo takes this for True without looking, and so never looks into a wrapper.
        self.compiling: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", torch.compiler.is_compiling)
        self.traced: Callable[[], Any] = getattr(torch._C, "_get_tracing_state", lambda: None)
        self.grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self.tensor: Any = torch.Tensor
        self.facts = Facts(torch, way)
        self.journal = Journal(cost.cpu_clock(DEAREST_CPU_CLOCK_NS), self.tick)
        self.iterators = Known()
        self.optimizers = Known()
        self._way = way
        self._presence = Presence()
        self._ring: Ring | None = None if waits_for_a_step else Ring(way)
        self._patches = Patches()
        self._backwards = Backwards(torch, self._patches, self)
        self._roots: Roots | None = None
        self._measures: list[Measure] = []
        self._burst = Burst(torch)
        self._optimizers = OptimizerWatch(torch, self._patches, self)
        self.rest = Rest(self.journal, self._backwards.rest, self._optimizers.rest)
        self._gc = gc_callback(self)
        self.local: Any = threading.local()
        self._errors = 0
        self._leaving = self._gone = False
        self.journal.ops_due = OPS_AT_BACKWARD
        self._steps = 0
        # Those of them that went by in rests.
        self._rested = 0
        self._trains_until = 0
        # Whether the last optimizer step came without a forward, and the forwards since then.
        self._blind = False
        self._forwards = 0
        # Forwards with gradient since the last backward.
        self._unused = 0
        self._count_ops_at = 0
        self._ticking = False
        self._look_due = self._allocators_due = self._facts_due = 0
        self._cost = cost.SelfTimer()

    # Coming and going.

    def install(self) -> None:
        """Put every patch in. Raises if torch is not as expected; `remove` then takes back what was put in."""
        torch = self.torch
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            self._patches.put(loader._BaseDataLoaderIter, "__next__", lambda call: wrappers.wrap_next(call, self))
            self._patches.put(loader.DataLoader, "__iter__", lambda call: wrappers.wrap_iter(call, self))
        self._backwards.put()
        self._patches.put(torch, "save", lambda call: wrappers.wrap_save(call, self))
        self._roots = Roots(torch.nn.Module, self._patches, self)
        self._roots.watch(time.monotonic_ns())
        self._optimizers.install()
        for make in MEASURES:
            try:
                self._measures.append(make(torch, self._patches, self))
            except Exception:
                # Of use where it works; what it patched before it failed only forwards.
                self._errors += 1
        gc.callbacks.append(self._gc)
        if self._gone:
            # A removal may come between any two of our bytecodes, and what it interrupted goes on after it.
            self._take_out()
            return
        self._write_facts(time.monotonic_ns())

    def remove(self) -> None:
        """Take every patch back and close the ring. Idempotent. The caller knows that no optimizer is stepping."""
        if self._gone:
            return
        self._gone = True
        self.rest.over()
        self.journal.own(GONE)
        self._take_out()
        self._burst.abandon()
        ring, self._ring = self._ring, None
        if ring is None:
            return
        mine = os.getpid() == self.pid
        try:
            if mine:
                if self.journal.device is not None:
                    self.journal.device.flush()
                ring.write(self.journal.take())
        finally:
            ring.close(mark=mine)

    def _take_out(self) -> None:
        self._patches.take_all_back()
        self._optimizers.remove()
        if self._gc in gc.callbacks:
            gc.callbacks.remove(self._gc)
        self.iterators.forget_all()
        self.optimizers.forget_all()

    def leave_soon(self) -> None:
        """Ask the hook to remove itself at the next call that it wraps."""
        if not self._leaving and not self._gone:
            self._leaving = True
            self.rest.over()
            self.journal.own(GONE)
            if self._ring is not None and os.getpid() == self.pid:
                self._ring.leaving()

    @property
    def gone(self) -> bool:
        return self._gone

    @property
    def must_wait(self) -> bool:
        """Whether `remove` would come at a wrong moment, or in a thread that cannot end what another one began."""
        return self._burst.runs_elsewhere or hooks_are_iterated()

    # What the wrappers ask.

    def failed(self) -> None:
        """Count our own errors, and leave after a few. A half-counted step is dropped."""
        self._errors += 1
        if self._errors >= MOST_ERRORS:
            self.leave_soon()

    def not_owner(self, training: bool = False) -> bool:
        """Whether the calling thread cannot become the one that steps."""
        journal = self.journal
        if journal.owner == GONE:
            if self._leaving and not self._gone and not training:
                self._leave()
            return True
        if journal.owner == NOBODY:
            journal.own(_thread.get_ident())
            return False
        now = time.monotonic_ns()
        if training and now - journal.last_step > NEW_OWNER_AFTER_NS:
            # Whoever was first to fetch a batch or call a model is not the thread that trains.
            self.rest.over()
            journal.own(_thread.get_ident())
            journal.busy = False
            journal.stepping = 0
            journal.optimizer = 0
            journal.note(OWNER, now, now)
            return False
        return True

    def aside(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A forward in another thread. Where nothing trains, threads serve requests: each is a step."""
        local, start = self.local, time.monotonic_ns()
        if (
            self.journal.owner == GONE
            or start < self._trains_until
            or getattr(local, "busy", False)
            or (self._roots is not None and not self._roots.may_be(args[0]))
        ):
            return call(*args, **kwargs)
        try:
            local.busy = True
            return call(*args, **kwargs)
        finally:
            local.busy = False
            try:
                if not self.grad_enabled():
                    end = time.monotonic_ns()
                    self.journal.note(ASIDE, start, end, leading(args[1:], kwargs, self.tensor), -1)
                    if end > self.journal.due:
                        self.journal.tick(end)
            except Exception:
                self.failed()

    def met_iterator(self, iterator: Any) -> None:
        self.iterators.add(iterator, self.facts.met_iterator(iterator))

    def met_optimizer(self, optimizer: Any) -> None:
        try:
            self.optimizers.add(optimizer)
            self.facts.met_optimizer(optimizer)
        except Exception:
            self.failed()

    def met_module(self, module: Any) -> bool:
        try:
            if self._roots is None or not self._roots.met(module):
                return False
            self.facts.met_root(module)
            now = time.monotonic_ns()
            if now > self._trains_until and any(p.grad is not None for p in module.parameters()):
                # It was trained before we came: this may be the evaluation of a training run.
                self.journal.note(TRAINED, now, now)
                self._trains_until = now + GUESSED_TRAINING_ENDS_AFTER_NS
        except Exception:
            self.failed()
        return True

    def count_ops(self, arguments: tuple[Any, ...]) -> None:
        self.journal.ops_due -= 1
        if self.journal.ops_due:
            return
        try:
            outputs = arguments[0]
            self.facts.count_ops(outputs if isinstance(outputs, (tuple, list)) else (outputs,))
            self.journal.ops_due = int(self.facts.graphs.wants_more)
        except Exception:
            self.failed()

    # Looking after itself.

    def tick(self, now: int) -> None:
        """Send the events off; from time to time look after everything else. Never raises."""
        self.journal.due = now + TICK_EVERY_NS
        if not self._presence[0]:
            # A child that was forked off: it only forwards from now on, and what is patched in it is a copy.
            self.journal.own(GONE)
            return
        if self._ticking or self._gone:
            # In a program that serves requests in threads, another one is at it.
            return
        try:
            self._ticking = True
            newest, before, rested = self.journal.newest, self._steps, self._rested
            self._send(now)
            if now > self._look_due:
                self.look(now)
            rested = self._rested - rested
            self._cost.ticked(self._steps - before - rested, rested, time.monotonic_ns() - now)
            if self._burst.active:
                served = newest in (FORWARD_ALONE, ASIDE) or (newest == FORWARD and self._unused > MOST_UNUSED)
                self._burst.tick(now, self.journal.last_step, served)
                self.journal.due = 0
                self.journal.pause_due = False
        except Exception:
            self.failed()
        finally:
            self._ticking = False

    def look(self, now: int) -> None:
        """Housekeeping: the roots, the lease, the facts."""
        journal = self.journal
        self._look_due = now + LOOK_EVERY_NS
        if self._roots is not None:
            self._roots.look(now, self._blind)
            if self._roots.watching:
                journal.due = self._look_due = 0
                journal.pause_due = False
        self._optimizers.look()
        if not journal.resting:
            # An interrupt of the user's may have kept it out as a rest ended.
            self._backwards.rest(False)
            self._optimizers.rest(False)
        self._cost.look(now, self.rest.deep)
        for measure in list(self._measures):
            try:
                measure.look(now)
            except Exception:
                # Of no more use here; the rest goes on without it.
                self._measures.remove(measure)
                self._errors += 1
        if self._ring is None:
            return
        if not self._ring.wanted(now, self.stays):
            self.leave_soon()
            return
        self._burst.ask(self._ring.burst, now)
        if journal.device is None and self.torch.cuda.is_initialized():
            journal.device = DeviceClock(self.torch, journal, self._patches)
        if now > self._count_ops_at:
            self._count_ops_at = now + OPS_EVERY_NS
            journal.ops_due = journal.ops_due or OPS_AT_BACKWARD
        if self.facts.changed or now > (self._allocators_due if journal.device is not None else self._facts_due):
            self._write_facts(now)

    def _write_facts(self, now: int) -> None:
        if self._ring is None:
            return
        self._allocators_due = now + ALLOCATORS_EVERY_NS
        self._facts_due = now + FACTS_EVERY_NS
        self.facts.changed = False
        self.facts.cost_us = self._cost.us_per_step()
        held = allocators(self.torch) if self.journal.device is not None else []
        self._ring.write_facts(self.facts.text(held, gathered(self._measures)))

    def _send(self, now: int) -> None:
        """Write what was noted, and keep the little that we want to know of it ourselves."""
        journal = self.journal
        if journal.device is not None:
            journal.device.drain()
        if self._ring is None and not self._open_ring():
            return
        if journal.owned():
            self.rest.over()
        words = journal.take()
        kinds = bytes(words[::WORDS])
        steps, forwards = kinds.count(OPTIMIZER_ENDS), kinds.count(FORWARD)
        served = kinds.count(FORWARD_ALONE) + kinds.count(ASIDE)
        if steps or BACKWARD in kinds:
            self._trains_until = now + TRAINING_ENDS_AFTER_NS
        trains = now < self._trains_until
        rested, self._rested = self._rested, self.rest.steps
        self._steps += steps + self._rested - rested if trains else served
        self._forwards += forwards
        if steps:
            # In a slow run each phase has a tick of its own.
            self._blind, self._forwards = not self._forwards, 0
        self._unused = 0 if BACKWARD in kinds else self._unused + forwards
        journal.fast = steps + served > FAST_STEPS_IN_A_TICK
        self.rest.consider(words, kinds)
        if words and self._ring is not None:
            self._ring.write(words)
            self._ring.tell(self._steps, self._trains_until)

    def _open_ring(self) -> bool:
        """At the first step of a process that might have been a loader worker. Whether there is a ring now."""
        words = self.journal.words
        if len(words) > MOST_WORDS:
            self.journal.take()
        if self._gone or self._leaving or not {OPTIMIZER_ENDS, FORWARD_ALONE}.intersection(words[::WORDS]):
            return False
        if is_loader_worker():
            self.leave_soon()
            return False
        self._ring = Ring(self._way)
        return True

    def _leave(self) -> None:
        try:
            if os.getpid() == self.pid and not self.must_wait:
                self.remove()
                forget_modules()
        except Exception:
            self._errors += 1


for _name in "aside tick not_owner failed met_iterator met_optimizer met_module count_ops".split():  # noqa: SIM905
    keep_from_compiling(getattr(Session, _name).__code__, inner=_name != "aside")
