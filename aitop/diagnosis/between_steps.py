"""Work between steps: checkpoint-stall, eval-stall, host-io-stall. Bursts or a little at every step."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import msgspec

from aitop.diagnosis.evidence import (
    COLD,
    NEARLY,
    UNPROVEN,
    Lines,
    confidence,
    enough,
    host_limit,
    host_unproven,
    left_cold,
    main_lines,
    mean_of,
    of_outside,
    outside_work,
    part,
    records,
    samples_of,
    seen_once,
)
from aitop.diagnosis.hand_written import below_step, feeding
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.serving import takes_request
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import HotLine, Snapshot
from aitop.model.steps import StepRecord
from aitop.model.units import duration, percent, size
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

CRITICAL_SHARE = 0.3
LEAST_SAMPLES = 4
BAND = Band(enter=0.05, leave=0.03)
# What may be left of a stall once it is rare, and what is worth calling a size.
CHEAP = 0.02
LEAST_BYTES = 1_000_000
CALL = re.compile(r"[\w.]*(?:save|dump|write)\w*(?=\()")
SAVING_WORDS = ("save", "checkpoint", "ckpt", "snapshot", "dump")


def checkpoint(snapshot: Snapshot) -> Judgement:
    """Time inside `torch.save` and what belongs to it."""
    lines = main_lines(snapshot, saving(snapshot))
    measured = part(snapshot, "save")
    share = _believed(measured, lines)
    bursts = _bursts(records(snapshot), lambda step: step.save)
    place = f" at {_place(lines)}" if lines.lines else ""
    each = _bytes_each(snapshot, len(bursts))
    what = f"{text_of(lines)}{f' of {size(each)}' if each else ''}{place}"
    fixes = (
        Fix(text=f"{what}: {_rarely(len(records(snapshot)), len(bursts), share)}", speedup=_if_rarely(share)),
        Fix(
            text=f"{what}: copy the state to host memory and write it in a background thread or process",
            speedup=round(without(share), 2),
        ),
    )
    stall = Stall("checkpoint-stall", "goes into saving checkpoints", share, lines, measured, bursts, fixes)
    return _judged(snapshot, stall)


def evaluation(snapshot: Snapshot) -> Judgement:
    """Forward passes without gradient between training steps."""
    if snapshot.kind != "training":
        return None
    measured = part(snapshot, "evaluation")
    lines = _calling_model(snapshot, main_lines(snapshot, lambda line: line.phase == "evaluation"))
    if not lines.lines and measured:
        # Written into the training loop itself: the process knows that there is some, the place below the step where.
        below = main_lines(snapshot, below_step(snapshot))
        lines = below if measured > 0.5 * below.share else lines
    share = _believed(measured, lines)
    bursts = _bursts(records(snapshot), lambda step: step.evaluation)
    place = f" ({_place(lines)})" if lines.lines else ""
    fixes = (
        Fix(text=f"evaluate{place} {_rarely(len(records(snapshot)), len(bursts), share)}", speedup=_if_rarely(share)),
        Fix(
            text="evaluate on a sample of the validation set: half as much gives back half",
            speedup=round(without(share) / without(share / 2), 2),
        ),
        Fix(text="evaluate checkpoints in a process of its own", speedup=round(without(share), 2)),
    )
    stall = Stall("eval-stall", "goes into evaluation", share, lines, measured, bursts, fixes)
    return _judged(snapshot, stall)


def _calling_model(snapshot: Snapshot, lines: Lines) -> Lines:
    """The same lines; what runs in functions of every step, too (the model), is told by the line that calls it."""
    steps = main_lines(snapshot, lambda line: line.phase != "evaluation").lines
    shared = {(line.file, line.function) for line in steps}
    shared |= {(frame.file, frame.function) for line in steps for frame in line.via}
    return Lines(lines.share, tuple(_outside_of(line, shared) for line in lines.lines))


def _outside_of(line: HotLine, shared: Set[tuple[str, str]]) -> HotLine:
    if (line.file, line.function) not in shared:
        return line
    own = next((frame for frame in reversed(line.via) if (frame.file, frame.function) not in shared), None)
    if own is None:
        return line
    return msgspec.structs.replace(
        line, file=own.file, line=own.line, function=own.function, text=own.text, loop=own.loop
    )


def host_io(snapshot: Snapshot) -> Judgement:
    """Files, network and databases touched by the training thread outside of loading and saving."""
    feeds = feeding(snapshot)
    serving = snapshot.kind == "inference"
    saves = saving(snapshot)
    lines = main_lines(
        snapshot,
        lambda line: _does_io(line) and not saves(line) and not feeds(line) and not (serving and takes_request(line)),
    )
    # It is not timed: two or three samples come by chance where each step prints a line.
    seen = sum(line.samples for line in lines.lines)
    share = min(of_outside(snapshot, lines, NEARLY), host_limit(snapshot)) if seen >= LEAST_SAMPLES else 0.0
    outside = outside_work(snapshot)
    place = f": {_place(lines)}" if lines.lines else ""
    fixes = (
        Fix(text=f"hand it to a background thread{place}", speedup=round(without(share), 2)),
        Fix(text=f"collect, and do it {_factor(share)} times as rarely{place}", speedup=_if_rarely(share)),
    )
    stall = Stall("host-io-stall", "goes into files or services", share, lines, None, (), fixes, waits=True)
    return _judged(snapshot, stall, agrees=outside is not None and outside >= 0.5 * share)


@dataclass(frozen=True)
class Stall:
    """Time lost between steps. `share` of step time, `measured` the same from inside the process where it is known.

    `bursts` are the seconds of each step that it fell into, empty where that was not timed. `waits`: for others.
    """

    id: str
    title: str
    share: float
    lines: Lines
    measured: float | None
    bursts: tuple[float, ...]
    fixes: tuple[Fix, ...]
    waits: bool = False


def _judged(snapshot: Snapshot, stall: Stall, *, agrees: bool = False) -> Judgement:
    """The verdict on a stall. `agrees`: the process itself reports time that the stacks' lines may have taken."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id=stall.id, reason=missing)
    share, lines, measured = stall.share, stall.lines, stall.measured
    if share < BAND.leave:
        return None
    timed = measured is not None and measured >= BAND.leave
    signals = (timed, lines.share >= BAND.leave, bool(lines.lines))
    # One burst tells what it costs, but not how often it comes; on a GPU, times of the host may be waits for it.
    once = len(stall.bursts) == 1 if timed else seen_once(snapshot, lines)
    doubtful = once or host_unproven(snapshot)
    twice = (timed or agrees) and lines.share >= BAND.leave and not doubtful
    severity: Severity = "info" if once else "critical" if share >= CRITICAL_SHARE and twice else "warning"
    sampled = None if timed else samples_of(snapshot)
    sure = confidence(*signals, steps=len(records(snapshot)), share=share, samples=sampled)
    evidence = _often(stall.bursts, len(records(snapshot)))
    if measured:
        evidence.append(f"{percent(measured)} of step time, measured in the process")
    if once and not stall.bursts:
        evidence.append("seen in one stretch of time so far: how often it comes is not known yet")
    cold = stall.waits and left_cold(snapshot, share)
    if cold:
        evidence.append(COLD)
    if lines.lines:
        samples = sum(line.samples for line in lines.lines)
        evidence.append(f"{samples} stack samples ({percent(lines.share)}), most of them at {_place(lines)}")
    verdict = Verdict(
        id=stall.id,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(share), 3),
        confidence=min(sure, UNPROVEN) if doubtful or cold else sure,
        title=f"{percent(share)} of the time {stall.title}",
        where=lines.where,
        evidence=tuple(evidence),
        fixes=stall.fixes,
    )
    return Finding(verdict, level=share)


