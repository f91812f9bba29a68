"""One stay of the hook in a process: puts the patches in, looks after the lease, and takes everything back."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..protocol.events import (
    ASIDE,
    BACKWARD,
    FORWARD,
    FORWARD_ALONE,
    OPTIMIZER_ENDS,
    OWNER,
    TRAINED,
)
from ..protocol.ring import EVENT_WORDS
from . import phases
from .burst import Burst
from .compiler import keep_from_compiling
from .cost import SelfTimer, cpu_clock
from .device import DeviceClock, allocators
from .facts import Facts
from .journal import GONE, MOST_WORDS, NOBODY, Journal
from .measures import MEASURES, Measure, gathered
from .optimizer import OptimizerWatch, hooks_are_iterated
from .patches import Patches
from .ring import Ring
from .roots import Roots
from .sampling import Sampling

TICK_EVERY_NS = 50_000_000
FAST_STEPS_IN_A_TICK = 12
LOOK_EVERY_NS = 200_000_000
ALLOCATORS_EVERY_NS = 1_000_000_000
FACTS_EVERY_NS = 3_000_000_000
OPS_AT_BACKWARD = 3
OPS_EVERY_NS = 60_000_000_000
MOST_ERRORS = 3
NEW_OWNER_AFTER_NS = 5_000_000_000
MOST_CPU_CLOCK_NS = 1000
# A run that has made no gradients for so long is taken for inference from then on.
TRAINING_ENDS_AFTER_NS = 300_000_000_000
GUESSED_TRAINING_ENDS_AFTER_NS = 20_000_000_000
# More forwards with gradient than that, without a backward, mean inference that lacks no_grad.
MOST_UNUSED = 8
MOST_KNOWN = 64


class Known(dict[int, Any]):
    """What is known of objects of the program, by their id, for as long as they live. It does not keep them alive."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, Any] = {}

    def add(self, thing: Any, value: Any = None) -> None:
        """Add an object. Raises TypeError for one that has no weak references."""
        key = id(thing)
        if len(self) >= MOST_KNOWN:
            self.forget_all()

        def died(_: Any) -> None:
            self._alive.pop(key, None)
            self.pop(key, None)

        self._alive[key] = weakref.ref(thing, died)
        self[key] = value

    def forget_all(self) -> None:
        """Remove everything."""
        self.clear()
        self._alive.clear()


