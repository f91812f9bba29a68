"""All rules."""

from __future__ import annotations

from aitop.diagnosis import between_steps, computing, hardware, input_bound, memory
from aitop.diagnosis.rule import Rule

RULES: tuple[Rule, ...] = (
    input_bound.RULE,
    *between_steps.RULES,
    *computing.RULES,
    *memory.RULES,
    *hardware.RULES,
)
