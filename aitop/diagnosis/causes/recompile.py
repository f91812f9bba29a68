"""recompile: a compiler (torch.compile, jax.jit, …) keeps compiling long after the run has warmed up."""

from __future__ import annotations

import statistics
from itertools import pairwise

from aitop.diagnosis.evidence import (
    Lines,
    by_window,
    each_unit,
    main_lines,
    main_stacks,
    of_unit,
    records,
    samples_of,
    short_place,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.series import values_since
from aitop.diagnosis.what_if import fix
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Fix

ENTER, LEAVE = 0.08, 0.05
# Compiling is normal at the start, and again for evaluation and for a smaller last batch. It is a fault if it takes
# turns with something else in more than MIN_WINDOWS windows of stacks and still goes on, or if the count of
# recompilations rose at least MIN_RISES times in the last SEEN_SECONDS. It goes on if the last window with it is one of
# the NEWEST or, where there are usually others in between, not much longer ago than they are apart.
MIN_WINDOWS, PART_OF_WINDOW = 3, 0.05
MIN_RISES, SEEN_SECONDS = 3, 30.0
# Compiling for at least this share of the time is told, as information, even if it may be that of the start.
MOSTLY = 0.5
# How many windows of stacks count as the newest; they have no times of their own.
NEWEST = 2


@rule("recompile", ENTER, LEAVE)
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether compiling goes on while steps are made."""
    compiling = main_lines(snapshot, lambda entry: entry.activity == "compile")
    counts = values_since(snapshot, "recompiles", SEEN_SECONDS)
    rises = [(time, now - before) for (_, before), (time, now) in pairwise(counts) if now > before]
    if not compiling.lines and not rises:
        return None
    if len(rises) < MIN_RISES and not takes_turns(snapshot, compiling):
        return _perhaps(snapshot, compiling)
    share = compiling.share
    if share < LEAVE:
        return None
    # Compiling makes so many objects that the garbage collector starts by itself: those collections end with it.
    collecting = main_lines(snapshot, lambda entry: entry.activity == "collect" and entry.where is None)
    evidence = [f"{percent(share)} of {samples_of(snapshot)} stack samples are inside of the compiler"]
    if rises:
        seconds = max(1.0, snapshot.time - rises[0][0])
        evidence.append(f"{sum(by for _, by in rises):.0f} recompilations in the last {seconds:.0f} s")
    facts = snapshot.facts
    if facts is not None and facts.recompile_reasons:
        evidence.append(f"the newest: {facts.recompile_reasons[0]}")
    if facts is not None and facts.graph_breaks:
        evidence.append(f"{facts.graph_breaks} graph breaks since the start")
    of_each, at_leisure = of_unit(snapshot, share)
    if at_leisure:
        evidence.append(at_leisure)
    at = f" at {short_place(compiling.where[0])}" if compiling.where else ""
    shapes = sorted({step.samples for step in records(snapshot) if step.samples})
    # If compiling is in the forward pass, the compiler is torch's: its compiled calls count as that phase.
    torch = snapshot.facts is not None or any(entry.phase == "forward" for entry in compiling.entries)
    varying = f" (batches of {shapes[0]} to {shapes[-1]} were seen)" if len(shapes) > 1 else ""
    return Explanation(
        share=share,
        saved=of_each,
        signals=(len(rises) >= MIN_RISES, bool(compiling.lines), len(records(snapshot)) >= 20),
        title=f"{percent(share)} of {each_unit(snapshot)} goes into compiling again what was compiled before",
        lines=compiling,
        claims=(*compiling.entries, *collecting.entries),
        evidence=evidence,
        fixes=(
            fix(f"pad inputs to a few fixed shapes before the compiled call{at}{varying}", of_each),
            *(_with_torch(of_each) if torch else _with_others(of_each)),
        ),
    )


def _perhaps(snapshot: Snapshot, compiling: Lines) -> Explanation | str:
    """The answer if compiling may be that of the start: information while it takes most of the time, else a reason."""
    unknown = "whether that goes on after warm-up is not known"
    process = main_stacks(snapshot)
    now = process is not None and sum(by_window(compiling.lines, process)[-NEWEST:]) > 0
    if compiling.share < MOSTLY or not now:
        return f"something is compiled; {unknown}"
    return Explanation(
        severity="info",
        share=compiling.share,
        gains=False,
        doubtful=True,
        title=f"{percent(compiling.share)} of {each_unit(snapshot)} is compiling: {unknown}",
        lines=compiling,
        # It explains nothing yet, so other causes may claim these entries.
        claims=(),
        evidence=[f"{percent(compiling.share)} of {samples_of(snapshot)} stack samples are inside of the compiler"],
    )


def _with_torch(share: float) -> tuple[Fix, ...]:
    return (
        fix("torch._dynamo.mark_dynamic on the size that varies, or torch.compile(dynamic=True)", share),
        fix("pass Python numbers that change (step, rate) as tensors; TORCH_LOGS=recompiles names the guard", share),
    )


def _with_others(share: float) -> tuple[Fix, ...]:
    once = "make the compiled function once, outside of loops, and pass what changes as arrays, not as static arguments"
    return (
        fix(once, share),
        fix('with JAX, jax.config.update("jax_explain_cache_misses", True) says why it compiles again'),
    )


def takes_turns(snapshot: Snapshot, compiling: Lines, least: float = PART_OF_WINDOW) -> bool:
    """Whether one line compiles in turns with other work, in several windows of stacks, and still does.

    It has to take the part `least` of a window, but not all of it: compiling at the start fills its windows, or comes
    once. If every step compiles, nothing else may be seen. But each compilation begins with tracing the user's
    function, so windows count as well that show tracing, however short, and what follows it.
    """
    process = main_stacks(snapshot)
    if process is None or not compiling.where:
        return False
    first = compiling.where[0]
    at_line = [entry for entry in compiling.lines if entry.at == first.at]
    parts = by_window(at_line, process)
    traced = by_window([entry for entry in at_line if entry.work == "trace"], process)
    turns = [
        number
        for number, part in enumerate(parts)
        if part >= least and (part <= 1.0 - PART_OF_WINDOW or 0.0 < traced[number] < part)
    ]
    if len(turns) <= MIN_WINDOWS:
        return False
    apart = statistics.median(later - earlier for earlier, later in pairwise(turns))
    return len(parts) - turns[-1] <= NEWEST * apart
