"""Keeps the hook's own code out of torch.compile, and reads torch.compile's counters.

Nothing of torch.compile is imported for this.
"""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import Any

from .errors import raise_if_of_program

MOST_REASONS = 3
LONGEST_REASON = 300


def keep_from_compiling(*codes: CodeType, inner: bool = False) -> None:
    """Make dynamo skip the frames of these functions, and with `inner` also those of everything that they call.

    That matters where dynamo examines each frame as it is entered, as after a graph break. It does not affect a call
    inside code that dynamo traces.
    """
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    try:
        if hasattr(frames, "set_code_exec_strategy"):
            action = frames._FrameAction
            strategy = frames._FrameExecStrategy(action.SKIP, action.SKIP if inner else action.DEFAULT)
            for code in codes:
                frames.set_code_exec_strategy(code, strategy)
        elif hasattr(frames, "skip_code"):
            for code in codes:
                frames.skip_code(code)
    except (AttributeError, TypeError):
        # Another version of torch: dynamo may count a frame of ours, which is harmless.
        pass


def compiles() -> bool:
    """Return whether torch.compile has examined any code of this program."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    frames = getattr(dynamo, "counters", {}).get("frames")
    return bool(frames and frames.get("total"))


def compiler_facts() -> dict[str, Any]:
    """Return the numbers of compilations, recompilations and graph breaks; empty where torch.compile is not in use."""
    try:
        return _compiler_facts()
    except Exception:
        raise_if_of_program()
        # Another thread that compiles may change the counters at the same time.
        return {}


def _compiler_facts() -> dict[str, Any]:
    utils: Any = sys.modules.get("torch._dynamo.utils")
    convert: Any = sys.modules.get("torch._dynamo.convert_frame")
    counters = getattr(utils, "counters", None)
    times = getattr(convert, "FRAME_COMPILE_COUNTER", None)
    if counters is None or times is None:
        return {}
    counts = [count for count in list(times.values()) if isinstance(count, int)]
    if not counts:
        return {}
    return {
        "compiles": sum(counts),
        "recompiles": sum(count - 1 for count in counts),
        "graph_breaks": sum(list(counters.get("graph_break", {}).values())),
        "recompile_reasons": reasons(utils),
    }


def reasons(utils: Any) -> list[str]:
    """Return the reasons of the last recompilations, newest first: function, file, line, and the guard that failed."""
    texts: list[str] = []
    for metrics in reversed(list(getattr(utils, "_compilation_metrics", ()))):
        reason = getattr(metrics, "recompile_reason", None)
        if not isinstance(reason, str) or not reason:
            continue
        file = os.path.basename(str(getattr(metrics, "co_filename", "")))
        line = getattr(metrics, "co_firstlineno", None)
        text = f"{getattr(metrics, 'co_name', '')} ({file}:{line}): {reason.strip()}"[:LONGEST_REASON]
        if text not in texts:
            texts.append(text)
        if len(texts) >= MOST_REASONS:
            break
    return texts
