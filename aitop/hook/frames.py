"""Who is inside the wrapper that torch puts around `Optimizer.step`, told from the frames on the stacks."""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any

FILE, FUNCTION = "torch/optim/optimizer.py", "wrapper"
# The optimizer's own function; between it and the wrapper may be frames of torch's no_grad and of torch.compile.
STEP = "step"
BETWEEN = (
    "torch/utils/_contextlib.py",
    "torch/_dynamo/eval_frame.py",
    "torch/_compile.py",
    "torch/_dynamo/external_utils.py",
)
# What else the wrapper calls outside of its loops, the step within it included: a function of that name in such a file.
BESIDE = {
    "_optimizer_step_code": FILE,
    "_use_grad": FILE,
    "__init__": "torch/autograd/profiler.py",
    "__enter__": "torch/autograd/profiler.py",
    "__exit__": "torch/autograd/profiler.py",
    "cast": "typing.py",
}


def _is_wrapper(frame: Any) -> bool:
    code = frame.f_code
    return bool(code.co_name == FUNCTION and code.co_filename.endswith(FILE))


def within_step(times: int) -> bool:
    """Whether this thread is so many times, one in another, inside the wrapper that torch has around `step`."""
    frame: Any = sys._getframe(1)
    while frame is not None and times:
        times -= _is_wrapper(frame)
        frame = frame.f_back
    return not times


def within_wrapper(own: CodeType, depth: int) -> bool:
    """Whether among the frames of this thread, from so many above ours on, is a wrapper of this code, or one of the
    same file that fetches a batch.
    """
    frame: Any = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        if code is own or (code.co_name == "__next__" and code.co_filename == own.co_filename):
            return True
        frame = frame.f_back
    return False


def hooks_are_iterated() -> bool:
    """Whether a thread may be in the loops over the optimizer hooks, which must not change meanwhile.

    In the step itself it is not: the loop before it is over, the one after it has not begun. A closure that is
    given to `step`, as LBFGS wants it, may hold the whole of a training run.
    """
    for frames in _stacks():
        for position, frame in enumerate(frames):
            if _is_wrapper(frame) and not _just_entered(frame) and not _is_stepping(frames[:position]):
                return True
    return False


def _just_entered(frame: Any) -> bool:
    """Whether nothing of the function has run: Python looks for what else is to be done as it enters one, and so finds
    us there more often than anywhere.
    """
    return bool(frame.f_lineno == frame.f_code.co_firstlineno)


def _is_stepping(inside: list[Any]) -> bool:
    """Whether these frames within the wrapper, the innermost first, are of the step itself, or of what is beside it."""
    for frame in reversed(inside):
        code = frame.f_code
        beside = BESIDE.get(code.co_name)
        if beside is not None and code.co_filename.endswith(beside):
            return True
        if not code.co_filename.endswith(BETWEEN):
            return bool(code.co_name == STEP)
    return False


def _stacks() -> list[list[Any]]:
    """The frames of every thread, the innermost first."""
    stacks = []
    for top in sys._current_frames().values():
        frames: list[Any] = []
        at: Any = top
        while at is not None:
            frames.append(at)
            at = at.f_back
        stacks.append(frames)
    return stacks
