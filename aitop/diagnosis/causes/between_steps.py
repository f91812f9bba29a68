"""Work between steps: checkpoint-stall, eval-stall, host-io-stall. Bursts or a little at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import msgspec

from aitop.diagnosis.causes.requests import takes_request
from aitop.diagnosis.evidence import (
    COLD,
    UNPROVEN,
    Lines,
    confidence,
    enough,
    host_limit,
    host_unproven,
    left_cold,
    main_lines,
    mean_of,
    part,
    records,
    seen_once,
    storage_lines,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord
from aitop.model.units import duration, percent, size
from aitop.model.verdict import Abstention, Fix, Severity, Verdict, Where

CRITICAL_SHARE = 0.3
# Two or three samples come by chance where each step prints a line.
LEAST_SAMPLES = 4
BAND = Band(enter=0.05, leave=0.03)
# What may be left of a stall once it is rare, and what is worth calling a size.
CHEAP = 0.02
LEAST_BYTES = 1_000_000


def checkpoint(snapshot: Snapshot) -> Judgement:
    """Time inside `torch.save` and what belongs to it."""
    lines = main_lines(snapshot, lambda entry: entry.phase == "save" or entry.work == "save")
    lines = _with_the_rest_of_saving(snapshot, lines)
    measured = part(snapshot, "save")
    bursts = _bursts(records(snapshot), lambda step: step.save)
    place = f" at {_place(lines)}" if lines.lines else ""
    each = _bytes_each(snapshot, len(bursts))
    what = f"saving{f' {size(each)}' if each else ''}{place}"
    fixes = (
        Fix(
            text=f"{what}: {_rarely(len(records(snapshot)), len(bursts), lines.share)}",
            speedup=_if_rarely(lines.share),
        ),
        Fix(
            text=f"{what}: copy the state to host memory and write it in a background thread or process",
            speedup=round(without(lines.share), 2),
        ),
    )
    return _judged(snapshot, Stall("checkpoint-stall", "goes into saving checkpoints", lines, measured, bursts, fixes))


def _with_the_rest_of_saving(snapshot: Snapshot, lines: Lines) -> Lines:
    """The same, with the opening, writing and closing of files in the functions that save."""
    functions = {(entry.file, entry.function) for entry in lines.lines}
    beside = storage_lines(
        main_lines(snapshot, lambda entry: entry.phase == "host" and (entry.file, entry.function) in functions)
    )
    known = set(map(id, lines.entries))
    more = tuple(entry for entry in beside.entries if id(entry) not in known)
    return Lines(lines.share + sum(entry.share for entry in more), (*lines.entries, *more))


def evaluation(snapshot: Snapshot) -> Judgement:
    """Forward passes without gradient between training steps."""
    if snapshot.kind != "training":
        return None
    measured = part(snapshot, "evaluation")
    own = main_lines(snapshot, lambda entry: entry.phase == "evaluation")
    lines = _calling_model(snapshot, own)
    bursts = _bursts(records(snapshot), lambda step: step.evaluation)
    place = f" ({_place(lines)})" if lines.lines else ""
    share = lines.share
    fixes = (
        Fix(text=f"evaluate{place} {_rarely(len(records(snapshot)), len(bursts), share)}", speedup=_if_rarely(share)),
        Fix(
            text="evaluate on a sample of the validation set: half as much gives back half",
            speedup=round(without(share) / without(share / 2), 2),
        ),
        Fix(text="evaluate checkpoints in a process of its own", speedup=round(without(share), 2)),
    )
    return _judged(
        snapshot, Stall("eval-stall", "goes into evaluation", lines, measured, bursts, fixes, claims=own.entries)
    )


def _calling_model(snapshot: Snapshot, lines: Lines) -> Lines:
    """The same; what runs in functions of every step, too (the model), is named by the line that calls it."""
    steps = main_lines(snapshot, lambda entry: entry.phase != "evaluation").lines
    shared = {(entry.file, entry.function) for entry in steps}
    shared |= {(frame.file, frame.function) for entry in steps for frame in entry.via}
    return Lines(lines.share, tuple(_outside_of(entry, shared) for entry in lines.entries))


def _outside_of(entry: Entry, shared: Set[tuple[str, str]]) -> Entry:
    if (entry.file, entry.function) not in shared:
        return entry
    own = next((frame for frame in reversed(entry.via) if (frame.file, frame.function) not in shared), None)
    if own is None:
        return entry
    where = Where(pid=entry.pid, file=own.file, line=own.line, function=own.function, text=own.text)
    return msgspec.structs.replace(entry, where=where)


def host_io(snapshot: Snapshot) -> Judgement:
    """Files, network and databases touched by the stepping thread outside of loading and saving."""
    serving = snapshot.kind == "inference"
    host = main_lines(snapshot, lambda entry: entry.phase == "host" and not (serving and takes_request(entry)))
    logging = tuple(entry for entry in host.entries if entry.work == "log")
    storage = storage_lines(Lines(host.share, tuple(entry for entry in host.entries if entry.work != "log")))
    entries = (*storage.entries, *logging)
    lines = Lines(sum(entry.share for entry in entries), entries)
    seen = sum(entry.samples for entry in lines.entries)
    share = min(lines.share, host_limit(snapshot)) if seen >= LEAST_SAMPLES else 0.0
    place = f": {_place(lines)}" if lines.lines else ""
    fixes = (
        Fix(text=f"hand it to a background thread{place}", speedup=round(without(share), 2)),
        Fix(text=f"collect, and do it {_factor(share)} times as rarely{place}", speedup=_if_rarely(share)),
    )
    stall = Stall("host-io-stall", "goes into files or services", Lines(share, lines.entries), None, (), fixes, True)
    return _judged(snapshot, stall)


@dataclass(frozen=True)
class Stall:
    """Time lost between steps. `measured` is its share from inside the process, None where it is not timed there.

    `bursts` are the seconds of each step that it fell into, empty where that was not timed. `waits`: for others.
    `claims` are the entries of the ledger that it stands for, where `lines` names them by other lines.
    """

    id: str
    title: str
    lines: Lines
    measured: float | None
    bursts: tuple[float, ...]
    fixes: tuple[Fix, ...]
    waits: bool = False
    claims: tuple[Entry, ...] = ()


def _judged(snapshot: Snapshot, stall: Stall) -> Judgement:
    """The verdict on a stall."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id=stall.id, reason=missing)
    lines, measured = stall.lines, stall.measured
    share = lines.share
    if share < BAND.leave:
        return None
    timed = measured is not None and measured >= BAND.leave
    sampled = bool(lines.lines) and sum(entry.samples for entry in lines.entries) >= LEAST_SAMPLES
    kernel = lines.part(lambda entry: entry.activity in ("wait-disk", "wait-network")) > 0.5
    # One burst tells what it costs, but not how often it comes; on a GPU, times of the host may be waits for it.
    once = len(stall.bursts) == 1 if timed else seen_once(snapshot, lines)
    doubtful = once or host_unproven(snapshot)
    twice = (timed or kernel or bool(records(snapshot))) and sampled and not doubtful
    severity: Severity = "info" if once else "critical" if share >= CRITICAL_SHARE and twice else "warning"
    sure = confidence(timed, sampled, kernel or timed, steps=len(records(snapshot)))
    evidence = _often(stall.bursts, len(records(snapshot)))
    if measured:
        evidence.append(f"{percent(measured)} of step time, measured in the process")
    if once and not stall.bursts:
        evidence.append("seen in one stretch of time so far: how often it comes is not known yet")
    if stall.waits and left_cold(snapshot, share):
        evidence.append(COLD)
    if lines.lines:
        samples = round(sum(entry.samples for entry in lines.entries))
        evidence.append(f"{samples} stack samples ({percent(lines.share)}), most of them at {_place(lines)}")
    verdict = Verdict(
        id=stall.id,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(share), 3),
        confidence=min(sure, UNPROVEN) if doubtful else sure,
        title=f"{percent(share)} of the time {stall.title}",
        where=lines.where,
        evidence=tuple(evidence),
        fixes=stall.fixes,
    )
    return Finding(verdict, level=share, claims=stall.claims or lines.entries)


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


def _place(lines: Lines) -> str:
    first = lines.where[0]
    return f"{first.file.rsplit('/', 1)[-1]}:{first.line}"


SAVING_AND_EVALUATION = (
    Rule("checkpoint-stall", checkpoint, BAND),
    Rule("eval-stall", evaluation, Band(enter=0.12, leave=0.08)),
)
HOST_IO = Rule("host-io-stall", host_io, BAND)
