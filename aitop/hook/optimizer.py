"""Sees optimizer steps, which end the steps of a training run: the hooks around them, and where these are installed.

torch's global optimizer hooks cost least. But code compiled from an optimizer's `step` has a guard on these hooks and
is recompiled when one is added or removed. So where the program uses torch.compile, `record_function` is wrapped
instead: torch enters it for each optimizer step that is not compiled, and torch.compile ignores it.

torch's own table of hooks is never changed, because a thread may be iterating it: another table takes its place.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..protocol.events import BACKWARD, OPTIMIZER_BEGINS, OPTIMIZER_ENDS
from .compiler import compiles, keep_from_compiling
from .journal import LATE_NS, Journal, nothing, started_elsewhere
from .patches import Patches
from .phases import look_after

if TYPE_CHECKING:
    from .session import Session

# What the names of the profiler ranges that torch records around optimizer steps begin with.
RANGE = "Optimizer.step#"
# File and name of torch's wrapper around each optimizer's own `step`. It loops over the hooks.
FILE, WRAPPER = "torch/optim/optimizer.py", "wrapper"
# The tables of hooks in torch.optim.optimizer, and the key of our hook in our tables (torch's keys are numbers).
TABLES = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
KEY = "aitop"

_now = time.monotonic_ns
_ident = _thread.get_ident


def optimizer_hooks(session: Session) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the pair for `register_optimizer_step_pre_hook` and `…_post_hook`."""
    return _hook_before(session), _hook_after(session)


def _hook_before(session: Session) -> Callable[..., None]:
    journal, clock, ident, identity, extend = session.journal, _now, _ident, id, session.journal.extend
    compiling, backward = session.compiling, BACKWARD

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if journal.counting or compiling():
            return
        if journal.busy == backward:
            # A step inside the backward pass, of one parameter after the other or in DDP's hook, is a part of that. It
            # may be in a thread of autograd's, and hold a lock of DDP's that a tick would ask for.
            journal.updates = journal.updates or ident() == journal.owner or started_elsewhere(ident())
            return
        if ident() != journal.owner:
            if started_elsewhere(ident()):
                # A thread of autograd's makes no steps: whoever called the backward pass does.
                journal.updates = True
                return
            if session.not_owner(training=True):
                return
        if journal.stepping:
            if within_step(2):
                # An optimizer inside another one, or a subclass that calls its base.
                journal.nested += 1
                journal.nests = True
                return
            # The previous step ended in an exception.
            journal.nested = 0
        journal.busy = False
        if journal.device is not None:
            journal.device.begin_optimizer()
        # Only the id: if the step raises, the program may want to free the optimizer and its memory.
        journal.optimizer = identity(optimizer)
        journal.stepping = now = clock()
        try:
            (_,) = args
            if not kwargs:
                return
        except ValueError:
            # Accelerate passes a closure that is None.
            if not kwargs and args[1] is None:
                return
        # The step has a closure, whose forward and backward run before the step ends.
        extend((OPTIMIZER_BEGINS, now, now, 0, 0))

    return before_step


def _hook_after(session: Session) -> Callable[..., None]:
    journal, clock, ident, identity, extend = session.journal, _now, _ident, id, session.journal.extend
    compiling, kind, late, backward = session.compiling, OPTIMIZER_ENDS, LATE_NS, BACKWARD

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiling():
            return
        key = identity(optimizer)
        if journal.counting:
            now = clock()
            if now - journal.last_step < journal.longest and now < journal.count_until and journal.optimizer == key:
                journal.last_step = now
                journal.steps += 1
            elif ident() == journal.owner:
                _end_counting(journal, key, now)
            elif not started_elsewhere(ident()):
                # The owner may have ended: then this thread takes over.
                session.not_owner(training=True)
            return
        if journal.nested or journal.optimizer != key:
            # A step inside another one, or in another thread. One inside a backward pass comes here too, because its
            # beginning was not noted.
            if journal.nested and journal.busy != backward and ident() == journal.owner:
                journal.nested -= 1
            return
        now = clock()
        if journal.device is not None:
            journal.device.step_ends(now)
        cpu = -1
        if journal.cpu_reads:
            # In a fast run only, as it is a system call.
            journal.cpu_reads -= journal.fast
            cpu = ask_optimizer(optimizer, session)
        extend((kind, journal.stepping, now, key, cpu))
        journal.optimizer = 0
        journal.stepping = 0
        journal.steps += 1
        journal.last_step = now
        if journal.skip and now - journal.due < late:
            journal.skip -= 1
        elif now > journal.due or journal.fast or journal.called is not None:
            look_after(journal, now, kind)
            if journal.count_soon:
                journal.begin_counting(now, key)

    return after_step


