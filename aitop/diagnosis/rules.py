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
from aitop.diagnosis.causes.serving import queue, tail
from aitop.diagnosis.conditions import clocks, device_memory, hang, hardware, host_memory, memory, regression
from aitop.diagnosis.rule import Rule

CAUSES: tuple[Rule, ...] = (
    # These two compare requests. The first claims only lines that hold requests up now and then, the second nothing.
    tail.judge,
    queue.judge,
    # It claims nothing, and what a late rank does of its own is no part of the exchange.
    comm_bound.comm_bound,
    straggler.straggler,
    recompile.judge,
    between_steps.checkpoint,
    between_steps.evaluation,
    gil.judge,
    collector.judge,
    step_growth.judge,
    input_bound.judge,
    preprocessing.judge,
    transfer_bound.judge,
    sync_stall.judge,
    between_steps.host_io,
    optimizer.judge,
    # A policy that is called for one observation at a time makes many small operations.
    underbatched.judge,
    python_overhead.judge,
    launch_bound.judge,
    bandwidth.judge,
    precision.judge,
    oversubscription.judge,
    host.judge,
    computing.compute_bound,
)
CONDITIONS: tuple[Rule, ...] = (
    memory.leak,
    device_memory.oom_risk,
    device_memory.fragmentation,
    host_memory.pressure,
    clocks.throttled,
    clocks.power_capped,
    hardware.shared,
    hardware.slow_link,
    hardware.fault,
)
# The hang comes first: while nothing moves, no other rule may claim the line on which the run stands.
# The regression claims nothing, but looks for its line among all entries, so it comes before any cause claims some.
RULES: tuple[Rule, ...] = (hang.hang, regression.judge, *CAUSES, *CONDITIONS)
