"""Steps of optimizers, which end the steps of a training run: the hooks around them, and where these are put in.

The hooks that torch has for all optimizers cost least. But code that went through `step` under torch.compile checks
each time whether there are any, and is compiled again when some come or go. So where the program compiles,
`record_function` is wrapped instead, which torch enters for each step that is not compiled, and which torch.compile
ignores.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable
from typing import Any

from ..protocol.events import OPTIMIZER_BEGINS, OPTIMIZER_ENDS
from .compiler import compiles, keep_from_compiling
from .journal import LATE_NS, Journal
from .patches import Patches
from .phases import Keeper, look_after

# How torch calls the ranges that it records around steps.
RANGE = "Optimizer.step#"

# torch's wrapper around each optimizer's own `step`, with the loops over the hooks.
FILE, WRAPPER = "torch/optim/optimizer.py", "wrapper"
STEP = "step"
# Between the wrapper and `step` may be frames of torch's no_grad and of torch.compile.
BETWEEN = (
    "torch/utils/_contextlib.py",
    "torch/_dynamo/eval_frame.py",
    "torch/_compile.py",
    "torch/_dynamo/external_utils.py",
)
# Other functions that the wrapper calls outside of its loops, by the file that they are in.
BESIDE = {
    "_optimizer_step_code": FILE,
    "_use_grad": FILE,
    "__init__": "torch/autograd/profiler.py",
    "__enter__": "torch/autograd/profiler.py",
    "__exit__": "torch/autograd/profiler.py",
    "cast": "typing.py",
}

_now = time.monotonic_ns
_ident = _thread.get_ident


def optimizer_hooks(keeper: Keeper) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the pair for `register_optimizer_step_pre_hook` and `…_post_hook`."""
    return _hook_before(keeper), _hook_after(keeper)


def _hook_before(keeper: Keeper) -> Callable[..., None]:
    journal, clock, ident, identity, extend = keeper.journal, _now, _ident, id, keeper.journal.extend
    compiling = keeper.compiling

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiling() or journal.counting:
            return
        if ident() != journal.owner and keeper.not_owner(training=True):
            return
        if journal.stepping:
            if within_step(2):
                # An optimizer inside another one, or a subclass that calls its base.
                journal.nested += 1
                journal.nests = True
                return
            # An exception ended the step before.
            journal.nested = 0
        journal.busy = False
        if journal.device is not None:
            journal.device.begin_optimizer()
        # The id only: where the step raises, the program may want to drop the optimizer and its memory.
        journal.optimizer = identity(optimizer)
        journal.stepping = now = clock()
        try:
            (_,) = args
            if not kwargs:
                return
        except ValueError:
            pass
        # There is a closure, whose forward and backward will come in between.
        extend((OPTIMIZER_BEGINS, now, now, 0, 0))

    return before_step


def _hook_after(keeper: Keeper) -> Callable[..., None]:
    journal, clock, ident, identity, extend = keeper.journal, _now, _ident, id, keeper.journal.extend
    compiling, kind, late = keeper.compiling, OPTIMIZER_ENDS, LATE_NS

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
            else:
                # The thread that stepped may have ended meanwhile.
                keeper.not_owner(training=True)
            return
        if journal.nested or journal.optimizer != key:
            # A step inside another one, or in another thread.
            if journal.nested and ident() == journal.owner:
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
            if journal.count_soon:
                journal.begin_counting(now, key)

    return after_step


def ask_optimizer(optimizer: Any, keeper: Keeper) -> int:
    """Return the CPU clock of the thread. Remember the optimizer if it is not known yet."""
    if id(optimizer) not in keeper.optimizers:
        keeper.met_optimizer(optimizer)
    return keeper.journal.cpu_clock()


