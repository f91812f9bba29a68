"""sync-stall: the host waits for the device (`.item()`, `.cpu()`, printing a tensor), and the device then for the host.

A wait for a busy device is no loss: without it the host would wait at the next one. Lost is only what the device
idles while the host, done waiting, has nothing queued for it.
"""

from __future__ import annotations

import re

from aitop.diagnosis.causes.device_gaps import (
    call_places,
    calls_of,
    idle_share,
    idle_words,
    per_step,
    share_of,
    short_place,
)
from aitop.diagnosis.evidence import UNPROVEN, Lines, confidence, enough, main_lines, on_gpu, records
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import CallSite
from aitop.model.units import duration, percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict, Where

ID = "sync-stall"
CRITICAL_SHARE = 0.3
BAND = Band(enter=0.08, leave=0.05)
READ_EVERY = 50

# What a call is, told from its name or the text of its line; the first that fits counts.
_KINDS = (
    (re.compile(r"synchronize"), "synchronize"),
    (re.compile(r"\bprint\(|__repr__|__format__|__str__|^repr$|^format$|f['\"].*\{"), "print"),
    (re.compile(r"nonzero|masked_select|unique|\bif |\bassert |\bwhile |__bool__|^bool$"), "branch"),
    (re.compile(r"\.?(?:cpu|numpy|tolist|to)\b"), "copy"),
    (re.compile(r"\.?item\b|__float__|__int__|^float$|^int$|float\(|int\("), "read"),
)


def judge(snapshot: Snapshot) -> Judgement:
    """Whether the device idles because the host keeps waiting for it."""
    if not on_gpu(snapshot):
        return None
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    lines = main_lines(snapshot, _waits)
    measured = share_of(records(snapshot), lambda step: step.blocking)
    waiting = measured if measured is not None else lines.share
    if waiting < BAND.leave:
        return None
    idle = idle_share(snapshot)
    if idle is None:
        reason = f"the host waits for the GPU in {percent(waiting)} of each step; whether that costs is not measured"
        return Abstention(id=ID, reason=f"{reason}: nothing tells how much the GPU idles")
    return Finding(_verdict(snapshot, min(waiting, idle), waiting, measured, lines), level=min(waiting, idle))


def _waits(entry: Entry) -> bool:
    waits = entry.activity == "wait-device" or entry.work == "read"
    return waits and entry.phase not in ("save", "evaluation", "data")


def _verdict(snapshot: Snapshot, share: float, waiting: float, measured: float | None, lines: Lines) -> Verdict:
    calls = calls_of(snapshot, "blocking")
    where = call_places(snapshot, calls, lines.lines) or lines.where
    signals = (measured is not None, lines.share >= BAND.leave, len(idle_words(snapshot)) > 1)
    severity: Severity = "critical" if share >= CRITICAL_SHARE and sum(signals) >= 2 else "warning"
    sure = confidence(*signals, base=0.45, steps=len(records(snapshot)))
    how = "measured in the process" if measured is not None else "of stack samples"
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(min(0.99, share)), 3),
        confidence=sure if where else min(sure, UNPROVEN),
        title=f"{percent(share)} of each step the GPU idles because the host stopped to wait for it",
        where=where,
        evidence=(
            f"the host waits for the GPU in {percent(waiting)} of each step ({how})",
            *idle_words(snapshot),
            *(told for call in calls[:2] if (told := _call_words(snapshot, call))),
        ),
        fixes=tuple(_fix(snapshot, place, calls, share) for place in where[:2]) or (_general_fix(snapshot, share),),
    )


def _call_words(snapshot: Snapshot, call: CallSite) -> str | None:
    often = per_step(snapshot, call)
    if often is None:
        return None
    each = f", {duration(call.seconds / call.calls)} each" if call.seconds and call.calls else ""
    return f"{call.name} at {short_place(call.file, call.line)}: {often:.1f} calls a step{each}"


def _fix(snapshot: Snapshot, place: Where, calls: tuple[CallSite, ...], share: float) -> Fix:
    """What to do about the wait at one line."""
    names = [call.name for call in calls if (call.file, call.line) == (place.file, place.line)]
    at = short_place(place.file, place.line)
    part = min(0.99, share * (1.0 if place.share is None else place.share))
    seldom = without(part * (1.0 - 1.0 / READ_EVERY))
    kind = _kind(names, place.text or "")
    if snapshot.kind == "inference" and kind in ("copy", "read"):
        # Somebody waits for these results: they can be read later, not more rarely.
        text = f"launch the next batch before results are read at {at}, and read all of a batch in one call"
        return Fix(text=text, speedup=round(without(part), 2))
    text, gain = {
        "synchronize": (f"take the synchronize() at {at} out; CUDA events time the device without stopping it", None),
        "print": (f"print the tensor at {at} every {READ_EVERY} steps", seldom),
        "branch": (f"decide on the device at {at} (torch.where, masks), or check every {READ_EVERY} steps", None),
        "copy": (f"copy at {at} with non_blocking=True into pinned memory, and read it a step later", None),
        "read": (
            f"keep the value at {at} on the device (detach(), summed up there), and read it every {READ_EVERY} steps",
            seldom,
        ),
    }[kind]
    return Fix(text=text, speedup=round(gain if gain is not None else without(part), 2))


def _kind(names: list[str], text: str) -> str:
    for said in (*names, text):
        for pattern, kind in _KINDS:
            if said and pattern.search(said):
                return kind
    return "read"


def _general_fix(snapshot: Snapshot, share: float) -> Fix:
    if snapshot.kind == "inference":
        return Fix(
            text="launch the next batch before the results of the last one are read, all of them in one call",
            speedup=round(without(min(0.99, share)), 2),
        )
    text = f"read losses and metrics from the device every {READ_EVERY} steps instead of at each one"
    return Fix(text=text, speedup=round(without(min(0.99, share * (1.0 - 1.0 / READ_EVERY))), 2))


RULE = Rule(ID, judge, BAND)
