"""Wrappers around torch's functions that time the phases of a step: batch, forward, backward, save, garbage collection.

Each wrapper calls the original exactly once and passes on its result or exception; the wrapper itself raises nothing
(but see errors.py). In the common case it reads the clock, calls the original, reads the clock again and notes an
event.

Wrappers run with cold CPU caches, where touching one more object costs more than one more instruction. So they use no
globals: constants and functions are bound to names of the enclosing function. That includes callables stored on an
instance (`journal.extend`), because Python caches the lookup of attributes and of a class's methods, but not of a call
on an instance's attribute.

A KeyboardInterrupt may arrive after any call. So each wrapper sets `busy` inside the `try`, with no call between that
and the original, and resets it first thing in the `finally`.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..protocol.events import BACKWARD, COLLECT, FORWARD, FORWARD_ALONE, LOADER, NEXT, NO_NEXT, SAVE
from .compiler import keep_from_compiling
from .journal import GONE, LATE_NS, MOST_WORDS, PHASES_SKIPPED, Journal

if TYPE_CHECKING:
    from .session import Session

# While batches and forwards are passed on unseen, the gradient mode is read only at one in this many of them, because
# that takes 2 to 4 µs with cold caches. A prime number, so that each call of a step gets its turn.
ASKED_EVERY = 5
# Of a list of arguments. A batch of token ids as Python numbers may have thousands.
LOOKED_AT = 16

_now = time.monotonic_ns
_ident = _thread.get_ident


def wrap_next(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Wrap `_BaseDataLoaderIter.__next__`: the data wait, until the next batch is there."""
    journal, clock, ident, identity, extend = session.journal, _now, _ident, id, session.journal.extend
    came, none_came, late = NEXT, NO_NEXT, LATE_NS

    def __next__(self: Any) -> Any:  # noqa: N807
        if journal.passes:
            journal.passes -= 1
            try:
                return original(self)
            except BaseException:
                if journal.counting and ident() == journal.owner:
                    end = clock()
                    journal.stop_counting(end)
                    extend((none_came, end, end, identity(self), -1))
                raise
        # Not measured: calls nested in a phase of the owner, and all calls of other threads, unless such a thread
        # becomes the owner here.
        if journal.busy if ident() == journal.owner else session.not_owner():
            return original(self)
        kind = none_came
        waiting = -1 if journal.skip else ask_feed(self, session)
        start = clock()
        try:
            journal.busy = True
            batch = original(self)
            kind = came
            if journal.batch_came is not None:
                journal.batch_came(batch)
            return batch
        finally:
            journal.busy = False
            end = clock()
            if journal.counting and (kind != came or end - start >= journal.longest or end > journal.count_until):
                journal.stop_counting(start)
            if not journal.counting:
                extend((kind, start, end, identity(self), waiting))
                if journal.skip and end - journal.due < late:
                    journal.skip -= 1
                elif end > journal.due or journal.fast or journal.called is not None:
                    look_after(journal, end, kind)

    return __next__


def ask_feed(iterator: Any, session: Session) -> int:
    """Return how many batches are ready in the iterator's queue, -1 if it has no workers."""
    try:
        key = id(iterator)
        if key not in session.iterators:
            session.met_iterator(iterator)
        _, ready = session.iterators[key]
        return -1 if ready is None else int(ready(iterator))
    except Exception:
        session.failed()
        return -1