def _believed(measured: float | None, lines: Lines) -> float:
    """The measured share; the sampled one where the measurement missed most of it (a saved reference to `save`)."""
    return measured if measured is not None and measured > 0.5 * lines.share else lines.share


def _rarely(steps: int, bursts: int, share: float) -> str:
    """How seldom it has to be for it to cost next to nothing, in steps where its rhythm is known."""
    factor = _factor(share)
    if bursts < 2 or steps < bursts:
        return f"{factor} times as rarely"
    every = steps / bursts
    return (
        f"every {round(every * factor)} steps instead of every {every:.0f}" if every >= 1.5 else f"every {factor} steps"
    )


def _factor(share: float) -> int:
    """A round number of times so much rarer that it costs at most CHEAP of a step."""
    needed = share / max(1e-3, 1.0 - share) / CHEAP
    return next((factor for factor in (2, 5, 10, 20, 50, 100, 200, 500) if factor >= needed), 1000)


def _if_rarely(share: float) -> float:
    left = 1.0 - share
    return round(1.0 / (left + share / _factor(share)), 2)


def _bytes_each(snapshot: Snapshot, bursts: int) -> int | None:
    """What the process wrote, for each burst in which it saved; None where it is not known or hardly anything."""
    written = mean_of(snapshot, "written", snapshot.window)
    if written is None or bursts < 1:
        return None
    each = int(written * snapshot.window / bursts)
    return each if each >= LEAST_BYTES else None


def text_of(lines: Lines) -> str:
    """The call that takes the time as its line has it: torch.save, or saving where it does not say."""
    found = CALL.search(lines.where[0].text or "") if lines.lines else None
    return found[0] if found else "saving"


def _bursts(steps: Sequence[StepRecord], value: Callable[[StepRecord], float]) -> tuple[float, ...]:
    return tuple(seconds for step in steps if (seconds := value(step)) > 0.0)


def _often(bursts: Sequence[float], steps: int) -> list[str]:
    """How often it came and what it cost each time, in words."""
    if not bursts:
        return []
    if len(bursts) == 1:
        return [f"once in {steps} steps so far, {duration(bursts[0])}: how often it comes is not known yet"]
    cost = duration(sum(bursts) / len(bursts))
    return [f"{len(bursts)} times in {steps} steps (every {steps / len(bursts):.0f}), {cost} each"]


def saving(snapshot: Snapshot) -> Callable[[HotLine], bool]:
    """A test for lines: does this one save, or open, write and close what another line of its function saves into?"""
    functions = {(line.file, line.function) for line in main_lines(snapshot, _saves).lines}
    return lambda line: (
        _saves(line)
        or (line.phase == "outside" and line.activity == "io-file" and (line.file, line.function) in functions)
    )


def _saves(line: HotLine) -> bool:
    if line.phase == "save" or line.activity == "save":
        return True
    named = any(word in line.function.lower() for word in SAVING_WORDS)
    return named and line.phase == "outside" and line.activity in ("io-file", "sync", "copy")


def _does_io(line: HotLine) -> bool:
    return line.phase == "outside" and line.activity in ("io-file", "io-network", "io-database", "log")


def _place(lines: Lines) -> str:
    first = lines.where[0]
    return f"{first.file.rsplit('/', 1)[-1]}:{first.line}"


RULES = (
    Rule("checkpoint-stall", checkpoint, BAND),
    Rule("eval-stall", evaluation, Band(enter=0.12, leave=0.08)),
    Rule("host-io-stall", host_io, BAND),
)
