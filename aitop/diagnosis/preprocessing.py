"""preprocessing-bound: in inference, making the model's input (tokenising, decoding) takes most of a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aitop.diagnosis.device_gaps import short_place
from aitop.diagnosis.evidence import (
    COLD,
    UNPROVEN,
    Lines,
    as_measured,
    by_samples,
    confidence,
    enough,
    free_cores,
    host_limit,
    host_unproven,
    left_cold,
    main_lines,
    main_stacks,
    records,
    samples_of,
    summed,
    within_first,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.serving import leisure
from aitop.diagnosis.what_if import Loading, without
from aitop.model.snapshot import HotLine, Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "preprocessing-bound"
CRITICAL_SHARE = 0.3
BAND = Band(enter=0.2, leave=0.14)
WORKING = frozenset({"python", "compute", "decode", "tokenize", "collate", "pin"})
INPUT = frozenset({"decode", "tokenize", "collate"})
WAITING = frozenset({"queue", "lock", "sleep", "io-network"})
# Work after the forward pass, and beside it, by its name.
AFTERWARDS = re.compile(
    r"post_?process|metric|logg|detoken|batch_decode|\bnms\b|render|respon[sd]|reply|answer|format_|to_json|dumps?\(|"
    r"track|stat(s|istic)|histor|report|publish",
    re.IGNORECASE,
)
# A server that waits for so much of its time is not held up by anything: requests come too seldom.
AT_LEISURE = 0.3

Function = tuple[str, str]


@dataclass(frozen=True)
class Work:
    """What a request costs beside the model. Shares of all time; `waiting` is waiting for requests."""

    share: float
    lines: Lines
    measured: bool
    waiting: float


def judge(snapshot: Snapshot) -> Judgement:
    """Whether requests spend their time on the way to the model rather than in it."""
    if snapshot.kind == "training":
        return None
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    if snapshot.kind == "unknown":
        return Abstention(id=ID, reason="too few samples show a forward pass to tell inference from training")
    work = _work(snapshot)
    return Finding(_verdict(snapshot, work), level=work.share) if work.lines.lines else None


def making_input(snapshot: Snapshot) -> Callable[[HotLine], bool]:
    """A test for lines of inference: does this one make the model's input? Never true in training."""
    if snapshot.kind != "inference":
        return lambda line: False
    forwards = _forwards(main_lines(snapshot, lambda line: line.phase in ("forward", "evaluation")))
    return lambda line: _makes_input(line, forwards)


def _forwards(lines: Lines) -> Mapping[Function, int]:
    """In which of the user's functions, and where in them, the model is first called."""
    found: dict[Function, int] = {}
    for line in lines.lines:
        for key, number in _places(line):
            found[key] = min(number, found.get(key, number))
    return found


def _places(line: HotLine) -> list[tuple[Function, int]]:
    above = [((frame.file, frame.function), frame.line) for frame in line.via]
    return [*above, ((line.file, line.function), line.line)]


def _makes_input(line: HotLine, forwards: Mapping[Function, int]) -> bool:
    if line.phase != "outside" or line.activity not in WORKING:
        return False
    # The innermost function that calls the model, too: what stands before that call is done for it, and so are calls
    # in its line, unless they may be the model's own. What that function is named says nothing of its parts.
    places = _places(line)
    named_after = [AFTERWARDS.search(function) is not None for (_, function), _ in places]
    for inner, (key, number) in enumerate(reversed(places)):
        if key in forwards:
            if any(named_after[len(places) - inner :]):
                return False
            return number < forwards[key] or (number == forwards[key] and (inner > 0 or line.activity in INPUT))
    if any(named_after):
        return False
    return not AFTERWARDS.search(line.text or "")


def _work(snapshot: Snapshot) -> Work:
    lines = main_lines(snapshot, making_input(snapshot))
    waiting = leisure(snapshot).share
    sampled = main_lines(snapshot, lambda line: line.phase == "outside").share
    outside = summed(records(snapshot), lambda step: max(0.0, step.outside - step.save))
    share = lines.share
    if outside is not None and sampled > 0:
        share = as_measured(share, sampled, outside)
    else:
        process = main_stacks(snapshot)
        share = by_samples(share, process.samples) if process is not None else share
    return Work(min(share, host_limit(snapshot)), lines, outside is not None, waiting)


def _verdict(snapshot: Snapshot, work: Work) -> Verdict:
    share, lines = work.share, work.lines
    leisure = work.waiting >= AT_LEISURE
    # Of a server at leisure only the requests get faster, not how many there are.
    of_request = min(0.99, share / max(0.01, 1.0 - work.waiting) if leisure else share)
    unproven = host_unproven(snapshot)
    signals = (work.measured, bool(lines.lines), of_request >= 0.5)
    critical = of_request >= CRITICAL_SHARE and sum(signals) >= 2 and not unproven
    severity: Severity = "info" if leisure else "critical" if critical else "warning"
    samples = samples_of(snapshot) or 0
    sampled = None if work.measured else samples
    sure = confidence(*signals, base=0.5, steps=len(records(snapshot)), share=of_request, samples=sampled)
    evidence = [f"{percent(lines.share)} of {samples} stack samples make the input, most of them: {_doing(lines)}"]
    gone = of_request * within_first(lines)
    cold = left_cold(snapshot, gone, computed=True)
    if cold:
        evidence.append(COLD)
    forward = snapshot.steps.phases.forward if snapshot.steps else None
    if forward is not None:
        evidence.append(f"the model itself takes {percent(forward)}")
    if leisure:
        evidence.append(f"{percent(work.waiting)} of the time is waiting for requests: they get faster, not more")
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(gone), 3),
        confidence=min(sure, UNPROVEN) if unproven or cold else sure,
        title=f"{percent(of_request)} of each request is spent making the model's input",
        where=lines.where,
        evidence=tuple(evidence),
        fixes=_fixes(snapshot, of_request, gone, lines),
    )


def _doing(lines: Lines) -> str:
    """What most of the work is and where it is called, in words."""
    activity = _dominant(lines)
    first = lines.where[0]
    named = {"decode": "decoding", "tokenize": "tokenising", "collate": "collating"}.get(
        activity, "computing in Python"
    )
    return f"{named} in {first.function} ({short_place(first.file, first.line)})"


def _dominant(lines: Lines) -> str:
    weights: dict[str, int] = {}
    for line in lines.lines:
        weights[line.activity] = weights.get(line.activity, 0) + line.samples
    return max(weights, key=lambda activity: weights[activity])


def _fixes(snapshot: Snapshot, share: float, gone: float, lines: Lines) -> tuple[Fix, ...]:
    first = lines.where[0]
    place = f"{first.function} ({short_place(first.file, first.line)})"
    cheaper = {
        "tokenize": f"tokenise at {place} with a compiled tokenizer, several texts in a call, or keep known texts",
        "decode": f"make decoding in {place} cheaper: a faster decoder, a binary format, the size that the model needs",
    }.get(_dominant(lines), f"make {place} cheaper: vectorise it, keep results that come again, or do it once ahead")
    loading = Loading(1.0, share, 0, 1.0, free_cores(snapshot))
    processes = loading.best_workers()
    gain = loading.speedup_with(processes)
    found = [Fix(text=cheaper, speedup=round(without(gone), 2))]
    if gain > 1.05:
        named = "process" if processes == 1 else "processes"
        text = f"make inputs ahead in {processes} {named} of their own while the model runs"
        found.append(Fix(text=text, speedup=round(gain, 2)))
    return tuple(found)


RULE = Rule(ID, judge, BAND)
