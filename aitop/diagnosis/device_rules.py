"""The rules about the device, and about how the model uses it."""

from __future__ import annotations

from aitop.diagnosis import (
    bandwidth,
    launch_bound,
    precision,
    preprocessing,
    python_overhead,
    recompile,
    sync_stall,
    transfer_bound,
    underbatched,
)
from aitop.diagnosis.rule import Rule

RULES: tuple[Rule, ...] = (
    sync_stall.RULE,
    transfer_bound.RULE,
    launch_bound.RULE,
    bandwidth.RULE,
    python_overhead.RULE,
    precision.RULE,
    underbatched.RULE,
    preprocessing.RULE,
    recompile.RULE,
)
