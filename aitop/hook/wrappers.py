"""The functions that stand in for torch's own. Each calls the original exactly once and lets its result or exception
through untouched; our own part cannot raise. In the common case: read the clock, call, read the clock, note it.

Each runs with cold caches, and every object that it touches costs more than an instruction: so what does not change is
bound to names of the enclosing function, and nothing global is asked for. What is called is first bound to a name:
Python remembers where an attribute lies, but looks a method up each time where it is none of the class.

An interrupt of the user's may come after any call: `busy` is set after our last call before the original, inside the
`try`, and taken back before any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import CodeType
from typing import Any, Protocol

from .arguments import leading
from .frames import within_wrapper
from .journal import (
    BACKWARD,
    FORWARD,
    FORWARD_ALONE,
    LATE_NS,
    LOADER,
    NEXT,
    NO_NEXT,
    PHASES_SKIPPED,
    SAVE,
    Journal,
)
from .stand_in import keep_from_compiling

_now = time.monotonic_ns


class Keeper(Protocol):
    """What the wrappers ask of the hook that they belong to.

    `iterators` maps the id of a loader's iterator that is alive to the function that counts its ready batches, None
    without workers. `traced` tells whether torch.jit is recording what is done to tensors.
    `local.busy` is set in other threads than the owner's inside an outermost forward.
    """

    journal: Journal
    compiling: Callable[[], bool]
    traced: Callable[[], Any]
    local: Any
    grad_enabled: Callable[[], bool]
    tensor: Any

    @property
    def iterators(self) -> Any: ...

    @property
    def optimizers(self) -> Any: ...

    def failed(self) -> None:
        """Our own part raised. Called in an `except` block."""

    def not_owner(self, training: bool = False) -> bool:
        """Whether the calling thread, known not to be the owner, cannot become it. A hook due to leave, leaves here."""

    def aside(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a forward in another thread than the owner's; `args` begin with the module."""

    def met_iterator(self, iterator: Any) -> None: ...

    def met_optimizer(self, optimizer: Any) -> None: ...

    def met_module(self, module: Any) -> bool:
        """Whether the outermost module is a root."""

    def count_ops(self, arguments: tuple[Any, ...]) -> None:
        """Count the operations of the graph that this backward goes through."""