def _end_counting(journal: Journal, key: int, now: int) -> None:
    """End the counting at the end of a step: it was a long one, or another optimizer's, or it is time."""
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
    """Puts the keeper's hooks in where they are seen by all optimizers."""

    def __init__(self, torch: Any, patches: Patches, keeper: Keeper) -> None:
        self._torch = torch
        self._patches = patches
        self._before, self._after = optimizer_hooks(keeper)
        keep_from_compiling(self._before.__code__, self._after.__code__, inner=True)
        self._keeper = keeper
        self._handles: list[Any] = []
        self._careful = False

    def install(self) -> None:
        """Put the hooks in."""
        if compiles():
            self._wrap_ranges()
            return
        optimizer = sys.modules.get("torch.optim.optimizer")
        if optimizer is not None:
            self._handles.append(optimizer.register_optimizer_step_pre_hook(self._before))
            self._handles.append(optimizer.register_optimizer_step_post_hook(self._after))

    def look(self) -> None:
        """Change over to `record_function` when the program has begun to compile; in time if no optimizer is yet."""
        if not self._careful and self._handles and compiles() and not hooks_are_iterated():
            self.remove()
            self._wrap_ranges()

    def remove(self) -> None:
        """Take the hooks back. Patches are taken back by whoever owns them."""
        while self._handles:
            self._handles.pop().remove()

    def _wrap_ranges(self) -> None:
        self._careful = True
        recording = self._torch.autograd.profiler.record_function
        self._patches.put(recording, "__enter__", self._entering)
        self._patches.put(recording, "__exit__", self._leaving)

    def _entering(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        before, keeper = self._before, self._keeper

        def __enter__(self: Any) -> Any:  # noqa: N807
            try:
                if self.name.startswith(RANGE):
                    values = sys._getframe(1).f_locals
                    before(values["self"], values["args"], values["kwargs"])
            except Exception:
                keeper.failed()
            return original(self)

        keep_from_compiling(__enter__.__code__)
        return __enter__

    def _leaving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        after, keeper = self._after, self._keeper

        def __exit__(self: Any, error: Any, *rest: Any) -> Any:  # noqa: N807
            done = original(self, error, *rest)
            try:
                if error is None and self.name.startswith(RANGE):
                    values = sys._getframe(1).f_locals
                    after(values["self"], values["args"], values["kwargs"])
            except Exception:
                keeper.failed()
            return done

        keep_from_compiling(__exit__.__code__)
        return __exit__


# Whether a thread is inside torch's wrapper around `step`, told from the frames on the stacks.


def _is_wrapper(frame: Any) -> bool:
    code = frame.f_code
    return bool(code.co_name == WRAPPER and code.co_filename.endswith(FILE))


def within_step(times: int) -> bool:
    """Return whether this thread is inside torch's wrapper around `step` so many times, one in another."""
    frame: Any = sys._getframe(1)
    while frame is not None and times:
        times -= _is_wrapper(frame)
        frame = frame.f_back
    return not times


def hooks_are_iterated() -> bool:
    """Return whether a thread may be in a loop over the optimizer hooks, which must not change meanwhile.

    In the step itself no thread is in a loop: that before it is over, that after it has not begun. This matters because
    a closure that is given to `step`, as LBFGS wants it, may hold the whole of a training run.
    """
    for frames in _stacks():
        for position, frame in enumerate(frames):
            if _is_wrapper(frame) and not _just_entered(frame) and not _is_stepping(frames[:position]):
                return True
    return False


def _just_entered(frame: Any) -> bool:
    """Return whether nothing of the function has run yet.

    Python handles pending calls as it enters a function, so an attach arrives there more often than anywhere else.
    """
    return bool(frame.f_lineno == frame.f_code.co_firstlineno)


def _is_stepping(inside: list[Any]) -> bool:
    """Return whether these frames within the wrapper, innermost first, are of the step or of a function beside it."""
    for frame in reversed(inside):
        code = frame.f_code
        beside = BESIDE.get(code.co_name)
        if beside is not None and code.co_filename.endswith(beside):
            return True
        if not code.co_filename.endswith(BETWEEN):
            return bool(code.co_name == STEP)
    return False


def _stacks() -> list[list[Any]]:
    """Return the frames of every thread, innermost first."""
    stacks = []
    for top in sys._current_frames().values():
        frames: list[Any] = []
        at: Any = top
        while at is not None:
            frames.append(at)
            at = at.f_back
        stacks.append(frames)
    return stacks
