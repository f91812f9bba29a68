"""All rules."""

from __future__ import annotations

from aitop.diagnosis import between_steps, computing, device_rules, gil, hardware, input_bound, memory, oversubscription
from aitop.diagnosis.rule import Rule

RULES: tuple[Rule, ...] = (
    input_bound.RULE,
    *between_steps.RULES,
    *computing.RULES,
    *device_rules.RULES,
    gil.RULE,
    oversubscription.RULE,
    *memory.RULES,
    *device_memory.RULES,
    *host_memory.RULES,
    *clocks.RULES,
    *hardware.RULES,
)
