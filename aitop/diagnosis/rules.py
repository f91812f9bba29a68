"""All rules."""

from __future__ import annotations

from aitop.diagnosis import (
    between_steps,
    clocks,
    collector,
    comm_bound,
    computing,
    device_memory,
    device_rules,
    gil,
    hang,
    hardware,
    host_memory,
    input_bound,
    memory,
    optimizer,
    oversubscription,
    step_growth,
    straggler,
)
from aitop.diagnosis.rule import Rule

RULES: tuple[Rule, ...] = (
    hang.RULE,
    straggler.RULE,
    comm_bound.RULE,
    input_bound.RULE,
    *between_steps.RULES,
    optimizer.RULE,
    *computing.RULES,
    *device_rules.RULES,
    gil.RULE,
    oversubscription.RULE,
    collector.RULE,
    step_growth.RULE,
    *memory.RULES,
    *device_memory.RULES,
    *host_memory.RULES,
    *clocks.RULES,
    *hardware.RULES,
)
