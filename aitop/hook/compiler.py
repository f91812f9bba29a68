"""What torch.compile has counted of itself: compilations, those made again, graph breaks. It is never imported."""

from __future__ import annotations

import os
import sys
from typing import Any

from .patches import Patches
from .wrappers import Keeper

MOST_REASONS = 3
LONGEST_REASON = 300


class Compiler:
    """Reads dynamo's counters, where it is in use."""

    def __init__(self, torch: Any, patches: Patches, keeper: Keeper) -> None:
        self.watches: tuple[str, ...] = ()

    def look(self, now: int) -> None:
        """Nothing to look after."""

    def facts(self) -> dict[str, Any]:
        """Empty where torch.compile is not in use."""
        utils: Any = sys.modules.get("torch._dynamo.utils")
        convert: Any = sys.modules.get("torch._dynamo.convert_frame")
        counters = getattr(utils, "counters", None)
        times = getattr(convert, "FRAME_COMPILE_COUNTER", None)
        if counters is None or times is None:
            return {}
        # A compiling thread may add to them meanwhile.
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
    """Why the last recompilations were made, the newest first: where, and which guard failed."""
    found: list[str] = []
    for metrics in reversed(list(getattr(utils, "_compilation_metrics", ()))):
        reason = getattr(metrics, "recompile_reason", None)
        if not isinstance(reason, str) or not reason:
            continue
        file = os.path.basename(str(getattr(metrics, "co_filename", "")))
        line = getattr(metrics, "co_firstlineno", None)
        text = f"{getattr(metrics, 'co_name', '')} ({file}:{line}): {reason.strip()}"[:LONGEST_REASON]
        if text not in found:
            found.append(text)
        if len(found) >= MOST_REASONS:
            break
    return found