def ask_optimizer(optimizer: Any, session: Session) -> int:
    """Return the thread's CPU clock (ns). Remember the optimizer if it is not known yet."""
    if id(optimizer) not in session.optimizers:
        session.met_optimizer(optimizer)
    return time.thread_time_ns()


def _end_counting(journal: Journal, key: int, now: int) -> None:
    """End the counting with the step that ends now: it was long or another optimizer's, or counting time is over."""
    usual = now - journal.last_step < journal.longest and journal.optimizer == key
    if not usual:
        journal.stop_counting(now, True)
        journal.note(OPTIMIZER_ENDS, now, now, key, -1)
    journal.last_step = now
    journal.steps += 1
    if usual:
        journal.stop_counting(now)


keep_from_compiling(_end_counting.__code__, inner=True)


class OptimizerWatch:
    """Installs the session's hooks for the steps of all optimizers."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._torch = torch
        self._patches = patches
        self._hooks = self._before, self._after = optimizer_hooks(session)
        keep_from_compiling(self._before.__code__, self._after.__code__, inner=True)
        self._session = session
        self._module: Any = sys.modules.get("torch.optim.optimizer")
        # The replaced tables: name, torch's own table, ours.
        self._replaced: list[tuple[str, Any, Any]] = []

    def install(self) -> None:
        """Put the hooks in."""
        if compiles() or any(getattr(self._module, name, None) for name in TABLES):
            # If the program has hooks of its own, torch's table must stay: the program may remove them from it.
            self._wrap_ranges()
            return
        for name, hook in zip(TABLES, self._hooks, strict=True):
            if hasattr(self._module, name):
                table = OrderedDict({KEY: hook})
                self._replaced.append((name, getattr(self._module, name), table))
                setattr(self._module, name, table)

    def look(self) -> None:
        """Switch to `record_function` once the program uses torch.compile or has hooks in torch's own table.

        That comes in time to avoid a recompilation if no optimizer has been compiled yet.
        """
        if self._replaced and (compiles() or any(original for _, original, _ in self._replaced)):
            self.remove()
            self._wrap_ranges()

    def rest(self, resting: bool) -> None:
        """Take out the hook before steps (`resting`: put torch's own table in the place of ours), or put it back."""
        self.look()
        for name, original, table in self._replaced[:1]:
            before, after = (table, original) if resting else (original, table)
            # Not if the program has added hooks of its own to our table.
            if getattr(self._module, name) is before and len(table) == 1:
                setattr(self._module, name, after)
                if not self._replaced:
                    # `remove` ran in between.
                    setattr(self._module, name, original)

    def remove(self) -> None:
        """Take the hooks out of torch's tables. The owner of `patches` undoes the patches."""
        while self._replaced:
            name, original, table = self._replaced[-1]
            if len(table) == 1 and getattr(self._module, name) is table:
                setattr(self._module, name, original)
            else:
                # The program has added hooks of its own, and may remove them from this very table: it must stay.
                table[KEY] = nothing
            # Only now, because a KeyboardInterrupt may come in between.
            del self._replaced[-1:]

    def _wrap_ranges(self) -> None:
        recording = self._torch.autograd.profiler.record_function
        self._patches.put(recording, "__enter__", self._entering)
        self._patches.put(recording, "__exit__", self._leaving)

    def _entering(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        before, session = self._before, self._session

        def __enter__(self: Any) -> Any:  # noqa: N807
            try:
                if self.name.startswith(RANGE):
                    values = sys._getframe(1).f_locals
                    before(values["self"], values["args"], values["kwargs"])
            except Exception:
                session.failed()
            return original(self)

        return __enter__

    def _leaving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        after, session = self._after, self._session

        def __exit__(self: Any, error: Any, *rest: Any) -> Any:  # noqa: N807
            done = original(self, error, *rest)
            try:
                if error is None and self.name.startswith(RANGE):
                    values = sys._getframe(1).f_locals
                    after(values["self"], values["args"], values["kwargs"])
            except Exception:
                session.failed()
            return done

        return __exit__


def within_step(times: int) -> bool:
    """Return whether this thread is inside at least `times` nested calls of torch's wrapper around `step`."""
    frame: Any = sys._getframe(1)
    while frame is not None and times:
        times -= frame.f_code.co_name == WRAPPER and frame.f_code.co_filename.endswith(FILE)
        frame = frame.f_back
    return not times