def wrap_next(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`_BaseDataLoaderIter.__next__`: the wait for a batch."""
    journal, clock, identity, extend = keeper.journal, _now, id, keeper.journal.extend
    came, none_came, late = NEXT, NO_NEXT, LATE_NS

    def __next__(self: Any) -> Any:  # noqa: N807
        if journal.deep:
            journal.deep -= 1
            try:
                return original(self)
            except BaseException:
                if journal.deep and journal.owned():
                    journal.wake(clock(), True)
                raise
        if journal.resting and not journal.busy:
            start, owned = clock(), journal.owned
            # What another thread sets would outlast the rest.
            if start < journal.rests_until and owned():
                try:
                    journal.busy = True
                    batch = original(self)
                    journal.busy = False
                    if clock() - start >= journal.longest:
                        interrupted(journal, came, start, identity(self))
                    return batch
                except BaseException:
                    journal.busy = False
                    interrupted(journal, none_came, start, identity(self))
                    raise
        owned = journal.owned
        if journal.busy if owned() else keeper.not_owner():
            return original(self)
        if journal.resting:
            journal.wake(clock())
        kind, key = none_came, identity(self)
        waiting = -1 if journal.skip else ask_feed(self, keeper)
        start = clock()
        try:
            journal.busy = True
            batch = original(self)
            kind = came
            return batch
        finally:
            journal.busy = False
            end = clock()
            extend((kind, start, end, key, waiting))
            if journal.skip and end - journal.due < late:
                journal.skip -= 1
            else:
                look_after(journal, end)

    return __next__


def interrupted(journal: Journal, kind: int, start: int, iterator: int) -> None:
    """A batch that ends a rest: it took long, or there was none."""
    if journal.resting and journal.owned():
        end = _now()
        journal.wake(start)
        journal.note(kind, start, end, iterator, -1)


def ask_feed(iterator: Any, keeper: Keeper) -> int:
    """How many batches lie ready, -1 where the iterator has no workers."""
    try:
        key = id(iterator)
        if key not in keeper.iterators:
            keeper.met_iterator(iterator)
        ready = keeper.iterators[key]
        return -1 if ready is None else int(ready(iterator))
    except Exception:
        keeper.failed()
        return -1


def wrap_iter(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`DataLoader.__iter__`: making an iterator, which starts the workers."""
    journal = keeper.journal

    def __iter__(self: Any) -> Any:  # noqa: N807
        owned = journal.owned
        if journal.busy if owned() else keeper.not_owner():
            return original(self)
        start = _now()
        if journal.resting:
            journal.wake(start)
        try:
            journal.busy = True
            return original(self)
        finally:
            journal.busy = False
            journal.note(LOADER, start, _now())

    return __iter__


def wrap_forward(original: Callable[..., Any], keeper: Keeper, holder: Any = None) -> Callable[..., Any]:
    """`__call__` of a root's class. It was inherited from the class `holder`, if given, whose present one is called:
    somebody may have patched that since, as a tracer of torch.fx does.
    """
    journal, clock, extend = keeper.journal, _now, keeper.journal.extend
    compiling, grad_enabled = keeper.compiling, keeper.grad_enabled
    with_gradient, alone, late = FORWARD, FORWARD_ALONE, LATE_NS
    holder = _Own(original) if holder is None else holder

    # In one function, as each call of another costs; `args` go on as they came, the module first.
    def __call__(*args: Any, **kwargs: Any) -> Any:  # noqa: N807, PLR0912
        call = holder.__call__
        if compiling():
            return call(*args, **kwargs)
        if journal.deep and grad_enabled():
            journal.deep -= 1
            return call(*args, **kwargs) if kwargs else call(*args)
        if journal.resting and (journal.busy or grad_enabled() or journal.teaches):
            if journal.busy:
                return call(*args, **kwargs)
            start, owned = clock(), journal.owned
            if start < journal.rests_until and owned():
                began = journal.forward_began
                journal.forward_began = began if began > journal.last_step else start
                try:
                    journal.busy = True
                    return call(*args, **kwargs)
                finally:
                    journal.busy = False
        owned = journal.owned
        if owned():
            if journal.busy:
                return call(*args, **kwargs)
        elif keeper.not_owner():
            return keeper.aside(call, args, kwargs)
        if journal.resting and not woken(journal, own):
            return call(*args, **kwargs)
        device = journal.device
        span = None if device is None else device.begin(0)
        start = clock()
        try:
            journal.busy = True
            return call(*args, **kwargs)
        finally:
            journal.busy = False
            end = clock()
            grad = grad_enabled()
            if span is not None:
                device.end(span, grad)
            if not journal.skip:
                look_at(args[1:], kwargs, end, keeper)
            extend((with_gradient if grad else alone, start, end, journal.size, journal.tokens))
            if journal.skip and end - journal.due < late:
                journal.skip -= 1
            else:
                look_after(journal, end)

    own = __call__.__code__
    return __call__


def woken(journal: Journal, own: CodeType) -> bool:
    """A forward that would end a rest: whether it does. What is within another one does not, which is not marked as
    `busy` in a deep rest. `own` is the code of the wrapper that calls us.
    """
    now = _now()
    if within_wrapper(own, 3):
        journal.shallow(now)
        return False
    journal.wake(now)
    return True


class _Own:
    """Stands for a class that has a `__call__` of its own."""

    __slots__ = ("__call__",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self.__call__ = call


def wrap_watched(
    original: Callable[..., Any], keeper: Keeper, within: Callable[[], object] | None = None
) -> Callable[..., Any]:
    """`__call__` of all modules, while roots are looked for; `within` is called inside of a root."""
    journal, compiling, forward = keeper.journal, keeper.compiling, wrap_forward(original, keeper)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if compiling():
            return original(self, *args, **kwargs)
        if journal.owned():
            if journal.busy:
                if within is not None:
                    within()
                return original(self, *args, **kwargs)
        elif keeper.not_owner():
            return keeper.aside(original, (self, *args), kwargs)
        if not keeper.met_module(self):
            return original(self, *args, **kwargs)
        return forward(self, *args, **kwargs)

    return __call__


def look_at(args: Any, kwargs: Any, now: int, keeper: Keeper) -> None:
    """Look at the arguments of a forward."""
    journal = keeper.journal
    try:
        journal.size = journal.tokens = -1
        # A trace of torch.jit would record that we ask.
        if not keeper.traced():
            journal.size = leading(args, kwargs, keeper.tensor)
            if journal.inputs is not None:
                journal.tokens = journal.inputs(args, kwargs, now)
    except Exception:
        keeper.failed()


def look_after(journal: Journal, now: int) -> None:
    """What need not be done at the end of each phase: in a fast run some go by until the next one that does it."""
    if now > journal.due:
        journal.tick(now)
        # Two in a row give one figure of a step. Reading a thread's CPU clock is a system call.
        journal.cpu_reads = 2
    journal.skip = PHASES_SKIPPED if journal.fast and journal.due and not journal.pause_due else 0
    if not journal.fast:
        journal.cpu_reads = 2


def wrap_backward(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`torch.autograd._engine_run_backward` (or `torch.autograd.backward`)."""
    journal, clock, extend = keeper.journal, _now, keeper.journal.extend
    kind, late = BACKWARD, LATE_NS

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        if journal.resting:
            return original(*args, **kwargs)
        owned = journal.owned
        if journal.busy if owned() else keeper.not_owner():
            return original(*args, **kwargs)
        if journal.ops_due:
            keeper.count_ops(args)
        device = journal.device
        span = None if device is None else device.begin(1)
        start = clock()
        try:
            journal.busy = True
            return original(*args, **kwargs)
        finally:
            journal.busy = False
            end = clock()
            if span is not None:
                device.end(span, True)
            # Gradients of the parameters are made, not only those asked for.
            extend((kind, start, end, 1 if kwargs.get("accumulate_grad", True) else 0, 0))
            if journal.skip and end - journal.due < late:
                journal.skip -= 1
            else:
                look_after(journal, end)

    return _engine_run_backward


def wrap_save(original: Callable[..., Any], keeper: Keeper) -> Callable[..., Any]:
    """`torch.save`."""
    journal = keeper.journal

    def save(*args: Any, **kwargs: Any) -> Any:
        owned = journal.owned
        if journal.busy if owned() else keeper.not_owner():
            return original(*args, **kwargs)
        start = _now()
        if journal.resting:
            journal.wake(start)
        try:
            return original(*args, **kwargs)
        finally:
            end = _now()
            journal.note(SAVE, start, end)
            # A program may do nothing else that we see: who prepares data saves again and again.
            if end > journal.due:
                journal.tick(end)

    return save


keep_from_compiling(interrupted.__code__, woken.__code__, inner=True)
