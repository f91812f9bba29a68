"""Counts the optimizer steps that a GradScaler skips because gradients have overflowed.

A skipped step is recognised by the scaler not calling the optimizer: the overflow flag itself is on the device, and
reading it would wait for the device. A fused optimizer is always called and skips on the device, so its skipped steps
are not seen.
"""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...protocol.events import SKIPPED
from ..compiler import keep_from_compiling
from ..patches import Patches
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

MODULES = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler")
METHOD = "_maybe_opt_step"

_ident = _thread.get_ident


class Scaler(Measure):
    """Wraps the method in which a GradScaler decides. `skips` counts skipped steps, None before the first decision."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.session = session
        self.skips: int | None = None
        for name in MODULES:
            owner = getattr(sys.modules.get(name), "GradScaler", None)
            if owner is not None and METHOD in vars(owner):
                patches.put(owner, METHOD, lambda original: wrap_decision(original, self))
                break

    def facts(self) -> dict[str, Any]:
        return {} if self.skips is None else {"scaler_skips": self.skips}

    def decided(self, optimizer: Any, steps_before: int, start: int) -> None:
        """Count and note a skipped step, if the scaler did not call the optimizer."""
        try:
            journal = self.session.journal
            self.skips = self.skips or 0
            if journal.steps == steps_before and not journal.stepping:
                self.skips += 1
                now = time.monotonic_ns()
                if journal.counting:
                    journal.stop_counting(now, True)
                journal.note(SKIPPED, start, now, id(optimizer))
        except Exception:
            self.session.failed()


def wrap_decision(original: Callable[..., Any], scaler: Scaler) -> Callable[..., Any]:
    """Wrap `GradScaler._maybe_opt_step(optimizer, state, …)`, which calls the optimizer or skips the step."""
    journal = scaler.session.journal

    def _maybe_opt_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if _ident() != journal.owner:
            return original(self, optimizer, *args, **kwargs)
        before, start = journal.steps, time.monotonic_ns()
        result = original(self, optimizer, *args, **kwargs)
        scaler.decided(optimizer, before, start)
        return result

    return _maybe_opt_step


keep_from_compiling(Scaler.decided.__code__, inner=True)
