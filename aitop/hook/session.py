"""The hook in one process, from install to remove: patches torch, writes events to the ring, undoes every patch."""

from __future__ import annotations

import _thread
import gc
import importlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ..protocol.events import (
    ASIDE,
    BACKWARD,
    FORWARD,
    FORWARD_ALONE,
    GENERATE,
    ITERATION,
    OPTIMIZER_ENDS,
    OWNER,
    REQUEST,
    TRAINED,
)
from ..protocol.ring import EVENT_WORDS
from ..protocol.training import FORWARDS_WITHOUT_BACKWARD, GUESSED_TRAINING_ENDS_AFTER_NS, TRAINING_ENDS_AFTER_NS
from . import phases
from .compiler import compiles, keep_from_compiling
from .errors import Errors, raise_if_of_program
from .facts import Facts
from .journal import GONE, MOST_WORDS, NOBODY, TICK_EVERY_NS, Journal
from .measures import AT_ONCE, FRONT, MEASURES, Measure
from .optimizer import OptimizerWatch
from .patches import Patches
from .ring import Ring
from .roots import Roots
from .sampling import Sampling

FAST_STEPS_IN_A_TICK = 12
LOOK_EVERY_NS = 200_000_000
FACTS_EVERY_NS = 1_000_000_000
# Each tick loads measures for this long, so that no step waits long. The last one begun in it may take 0.8 ms.
LOAD_NS = 300_000
TICKS_KEPT = 15
NEW_OWNER_AFTER_NS = 5_000_000_000
MOST_KNOWN = 64
# What counts as a step in a run that serves.
SERVED = (FORWARD_ALONE, ASIDE, GENERATE)
# Events at which the ring is opened if that waits for the first step or request.
OPENS = frozenset((OPTIMIZER_ENDS, BACKWARD, FORWARD_ALONE, ITERATION, REQUEST))


# Objects of the program by id: a weak reference to each, and a value.
Known = dict[int, tuple[Callable[[], Any], Any]]


def remember(known: Known, thing: Any, value: Any = None) -> None:
    """Add an object, until it is freed; if there are too many, all others are forgotten.

    Raises TypeError for one that cannot be weakly referenced.
    """
    key = id(thing)
    if len(known) >= MOST_KNOWN:
        known.clear()
    known[key] = weakref.ref(thing, lambda _: known.pop(key, None)), value


