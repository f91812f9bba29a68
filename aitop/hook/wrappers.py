"""The functions that stand in for torch's own. Each calls the original exactly once and lets its result or exception
through untouched; our own part cannot raise. In the common case: read the clock, call, read the clock, add up.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from typing import Any, Protocol

from .steps import Steps

_now = time.monotonic_ns
_ident = current_thread = _thread.get_ident


class Keeper(Protocol):
    """What the wrappers ask of the hook that they belong to.

    `iterators` maps the id of a loader's iterator to the function that counts its ready batches, None without workers.
    """

    steps: Steps
    compiling: Callable[[], bool]
    grad_enabled: Callable[[], bool]
    tensor: type
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
    steps, iterators = keeper.steps, keeper.iterators

    def __next__(self: Any) -> Any:  # noqa: N807
        if steps.busy if _ident() == steps.owner else keeper.not_owner():
            return original(self)
        got = False
        try:
            key = id(self)
            if key not in iterators:
                keeper.met_iterator(self)
            ready = iterators[key]
            steps.next_begins(key, -1 if ready is None else ready(self))
        except Exception:
            keeper.failed()
        start = _now()
        try:
            steps.busy = True
            batch = original(self)
            got = True
            return batch
        finally:
            end = _now()
            steps.busy = False
            try:
                steps.next_ended(start, end, got)
            except Exception:
                keeper.failed()

    return __next__


def wrap_iter(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`DataLoader.__iter__`: making an iterator, which starts the workers."""
    steps = keeper.steps

    def __iter__(self: Any) -> Any:  # noqa: N807
        if steps.busy if _ident() == steps.owner else keeper.not_owner():
            return original(self)
        start = _now()
        try:
            steps.busy = True
            iterator = original(self)
            keeper.iterators.pop(id(iterator), None)
            return iterator
        finally:
            steps.busy = False
            try:
                steps.loader_made(start, _now())
            except Exception:
                keeper.failed()

    return __iter__


def wrap_forward(original: Callable[..., Any], keeper: Keeper, watching: bool) -> Callable[..., Any]:
    """`__call__` of a root's class, or of all modules while `watching` for roots."""
    steps, compiling, grad_enabled, tensor = keeper.steps, keeper.compiling, keeper.grad_enabled, keeper.tensor

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if compiling():
            return original(self, *args, **kwargs)
        if _ident() == steps.owner:
            if steps.busy:
                return original(self, *args, **kwargs)
        elif keeper.not_owner():
            return keeper.aside(original, self, args, kwargs)
        if watching and not keeper.met_module(self):
            return original(self, *args, **kwargs)
        device = steps.device
        span = None if device is None else device.begin(0)
        start = _now()
        try:
            steps.busy = True
            return original(self, *args, **kwargs)
        finally:
            end = _now()
            steps.busy = False
            try:
                grad = grad_enabled()
                if span is not None:
                    device.end(span, grad)
                steps.forward_ended(start, end, grad, leading(args, kwargs, tensor))
            except Exception:
                keeper.failed()

    return __call__


def wrap_backward(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`torch.autograd._engine_run_backward` (or `torch.autograd.backward`)."""
    steps = keeper.steps

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        if steps.busy if _ident() == steps.owner else keeper.not_owner():
            return original(*args, **kwargs)
        if keeper.backwards_to_count:
            keeper.before_backward(args)
        device = steps.device
        span = None if device is None else device.begin(1)
        start = _now()
        try:
            steps.busy = True
            return original(*args, **kwargs)
        finally:
            end = _now()
            steps.busy = False
            try:
                if span is not None:
                    device.end(span, True)
                steps.backward_ended(start, end, kwargs.get("accumulate_grad", True))
            except Exception:
                keeper.failed()

    return _engine_run_backward


def wrap_save(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`torch.save`."""
    steps = keeper.steps

    def save(*args: Any, **kwargs: Any) -> Any:
        if steps.busy if _ident() == steps.owner else keeper.not_owner():
            return original(*args, **kwargs)
        start = _now()
        try:
            return original(*args, **kwargs)
        finally:
            try:
                steps.saved(start, _now())
            except Exception:
                keeper.failed()

    return save


def optimizer_hooks(keeper: Keeper) -> tuple[Callable[..., None], Callable[..., None]]:
    """The pair for `register_optimizer_step_pre_hook` and `…_post_hook`."""
    steps, compiling, optimizers = keeper.steps, keeper.compiling, keeper.optimizers

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiling():
            return
        try:
            if _ident() == steps.owner or not keeper.not_owner(training=True):
                steps.busy = False
                steps.optimizer_begins(id(optimizer), _now())
        except Exception:
            keeper.failed()

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiling():
            return
        try:
            if _ident() == steps.owner:
                key = id(optimizer)
                if steps.optimizer_ended(key, _now()) and key not in optimizers:
                    keeper.met_optimizer(optimizer)
        except Exception:
            keeper.failed()

    return before_step, after_step


def gc_callback(keeper: Keeper) -> Callable[[str, Any], None]:
    """For `gc.callbacks`: a collection stops every thread, so whose it is does not matter."""
    steps = keeper.steps

    def collected(phase: str, info: Any) -> None:
        if phase == "start":
            steps.gc_start = _now()
        else:
            steps.gc += _now() - steps.gc_start

    return collected


def leading(args: Any, kwargs: Any, tensor: type, depth: int = 0) -> int:
    """The first dimension of the first tensor among the arguments, -1 without one."""
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, tensor):
            return value.size(0) if value.dim() else -1  # type: ignore[attr-defined]
        if depth < 2 and isinstance(value, (list, tuple)):
            found = leading(value, None, tensor, depth + 1)
        elif depth < 2 and isinstance(value, dict):
            found = leading((), value, tensor, depth + 1)
        else:
            continue
        if found >= 0:
            return found
    return -1
