"""The functions that stand in for torch's own. Each calls the original exactly once and lets its result or exception
through untouched; our own part cannot raise. In the common case: read the clock, call, read the clock, note it.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from typing import Any, Protocol

from .frames import within_step
from .journal import (
    BACKWARD,
    COLLECT,
    FORWARD,
    GONE,
    LOADER,
    NEXT,
    OPTIMIZER_BEGINS,
    OPTIMIZER_ENDS,
    SAVE,
    Journal,
)

# Collections go on where nobody makes sense of the entries: in forked workers, and after the last step.
MOST_ENTRIES = 4096

_now = time.monotonic_ns
_ident = current_thread = _thread.get_ident


class Keeper(Protocol):
    """What the wrappers ask of the hook that they belong to.

    `iterators` maps the id of a loader's iterator to the function that counts its ready batches, None without workers.
    """

    journal: Journal
    compiling: Callable[[], bool]
    grad_enabled: Callable[[], bool]
    tensor: Any
    iterators: dict[int, Callable[[Any], int] | None]
    optimizers: dict[int, Any]
    backwards_to_count: int

    def failed(self) -> None:
        """Our own part raised. Called in an `except` block."""

    def not_owner(self, training: bool = False) -> bool:
        """Whether the calling thread, known not to be the owner, cannot become it. A hook due to leave, leaves here."""

    def aside(self, call: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        """Call a root module's forward in another thread than the owner's."""

    def met_iterator(self, iterator: Any) -> None: ...

    def met_optimizer(self, optimizer: Any) -> None: ...

    def met_module(self, module: Any) -> bool:
        """Whether the outermost module is a root."""

    def before_backward(self, arguments: tuple[Any, ...]) -> None: ...


def wrap_next(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`_BaseDataLoaderIter.__next__`: the wait for a batch."""
    journal, iterators = keeper.journal, keeper.iterators
    note = journal.entries.append

    def __next__(self: Any) -> Any:  # noqa: N807
        if journal.busy if _ident() == journal.owner else keeper.not_owner():
            return original(self)
        got, waiting, key = False, -1, id(self)
        try:
            if key not in iterators:
                keeper.met_iterator(self)
            ready = iterators[key]
            if ready is not None:
                waiting = ready(self)
        except Exception:
            keeper.failed()
        start = _now()
        try:
            journal.busy = True
            batch = original(self)
            got = True
            return batch
        finally:
            end = _now()
            journal.busy = False
            try:
                note((NEXT, start, end, key, waiting, got))
                if end > journal.due:
                    journal.tick(end)
            except Exception:
                keeper.failed()

    return __next__