def wrap_iter(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Wrap `DataLoader.__iter__`, which makes an iterator and starts its workers."""
    journal, ident = session.journal, _ident

    def __iter__(self: Any) -> Any:  # noqa: N807
        if journal.busy if ident() == journal.owner else session.not_owner():
            return original(self)
        start = _now()
        if journal.counting:
            journal.stop_counting(start)
        try:
            journal.busy = True
            return original(self)
        finally:
            journal.busy = False
            journal.note(LOADER, start, _now())

    return __iter__


def wrap_forward(original: Callable[..., Any], session: Session, holder: Any = None) -> Callable[..., Any]:
    """Wrap `__call__` of a root module's class.

    If the class inherits `__call__`, `holder` is the class that defines it. It is looked up there at each call, because
    others may patch it later, as the tracer of torch.fx does.
    """
    journal, clock, ident, extend = session.journal, _now, _ident, session.journal.extend
    compiling, grad_enabled = session.compiling, session.grad_enabled
    with_gradient, alone, late, every = FORWARD, FORWARD_ALONE, LATE_NS, ASKED_EVERY
    holder = SimpleNamespace(__call__=original) if holder is None else holder

    # One long function, because each call costs time. `args[0]` is the module.
    def __call__(*args: Any, **kwargs: Any) -> Any:  # noqa: N807, PLR0912
        call = holder.__call__
        if compiling():
            return call(*args, **kwargs)
        if journal.passes:
            journal.passes = left = journal.passes - 1
            if left % every or grad_enabled():
                return call(*args, **kwargs)
            # No gradient: an evaluation, or a part of a forward that was passed on. Counting ends with this step.
            journal.passes = journal.longest = 0
        if ident() == journal.owner:
            if journal.busy:
                return call(*args, **kwargs)
        elif session.not_owner():
            return session.aside(call, args, kwargs)
        device = journal.device
        span = None if device is None else device.begin(0)
        start = clock()
        try:
            journal.busy = True
            return call(*args, **kwargs)
        finally:
            journal.busy = False
            if journal.counting:
                if start > journal.count_until or (journal.longest and not (grad_enabled() or journal.has_teacher)):
                    journal.stop_counting(start)
                elif journal.forward_began < journal.last_step:
                    journal.forward_began = start
            if not journal.counting:
                end = clock()
                grad = grad_enabled()
                if span is not None:
                    device.end(span, grad)
                if not journal.skip or grad != journal.size_with_grad:
                    journal.size_with_grad = grad
                    look_at(args[1:], kwargs, end, session)
                extend((with_gradient if grad else alone, start, end, journal.size, journal.tokens))
                if journal.computed is not None:
                    journal.computed(start, end)
                if journal.skip and end - journal.due < late:
                    journal.skip -= 1
                elif end > journal.due or journal.fast or journal.called is not None:
                    look_after(journal, end, with_gradient)

    return __call__


def wrap_watched(original: Callable[..., Any], session: Session, within: Callable[[], object]) -> Callable[..., Any]:
    """Wrap `__call__` of all modules while roots are searched for. `within` is called for modules inside a root."""
    journal, compiling, forward, ident = session.journal, session.compiling, wrap_forward(original, session), _ident
    traced = session.traced

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # A torch.jit trace would record what is read of the module's parameters.
        if compiling() or traced():
            return original(self, *args, **kwargs)
        if ident() == journal.owner:
            if journal.busy:
                within()
                return original(self, *args, **kwargs)
        elif session.not_owner():
            return session.aside(original, (self, *args), kwargs)
        if not session.met_module(self):
            return original(self, *args, **kwargs)
        return forward(self, *args, **kwargs)

    return __call__


def look_at(args: Any, kwargs: Any, now: int, session: Session) -> None:
    """Note the leading dimension and the number of token ids of a forward's arguments in the journal."""
    journal = session.journal
    try:
        journal.size = journal.tokens = -1
        # A torch.jit trace would record what we read of the tensors.
        if not session.traced():
            journal.size = leading(args, kwargs, session.tensor)
            if journal.inputs is not None:
                journal.tokens = journal.inputs(args, kwargs, now)
    except Exception:
        session.failed()


def leading(args: Any, kwargs: Any, tensor: type, depth: int = 0) -> int:
    """Return the leading dimension (usually the batch size) of the first tensor argument that has one, else -1.

    A floating-point vector counts as the features of a single sample, so it gives 1. The first LOOKED_AT values of
    lists, tuples and dicts are searched, two levels deep.
    """
    values = (*args, *kwargs.values()) if kwargs else args
    for value in values if depth == 0 else islice(values, LOOKED_AT):
        if isinstance(value, tensor):
            dimensions = value.dim()  # type: ignore[attr-defined]
            if dimensions == 1 and value.is_floating_point():  # type: ignore[attr-defined]
                return 1
            if dimensions:
                size = value.size(0)  # type: ignore[attr-defined]
                return size if type(size) is int else -1
            continue
        if depth < 2 and isinstance(value, (list, tuple)):
            inner = leading(value, None, tensor, depth + 1)
        elif depth < 2 and isinstance(value, dict):
            inner = leading((), value, tensor, depth + 1)
        else:
            continue
        if inner >= 0:
            return inner
    return -1


def look_after(journal: Journal, now: int, kind: int) -> None:
    """Tick if a tick is due. `kind` is the event that ended a phase.

    In a fast run this is called only at every (`PHASES_SKIPPED` + 1)th phase. In any other it is called only if there
    is something to do: the wrappers ask, because a call costs more.
    """
    if journal.called is not None:
        journal.called(kind)
    if now > journal.due:
        journal.tick(now)
        # Two consecutive readings of the thread's CPU clock give one figure. Not more, as each is a system call.
        journal.cpu_reads = 2
    journal.skip = PHASES_SKIPPED if journal.fast and journal.due and not journal.count_soon else 0


def wrap_backward(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Wrap `torch.autograd._engine_run_backward`, or `torch.autograd.backward` where torch has no such function."""
    journal, clock, ident, extend = session.journal, _now, _ident, session.journal.extend
    kind, late = BACKWARD, LATE_NS

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        if journal.counting:
            return original(*args, **kwargs)
        if journal.busy if ident() == journal.owner else session.not_owner(training=journal.updates):
            return original(*args, **kwargs)
        if journal.ops_due:
            journal.count_ops(args, kwargs)
        device = journal.device
        span = None if device is None else device.begin(1)
        start = clock()
        try:
            journal.busy = kind
            return original(*args, **kwargs)
        finally:
            journal.busy = False
            end = clock()
            if span is not None:
                device.end(span, True)
            updates, journal.updates = journal.updates, False
            if updates:
                journal.steps += 1
                journal.last_step = end
            # With `accumulate_grad` False (torch.autograd.grad) no gradients are accumulated into parameters.
            extend((kind, start, end, 2 if updates else 1 if kwargs.get("accumulate_grad", True) else 0, 0))
            if journal.skip and end - journal.due < late:
                journal.skip -= 1
            elif end > journal.due or journal.fast or journal.called is not None:
                look_after(journal, end, kind)

    return _engine_run_backward


def wrap_save(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Wrap `torch.save`."""
    journal, ident = session.journal, _ident

    def save(*args: Any, **kwargs: Any) -> Any:
        if journal.busy if ident() == journal.owner else session.not_owner():
            return original(*args, **kwargs)
        start = _now()
        if journal.counting:
            journal.stop_counting(start)
        try:
            return original(*args, **kwargs)
        finally:
            end = _now()
            journal.note(SAVE, start, end)
            # A program that only prepares data may save again and again without ever reaching another wrapper.
            if end > journal.due:
                journal.tick(end)

    return save


def gc_callback(session: Session) -> Callable[[str, Any], None]:
    """Return a callback for `gc.callbacks`. A collection stops every thread, so it does not matter which one ran it.

    Collections of generation 0 are left out: they are frequent and take microseconds.
    """
    journal = session.journal

    def collected(phase: str, info: Any) -> None:
        if not info["generation"]:
            return
        if phase == "start":
            journal.collecting = _now()
        elif journal.owner != GONE and len(journal.words) < MOST_WORDS:
            journal.extend((COLLECT, journal.collecting, _now(), 0, 0))

    keep_from_compiling(collected.__code__, inner=True)
    return collected


keep_from_compiling(ask_feed.__code__, look_at.__code__, look_after.__code__, Journal.note.__code__, inner=True)