class Session:
    """The running hook. Wrappers call it from any thread.

    `torch` is None in a web server without torch: then only requests are measured. `way` is how the hook came in.
    `load` imports a module of this package by name: an attach passes a function that loads the code which it carried
    in; None imports as usual. With `waits_for_a_step` the ring is opened only at the first step or request.
    """

    def __init__(self, torch: Any, way: str, load: Callable[[str], Any] | None, waits_for_a_step: bool) -> None:
        self.torch = torch
        self.pid = os.getpid()
        self.stays = way != "attach"
        if torch is not None:
            # Dynamo replaces this call with True while it traces, so it never traces the rest of a wrapper.
            # Torch 2.2 has no public name for it.
            public = getattr(torch.compiler, "is_dynamo_compiling", None)
            self.compiling: Callable[[], bool] = public or torch._utils.is_compiling
            # The state of a torch.jit trace that is being recorded, or None.
            self.traced: Callable[[], Any] = getattr(torch._C, "_get_tracing_state", lambda: None)
            self.grad_enabled: Callable[[], bool] = torch.is_grad_enabled
            self.tensor: Any = torch.Tensor
            # Every backward goes through this function.
            entry = "_engine_run_backward" if hasattr(torch.autograd, "_engine_run_backward") else "backward"
            self._backward = torch.autograd, entry
        self.facts = Facts(torch, way)
        self.journal = Journal(self.tick)
        # DataLoader iterators, each with the function that counts its ready batches (None without workers).
        self.iterators: Known = {}
        self.optimizers: Known = {}
        # `local.busy` is set while a thread other than the owner is inside an outermost forward.
        self.local: Any = threading.local()
        self.sampling = Sampling(self.journal, self.rest)
        # For each of the last ticks: steps timed, steps only counted, and how long the tick took (ns).
        self.ticks: deque[tuple[int, int, int]] = deque(maxlen=TICKS_KEPT)
        self.measures: list[Measure] = []
        # Until when the run counts as training (ns).
        self.trains_until = 0
        self.burst: Any = None
        # What the measures of servers share (a Requests); None until the first of them is loaded.
        self.requests: Any = None
        self.ring: Ring | None = None if waits_for_a_step else Ring(way)
        self._way = way
        self._load = load
        self._to_load = list(MEASURES if torch is not None else FRONT)
        self._patches = Patches()
        self._roots: Roots | None = None
        self._optimizers: OptimizerWatch | None = None
        self._gc = phases.gc_callback(self)
        self._errors = Errors()
        # It is decided that the hook leaves; a removal has begun, so no new patches; one goes on; everything is undone.
        self._leaving = self._gone = self._removing = self._out = False
        self._steps = 0
        # How many of `_steps` were only counted.
        self._counted = 0
        # Whether the hook sees optimizer steps without any forward, and the forwards since the last such step.
        self._blind = False
        self._forwards = 0
        # Forwards with gradient since the last backward.
        self._unused = 0
        self._ticking = False
        self._look_due = self._facts_due = 0

    # Coming in and leaving.

    def install(self) -> bool:
        """Put all patches in. Returns False if the hook was removed meanwhile.

        Raises if torch is not as expected; the caller must then call `remove`.
        """
        if self.torch is not None:
            self._watch_steps()
        gc.callbacks.append(self._gc)
        load = self._load or (lambda name: importlib.import_module(f"..{name}", __name__))
        for row in list(self._to_load):
            if self._load is None or self.torch is None or not sys.modules.keys().isdisjoint(AT_ONCE.get(row, ())):
                self._load_measure(load, row)
        if self._gone:
            # `remove` may have run between any two bytecodes of this method: undo what was patched since.
            self._take_out()
            return False
        now = time.monotonic_ns()
        self._write_facts(now)
        if self._load is not None:
            # The attach has just held up the run, so the first tick comes later.
            self.journal.due = now + TICK_EVERY_NS
        return not self._gone

    def _watch_steps(self) -> None:
        torch = self.torch
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            self._patches.put(loader._BaseDataLoaderIter, "__next__", lambda call: phases.wrap_next(call, self))
            self._patches.put(loader.DataLoader, "__iter__", lambda call: phases.wrap_iter(call, self))
        self._watch_backward()
        self._patches.put(torch, "save", lambda call: phases.wrap_save(call, self))
        self._roots = Roots(torch.nn.Module, self._patches, self)
        self._roots.watch(time.monotonic_ns())
        self._optimizers = OptimizerWatch(torch, self._patches, self)
        self._optimizers.install()

    def _watch_backward(self) -> None:
        self._patches.put(*self._backward, lambda call: phases.wrap_backward(call, self))

    def _load_some(self, load: Callable[[str], Any]) -> None:
        """Load measures until LOAD_NS have passed."""
        until = time.monotonic_ns() + LOAD_NS
        while self._to_load and time.monotonic_ns() < until:
            self._load_measure(load, self._to_load[0])
        if not self._to_load:
            # Free the code that the attach brought along.
            self._load = None

    def _load_measure(self, load: Callable[[str], Any], row: str) -> None:
        self._to_load.remove(row)
        module, _, name = row.rpartition(".")
        try:
            self.measures.append(getattr(load(f"measures.{module}"), name)(self.torch, self._patches, self))
            if self._gone:
                # The hook was removed while the measure was being loaded.
                self.measures[-1].over()
        except Exception:
            raise_if_of_program()
            # The hook goes on without this measure. Patches that it put in before it failed stay until the hook leaves.

    def remove(self) -> None:
        """Undo every patch and close the ring. Idempotent, and the next call completes one that was interrupted."""
        if self._out or self._removing:
            return
        try:
            self._leaving = self._gone = self._removing = True
            # First of all: whatever else is interrupted, wrappers that are left only forward calls.
            self.journal.owner = GONE
            ends = [partial(self._end, measure) for measure in self.measures]
            run_all([self.sampling.over, self._take_out, *ends, self._close_ring])
            self._out = True
        finally:
            self._removing = False

    def _close_ring(self) -> None:
        ring, self.ring = self.ring, None
        if ring is None:
            return
        mine = os.getpid() == self.pid
        try:
            if mine:
                ring.write(self.journal.take())
        except Exception:
            # The last events are lost.
            raise_if_of_program()
        finally:
            ring.close(mark=mine)

    def _end(self, measure: Measure) -> None:
        """Have a measure undo what it did beside its patches."""
        try:
            measure.over()
        except Exception:
            # The others end as well.
            raise_if_of_program()

    def _take_out(self) -> None:
        if self._optimizers is not None:
            self._optimizers.remove()
        self._patches.take_all_back()
        if self._gc in gc.callbacks:
            gc.callbacks.remove(self._gc)
        self.iterators.clear()
        self.optimizers.clear()

    def leave_soon(self) -> None:
        """Make the hook remove itself at the next call that it wraps."""
        if not self._leaving and not self._gone:
            self._leaving = True
            self.journal.owner = GONE
            self.sampling.over()

    def leave(self) -> None:
        """Complete what `leave_soon` announced, unless only another thread can, or this is a forked child."""
        if os.getpid() == self.pid and not self.must_wait and not self._removing:
            self.remove()
            forget_modules()

    @property
    def leaving(self) -> bool:
        """Whether the hook has left or is about to."""
        return self._leaving

    @property
    def gone(self) -> bool:
        """Whether everything is undone."""
        return self._out

    @property
    def must_wait(self) -> bool:
        """Whether `remove` must not be called in this thread: only the thread that began a profile can end it."""
        return self.burst is not None and self.burst.runs_elsewhere

    # Called by the wrappers.

    def failed(self) -> None:
        """Count an error in the hook, called where it is caught; leave if there are too many."""
        if self._errors.too_many():
            self.leave_soon()

    def not_owner(self, training: bool = False) -> bool:
        """Return whether the calling thread is not the owner (the stepping thread) and cannot become it now.

        It becomes the owner if there is none, or if it trains (`training`) and the owner has not stepped for
        NEW_OWNER_AFTER_NS. If the hook was about to leave, it leaves here.
        """
        journal = self.journal
        if journal.owner == GONE:
            if self._leaving and not self._out:
                self._leave()
            return True
        if journal.owner == NOBODY:
            journal.owner = _thread.get_ident()
            return False
        now = time.monotonic_ns()
        if training and now - journal.last_step > NEW_OWNER_AFTER_NS:
            # The first thread that fetched a batch or called a model became the owner, but another one trains.
            self.sampling.over()
            journal.owner = _thread.get_ident()
            journal.busy = False
            journal.stepping = 0
            journal.optimizer = 0
            journal.note(OWNER, now, now)
            return False
        return True

    def aside(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a forward that was called in a thread other than the owner.

        If nothing trains and it has no gradient, it serves a request and counts as a step.
        """
        local, start = self.local, time.monotonic_ns()
        if (
            self.journal.owner == GONE
            or start < self.trains_until
            or getattr(local, "busy", False)
            # A torch.jit trace would record what we read of the arguments.
            or self.traced()
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
                    journal, given, end = self.journal, args[1:], time.monotonic_ns()
                    tokens = -1 if journal.inputs is None else journal.inputs(given, kwargs, end)
                    journal.note(ASIDE, start, end, phases.leading(given, kwargs, self.tensor), tokens)
                    if journal.computed is not None:
                        journal.computed(start, end)
                    if end > journal.due:
                        journal.tick(end)
            except Exception:
                self.failed()

    def rest(self, resting: bool) -> None:
        """Take out the wrappers that only timed steps need (`resting`: steps are only counted), or put them back."""
        try:
            if not resting and not self._patches.has(*self._backward):
                self._watch_backward()
            elif resting and not self._patches.lost(*self._backward) and not compiles():
                self._patches.take_back(*self._backward)
            if self._optimizers is not None:
                self._optimizers.rest(resting)
        except Exception:
            self.failed()

    def met_iterator(self, iterator: Any) -> None:
        """Remember an iterator and note the settings of its loader."""
        remember(self.iterators, iterator, self.facts.met_iterator(iterator))

    def met_optimizer(self, optimizer: Any) -> None:
        """Remember an optimizer and note its settings."""
        try:
            remember(self.optimizers, optimizer)
            self.facts.met_optimizer(optimizer)
        except Exception:
            self.failed()

    def met_module(self, module: Any) -> bool:
        """Return whether this outermost module is a root. If so, note its facts, and if it already has gradients."""
        try:
            if self._roots is None or not self._roots.met(module):
                return False
            now = time.monotonic_ns()
            if not self.facts.met_root(module) or now < self.trains_until:
                return True
            if any(p.is_leaf and p.grad is not None for p in module.parameters()):
                # Gradients without a backward that we saw: this may be the evaluation of a training run.
                self.journal.note(TRAINED, now, now)
                self.trains_until = now + GUESSED_TRAINING_ENDS_AFTER_NS
        except Exception:
            self.failed()
        return True

    # Housekeeping.

    def tick(self, now: int) -> None:
        """Write the events to the ring, and call `look` when it is due. Raises only what errors.py says."""
        self.journal.due = now + TICK_EVERY_NS
        if os.getpid() != self.pid:
            # A forked child: from now on its wrappers only forward calls.
            self.journal.owner = GONE
            return
        if self.torch is not None and self.traced():
            # A torch.jit trace would record what measures read of tensors.
            return
        # A program that serves requests in threads may be ticking in another thread. No call may lie between this
        # question and the answer to the next thread's, because threads switch at calls.
        if self._ticking or self._gone:
            return
        try:
            self._ticking = True
            newest, steps, counted = self.journal.newest, self._steps, self._counted
            self._send(now)
            if now > self._look_due:
                self.look(now)
            counted = self._counted - counted
            if self._steps > steps:
                self.ticks.append((self._steps - steps - counted, counted, time.monotonic_ns() - now))
            if self._load is not None:
                self._load_some(self._load)
            if self.burst is not None and self.burst.active:
                served = newest in (FORWARD_ALONE, ASIDE) or (
                    newest == FORWARD and self._unused > FORWARDS_WITHOUT_BACKWARD
                )
                self.burst.tick(now, self.journal.last_step, served)
                self.journal.due = 0
                self.journal.count_soon = False
        except Exception:
            self.failed()
        finally:
            self._ticking = False

    def look(self, now: int) -> None:
        """Update roots, optimizers and measures; leave if the lease has run out, else write changed facts."""
        journal = self.journal
        self._look_due = now + LOOK_EVERY_NS
        if self._roots is not None:
            self._roots.look(now, self._steps, self._blind)
            if self._roots.watching:
                journal.due = self._look_due = 0
                journal.count_soon = False
        if self._optimizers is not None:
            self._optimizers.look()
        for measure in list(self.measures):
            try:
                measure.look(now)
            except Exception:
                raise_if_of_program()
                # The hook goes on without this measure.
                self.measures.remove(measure)
                self._end(measure)
        if self.ring is None:
            return
        # torch has been imported since: leave, so that the next attach measures steps as well.
        outgrown = self.torch is None and "torch" in sys.modules
        if outgrown or (not self.stays and not self.ring.wanted(now)):
            self.leave_soon()
        elif self.facts.changed or now > self._facts_due:
            self._write_facts(now)

    def _write_facts(self, now: int) -> None:
        if self.ring is not None and self.torch is not None:
            self._facts_due = now + FACTS_EVERY_NS
            self.facts.changed = False
            self.ring.write_facts(self.facts.text(self.measures))

    def _send(self, now: int) -> None:
        """Write the noted events to the ring. Conclude from them whether the run trains and how short its steps are."""
        journal = self.journal
        if journal.device is not None:
            journal.device.drain()
        if self.ring is None and not self._open_ring():
            return
        if _thread.get_ident() == journal.owner:
            self.sampling.over()
        words = journal.take()
        kinds = bytes(words[::EVENT_WORDS])
        steps, forwards = kinds.count(OPTIMIZER_ENDS), kinds.count(FORWARD)
        if not steps and BACKWARD in kinds:
            # Those whose updates are within the backward pass.
            steps = sum(words[at * EVENT_WORDS + 3] == 2 for at, kind in enumerate(kinds) if kind == BACKWARD)
        served = sum(map(kinds.count, SERVED))
        if steps or BACKWARD in kinds:
            self.trains_until = now + TRAINING_ENDS_AFTER_NS
        trains = now < self.trains_until
        counted, self._counted = self._counted, self.sampling.counted
        self._steps += steps + self._counted - counted if trains else served
        self._forwards += forwards
        if steps:
            # Forwards are counted over several ticks, because in a slow run each phase has a tick of its own.
            self._blind, self._forwards = not self._forwards, 0
        self._unused = 0 if BACKWARD in kinds else self._unused + forwards
        journal.fast = steps + served > FAST_STEPS_IN_A_TICK
        self.sampling.consider(words, kinds)
        if words and self.ring is not None:
            self.ring.write(words)
            self.ring.write_progress(self._steps, self.trains_until)

    def _open_ring(self) -> bool:
        """Open the ring at the first step or request, but not in a loader worker. Returns whether it is open."""
        words = self.journal.words
        if len(words) > MOST_WORDS:
            self.journal.take()
        if self._gone or self._leaving or not OPENS.intersection(words[::EVENT_WORDS]):
            return False
        if is_loader_worker():
            self.leave_soon()
            return False
        self.ring = Ring(self._way)
        if self.requests is not None:
            self.requests.write_alive()
        return True

    def _leave(self) -> None:
        try:
            self.leave()
        except Exception:
            # What the program called goes on.
            raise_if_of_program()


def run_all(calls: list[Callable[[], object]]) -> None:
    """Run these functions in turn, also the rest if one raises, as a signal handler of the program may."""
    try:
        while calls:
            calls.pop(0)()
    finally:
        if calls:
            run_all(calls)


def is_loader_worker() -> bool:
    """Return whether this process is a worker of a DataLoader."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and getattr(worker, "_worker_info", None) is not None


def forget_modules() -> None:
    """Drop the hook's modules that an attach or `aitop run` added. An imported `aitop.hook` only loses its alias."""
    for name in [name for name in list(sys.modules) if name.partition(".")[0] in ("_aitop", "_aitop_hook")]:
        sys.modules.pop(name, None)


for _name in "aside tick not_owner failed met_iterator met_optimizer met_module".split():  # noqa: SIM905
    keep_from_compiling(getattr(Session, _name).__code__, inner=_name != "aside")