def wrap_iter(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`DataLoader.__iter__`: making an iterator, which starts the workers."""
    journal, iterators = keeper.journal, keeper.iterators
    note = journal.entries.append

    def __iter__(self: Any) -> Any:  # noqa: N807
        if journal.busy if _ident() == journal.owner else keeper.not_owner():
            return original(self)
        start = _now()
        try:
            journal.busy = True
            iterator = original(self)
            iterators.pop(id(iterator), None)
            return iterator
        finally:
            journal.busy = False
            note((LOADER, start, _now()))

    return __iter__


def wrap_forward(original: Callable[..., Any], keeper: Keeper, watching: bool) -> Callable[..., Any]:
    """`__call__` of a root's class, or of all modules while `watching` for roots."""
    journal, compiling, grad_enabled, tensor = keeper.journal, keeper.compiling, keeper.grad_enabled, keeper.tensor
    note = journal.entries.append

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if compiling():
            return original(self, *args, **kwargs)
        if _ident() == journal.owner:
            if journal.busy:
                return original(self, *args, **kwargs)
        elif keeper.not_owner():
            return keeper.aside(original, self, args, kwargs)
        if watching and not keeper.met_module(self):
            return original(self, *args, **kwargs)
        device = journal.device
        span = None if device is None else device.begin(0)
        start = _now()
        try:
            journal.busy = True
            return original(self, *args, **kwargs)
        finally:
            end = _now()
            journal.busy = False
            try:
                grad = grad_enabled()
                if span is not None:
                    device.end(span, grad)
                first: Any = args[0] if args else None
                size = first.size(0) if type(first) is tensor and first.dim() else leading(args, kwargs, tensor)
                # While a model is exported a size may be a symbol, which must not be kept or compared.
                note((FORWARD, start, end, grad, size if type(size) is int else -1))
                if end > journal.due:
                    journal.tick(end)
            except Exception:
                keeper.failed()

    return __call__


def wrap_backward(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`torch.autograd._engine_run_backward` (or `torch.autograd.backward`)."""
    journal = keeper.journal
    note = journal.entries.append

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        if journal.busy if _ident() == journal.owner else keeper.not_owner():
            return original(*args, **kwargs)
        if keeper.backwards_to_count:
            keeper.before_backward(args)
        device = journal.device
        span = None if device is None else device.begin(1)
        start = _now()
        try:
            journal.busy = True
            return original(*args, **kwargs)
        finally:
            end = _now()
            journal.busy = False
            try:
                if span is not None:
                    device.end(span, True)
                # Gradients of the parameters are made, not only those asked for.
                note((BACKWARD, start, end, kwargs.get("accumulate_grad", True)))
                if end > journal.due:
                    journal.tick(end)
            except Exception:
                keeper.failed()

    return _engine_run_backward


def wrap_save(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`torch.save`."""
    journal = keeper.journal
    note = journal.entries.append

    def save(*args: Any, **kwargs: Any) -> Any:
        if journal.busy if _ident() == journal.owner else keeper.not_owner():
            return original(*args, **kwargs)
        start = _now()
        try:
            return original(*args, **kwargs)
        finally:
            note((SAVE, start, _now()))

    return save


def optimizer_hooks(keeper: Keeper) -> tuple[Callable[..., None], Callable[..., None]]:
    """The pair for `register_optimizer_step_pre_hook` and `…_post_hook`."""
    journal, compiling, optimizers = keeper.journal, keeper.compiling, keeper.optimizers
    note = journal.entries.append

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiling():
            return
        try:
            if _ident() != journal.owner and keeper.not_owner(training=True):
                return
            if journal.stepping and within_step(2):
                # An optimizer inside another one, or a subclass that calls its base.
                journal.nested += 1
                return
            # One that is still stepping here was left by an exception.
            journal.busy = False
            journal.nested = 0
            if journal.device is not None:
                journal.device.begin_optimizer()
            journal.stepping = now = _now()
            if len(args) > 1 or kwargs:
                # A closure's forward and backward will come in between.
                note((OPTIMIZER_BEGINS, now, now))
        except Exception:
            keeper.failed()

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiling():
            return
        try:
            if _ident() != journal.owner or not journal.stepping:
                return
            if journal.nested:
                journal.nested -= 1
                return
            now, key, device = _now(), id(optimizer), journal.device
            # Reading a thread's CPU clock is a system call: of fast steps two in sixteen do it, which gives one figure.
            cpu = -1 if journal.fast and journal.steps % 16 > 1 else journal.cpu_clock()
            note((OPTIMIZER_ENDS, journal.stepping, now, key, cpu, None if device is None else device.step_ends(now)))
            journal.stepping = 0
            journal.steps += 1
            journal.last_step = now
            if now > journal.due:
                journal.tick(now)
            if key not in optimizers:
                keeper.met_optimizer(optimizer)
        except Exception:
            keeper.failed()

    return before_step, after_step


def gc_callback(keeper: Keeper) -> Callable[[str, Any], None]:
    """For `gc.callbacks`: a collection stops every thread, so whose it is does not matter."""
    journal = keeper.journal
    note = journal.entries.append

    def collected(phase: str, info: Any) -> None:
        if phase == "start":
            journal.collecting = _now()
        elif journal.owner != GONE and len(journal.entries) < MOST_ENTRIES:
            note((COLLECT, journal.collecting, _now()))

    return collected


def leading(args: Any, kwargs: Any, tensor: type, depth: int = 0) -> int:
    """The first dimension of the first tensor that has one among the arguments, -1 without one."""
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, tensor):
            if value.dim():  # type: ignore[attr-defined]
                size = value.size(0)  # type: ignore[attr-defined]
                return size if type(size) is int else -1
            continue
        if depth < 2 and isinstance(value, (list, tuple)):
            found = leading(value, None, tensor, depth + 1)
        elif depth < 2 and isinstance(value, dict):
            found = leading((), value, tensor, depth + 1)
        else:
            continue
        if found >= 0:
            return found
    return -1