class Session:
    """The hook at work. It is the `Keeper` of its wrappers, which may call it from any thread."""

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
        self.journal = Journal(cpu_clock(MOST_CPU_CLOCK_NS), self.tick)
        self.iterators = Known()
        self.optimizers = Known()
        self._way = way
        self._ring: Ring | None = None if waits_for_a_step else Ring(way)
        self._patches = Patches()
        self._roots: Roots | None = None
        self._measures: list[Measure] = []
        self._burst = Burst(torch)
        self._optimizers = OptimizerWatch(torch, self._patches, self)
        self.sampling = Sampling(self.journal)
        self._gc = phases.gc_callback(self)
        self.local: Any = threading.local()
        self._errors = 0
        self._leaving = self._gone = False
        self.journal.ops_due = OPS_AT_BACKWARD
        self._steps = 0
        # Those of them that were only counted.
        self._counted = 0
        self._trains_until = 0
        # Whether the last optimizer step came without a forward; the forwards since then.
        self._blind = False
        self._forwards = 0
        # Forwards with gradient since the last backward.
        self._unused = 0
        self._count_ops_at = 0
        self._ticking = False
        self._look_due = self._allocators_due = self._facts_due = 0
        self._cost = SelfTimer()

    # Coming in and leaving.

    def install(self) -> None:
        """Put every patch in. Raises if torch is not as expected; `remove` then takes back what was put in."""
        torch = self.torch
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            self._patches.put(loader._BaseDataLoaderIter, "__next__", lambda call: phases.wrap_next(call, self))
            self._patches.put(loader.DataLoader, "__iter__", lambda call: phases.wrap_iter(call, self))
        # All backwards go through it.
        entry = "_engine_run_backward" if hasattr(torch.autograd, "_engine_run_backward") else "backward"
        self._patches.put(torch.autograd, entry, lambda call: phases.wrap_backward(call, self))
        self._patches.put(torch, "save", lambda call: phases.wrap_save(call, self))
        self._roots = Roots(torch.nn.Module, self._patches, self)
        self._roots.watch(time.monotonic_ns())
        self._optimizers.install()
        for make in MEASURES:
            try:
                self._measures.append(make(torch, self._patches, self))
            except Exception:
                # The hook goes on without it; patches that it has put in before it failed only forward.
                self._errors += 1
        gc.callbacks.append(self._gc)
        if self._gone:
            # A removal may have interrupted us between any two bytecodes; then we go on after it.
            self._take_out()
            return
        self._write_facts(time.monotonic_ns())

    def remove(self) -> None:
        """Take every patch back and close the ring. Idempotent. The caller knows that no optimizer is stepping."""
        if self._gone:
            return
        self._gone = True
        self.sampling.over()
        self.journal.owner = GONE
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
        """Make the hook remove itself at the next call that it wraps."""
        if not self._leaving and not self._gone:
            self._leaving = True
            self.sampling.over()
            self.journal.owner = GONE
            if self._ring is not None and os.getpid() == self.pid:
                self._ring.leaving()

    @property
    def gone(self) -> bool:
        return self._gone

    @property
    def must_wait(self) -> bool:
        """Whether `remove` must not be called now, or not in this thread: only a profile's own thread can end it."""
        return self._burst.runs_elsewhere or hooks_are_iterated()

    # What the wrappers ask (see Keeper).

    def failed(self) -> None:
        """Count an error of our own; after a few of them, leave."""
        self._errors += 1
        if self._errors >= MOST_ERRORS:
            self.leave_soon()

    def not_owner(self, training: bool = False) -> bool:
        """Return whether the calling thread cannot become the one that steps."""
        journal = self.journal
        if journal.owner == GONE:
            if self._leaving and not self._gone and not training:
                self._leave()
            return True
        if journal.owner == NOBODY:
            journal.owner = _thread.get_ident()
            return False
        now = time.monotonic_ns()
        if training and now - journal.last_step > NEW_OWNER_AFTER_NS:
            # The thread that was first to fetch a batch or to call a model is not the one that trains.
            self.sampling.over()
            journal.owner = _thread.get_ident()
            journal.busy = False
            journal.stepping = 0
            journal.optimizer = 0
            journal.note(OWNER, now, now)
            return False
        return True

    def aside(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a forward in a thread that is not the owner; where nothing trains, it serves a request and is a step."""
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
                    self.journal.note(ASIDE, start, end, phases.leading(args[1:], kwargs, self.tensor), -1)
                    if end > self.journal.due:
                        self.journal.tick(end)
            except Exception:
                self.failed()

    def met_iterator(self, iterator: Any) -> None:
        """Remember an iterator, and take the settings of its loader."""
        self.iterators.add(iterator, self.facts.met_iterator(iterator))

    def met_optimizer(self, optimizer: Any) -> None:
        """Remember an optimizer, and take its settings."""
        try:
            self.optimizers.add(optimizer)
            self.facts.met_optimizer(optimizer)
        except Exception:
            self.failed()

    def met_module(self, module: Any) -> bool:
        """Return whether this outermost module is a root, and take its facts."""
        try:
            if self._roots is None or not self._roots.met(module):
                return False
            self.facts.met_root(module)
            now = time.monotonic_ns()
            if now > self._trains_until and any(p.grad is not None for p in module.parameters()):
                # It was trained before the hook came in: this may be the evaluation of a training run.
                self.journal.note(TRAINED, now, now)
                self._trains_until = now + GUESSED_TRAINING_ENDS_AFTER_NS
        except Exception:
            self.failed()
        return True

    def count_ops(self, arguments: tuple[Any, ...]) -> None:
        """Count the operations of the graph that this backward goes through, if it is its turn."""
        self.journal.ops_due -= 1
        if self.journal.ops_due:
            return
        try:
            outputs = arguments[0]
            self.facts.count_ops(outputs if isinstance(outputs, (tuple, list)) else (outputs,))
            self.journal.ops_due = int(self.facts.graphs.wants_more)
        except Exception:
            self.failed()

    # Housekeeping.

    def tick(self, now: int) -> None:
        """Write the events to the ring; from time to time `look` after everything else. Never raises."""
        self.journal.due = now + TICK_EVERY_NS
        if os.getpid() != self.pid:
            # This is a forked child: the wrappers only forward in it from now on.
            self.journal.owner = GONE
            return
        if self._ticking or self._gone:
            # In a program that serves requests in threads, another thread may be in here.
            return
        try:
            self._ticking = True
            newest, steps, counted = self.journal.newest, self._steps, self._counted
            self._send(now)
            if now > self._look_due:
                self.look(now)
            counted = self._counted - counted
            self._cost.ticked(self._steps - steps - counted, counted, time.monotonic_ns() - now)
            if self._burst.active:
                served = newest in (FORWARD_ALONE, ASIDE) or (newest == FORWARD and self._unused > MOST_UNUSED)
                self._burst.tick(now, self.journal.last_step, served)
                self.journal.due = 0
                self.journal.count_soon = False
        except Exception:
            self.failed()
        finally:
            self._ticking = False

    def look(self, now: int) -> None:
        """Look after the roots, the lease, the measures and the facts."""
        journal = self.journal
        self._look_due = now + LOOK_EVERY_NS
        if self._roots is not None:
            self._roots.look(now, self._blind)
            if self._roots.watching:
                journal.due = self._look_due = 0
                journal.count_soon = False
        self._optimizers.look()
        self._cost.look(now)
        for measure in list(self._measures):
            try:
                measure.look(now)
            except Exception:
                # The hook goes on without this measure.
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
        """Write the events that were noted, and draw from them what the hook itself has to know."""
        journal = self.journal
        if journal.device is not None:
            journal.device.drain()
        if self._ring is None and not self._open_ring():
            return
        if _thread.get_ident() == journal.owner:
            self.sampling.over()
        words = journal.take()
        kinds = bytes(words[::EVENT_WORDS])
        steps, forwards = kinds.count(OPTIMIZER_ENDS), kinds.count(FORWARD)
        served = kinds.count(FORWARD_ALONE) + kinds.count(ASIDE)
        if steps or BACKWARD in kinds:
            self._trains_until = now + TRAINING_ENDS_AFTER_NS
        trains = now < self._trains_until
        counted, self._counted = self._counted, self.sampling.counted
        self._steps += steps + self._counted - counted if trains else served
        self._forwards += forwards
        if steps:
            # Over several ticks, as in a slow run each phase has a tick of its own.
            self._blind, self._forwards = not self._forwards, 0
        self._unused = 0 if BACKWARD in kinds else self._unused + forwards
        journal.fast = steps + served > FAST_STEPS_IN_A_TICK
        self.sampling.consider(words, kinds)
        if words and self._ring is not None:
            self._ring.write(words)
            self._ring.write_progress(self._steps, self._trains_until)

    def _open_ring(self) -> bool:
        """Open the ring at the first step, in a process that might be a loader worker. Returns whether it is open."""
        words = self.journal.words
        if len(words) > MOST_WORDS:
            self.journal.take()
        if self._gone or self._leaving or not {OPTIMIZER_ENDS, FORWARD_ALONE}.intersection(words[::EVENT_WORDS]):
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


def is_loader_worker() -> bool:
    """Return whether this process is a worker of a DataLoader."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and getattr(worker, "_worker_info", None) is not None


def forget_modules() -> None:
    """Drop the hook's modules as an attach or `aitop run` has put them in; an imported `aitop.hook` loses its alias."""
    for name in [name for name in list(sys.modules) if name.partition(".")[0] in ("_aitop", "_aitop_hook")]:
        sys.modules.pop(name, None)


for _name in "aside tick not_owner failed met_iterator met_optimizer met_module count_ops".split():  # noqa: SIM905
    keep_from_compiling(getattr(Session, _name).__code__, inner=_name != "aside")
