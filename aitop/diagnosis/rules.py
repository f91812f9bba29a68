"""All rules, in the order in which they claim entries of the ledger: what explains a line best comes first."""

from __future__ import annotations

from aitop.diagnosis.causes import (
    bandwidth,
    between_steps,
    collector,
    comm_bound,
    computing,
    gil,
    host,
    input_bound,
    launch_bound,
    optimizer,
    oversubscription,
    precision,
    preprocessing,
    python_overhead,
    recompile,
    step_growth,
    straggler,
    sync_stall,
    transfer_bound,
    underbatched,
)
from aitop.diagnosis.conditions import clocks, device_memory, hang, hardware, host_memory, memory
from aitop.diagnosis.rule import Rule

CAUSES: tuple[Rule, ...] = (
    straggler.RULE,
    comm_bound.RULE,
    recompile.RULE,
    *between_steps.SAVING_AND_EVALUATION,
    gil.RULE,
    collector.RULE,
    step_growth.RULE,
    input_bound.RULE,
    preprocessing.RULE,
    transfer_bound.RULE,
    sync_stall.RULE,
    between_steps.HOST_IO,
    optimizer.RULE,
    python_overhead.RULE,
    launch_bound.RULE,
    bandwidth.RULE,
    precision.RULE,
    underbatched.RULE,
    oversubscription.RULE,
    host.RULE,
    computing.RULE,
)
CONDITIONS: tuple[Rule, ...] = (
    hang.RULE,
    *memory.RULES,
    *device_memory.RULES,
    *host_memory.RULES,
    *clocks.RULES,
    *hardware.RULES,
)
RULES: tuple[Rule, ...] = (*CAUSES, *CONDITIONS)
