"""Who is inside the wrapper that torch puts around `Optimizer.step`, told from the frames on the stacks."""

from __future__ import annotations

import sys
from typing import Any

FILE, FUNCTION = "torch/optim/optimizer.py", "wrapper"


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


def optimizer_is_stepping() -> bool:
    """Whether a thread is in the loops over the optimizer hooks, which must not change meanwhile."""
    for frame in sys._current_frames().values():
        at: Any = frame
        while at is not None:
            if _is_wrapper(at):
                return True
            at = at.f_back
    return False
