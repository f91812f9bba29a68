"""transfer-bound: copies to the device hold it up: from pageable memory, synchronous, many small ones, or too much."""

from __future__ import annotations

from dataclasses import dataclass

from aitop.diagnosis.causes.device_gaps import (
    activity_of_devices,
    call_places,
    calls_of,
    idle_share,
    idle_words,
    per_step,
    share_of,
    short_place,
    text_of,
)
from aitop.diagnosis.conditions.devices import link_rate
from aitop.diagnosis.evidence import Lines, confidence, enough, main_lines, on_gpu, own_devices, records
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import CallSite
from aitop.model.units import percent, rate, size
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "transfer-bound"
CRITICAL_SHARE = 0.3
BAND = Band(enter=0.08, leave=0.05)
# A link that carries so much of what it can is the limit, however copies are made.
SATURATED = 0.6
SMALL_COPY, MANY_COPIES = 256 * 1024, 16.0
LARGE_STEP = 64 * 2**20
PAGEABLE = 0.5


@dataclass(frozen=True)
class Copies:
    """What copies cost: `share` of step time in which the host makes them, `link` how full PCIe is (0..1)."""

    share: float
    measured: bool
    lines: Lines
    calls: tuple[CallSite, ...]
    link: float | None


def judge(snapshot: Snapshot) -> Judgement:
    """Whether the device idles because its data are still on their way."""
    if not on_gpu(snapshot):
        return None
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    copies = _copies(snapshot)
    costs = max(copies.share, copies.link if copies.link is not None and copies.link >= SATURATED else 0.0)
    if costs < BAND.leave:
        return None
    idle = idle_share(snapshot)
    if idle is None:
        reason = f"the host copies to the GPU in {percent(costs)} of each step; whether the GPU idles is not measured"
        return Abstention(id=ID, reason=reason)
    share = min(costs, idle)
    return Finding(_verdict(snapshot, copies, share), level=share)


def _copies(snapshot: Snapshot) -> Copies:
    lines = main_lines(snapshot, _copying)
    measured = share_of(records(snapshot), lambda step: step.transfer)
    share = measured if measured is not None else lines.share
    return Copies(share, measured is not None, lines, calls_of(snapshot, "transfer"), _link_share(snapshot))


def _copying(entry: Entry) -> bool:
    return entry.phase not in ("save", "evaluation") and (entry.phase == "transfer" or entry.work == "copy")


def _link_share(snapshot: Snapshot) -> float | None:
    """How much of what the PCIe link carries at most it carries now."""
    received = activity_of_devices(snapshot, "pcie_received")
    most = [link for device in own_devices(snapshot) if (link := link_rate(device)) is not None]
    return min(1.0, received / min(most)) if received is not None and most else None


def _verdict(snapshot: Snapshot, copies: Copies, share: float) -> Verdict:
    signals = (copies.measured, copies.lines.share >= BAND.leave, copies.link is not None and copies.link > 0.2)
    severity: Severity = "critical" if share >= CRITICAL_SHARE and sum(signals) >= 2 else "warning"
    how = "measured in the process" if copies.measured else "of stack samples"
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(min(0.99, share)), 3),
        confidence=confidence(*signals, base=0.45, steps=len(records(snapshot))),
        title=f"{percent(share)} of each step the GPU waits for copies from the host",
        where=call_places(snapshot, copies.calls, copies.lines.lines) or copies.lines.where,
        evidence=(
            f"copying to the GPU takes {percent(copies.share)} of each step ({how})",
            *idle_words(snapshot),
            *_amounts(snapshot, copies),
        ),
        fixes=_fixes(snapshot, copies, share),
    )


def _amounts(snapshot: Snapshot, copies: Copies) -> list[str]:
    told = []
    moved = _bytes_a_step(snapshot)
    steps = [step for step in records(snapshot) if step.transfer_bytes is not None]
    seconds = sum(step.transfer or 0.0 for step in steps)
    if moved is not None:
        speed = f" at {rate(moved * len(steps) / seconds)}" if seconds > 0 else ""
        told.append(f"{size(moved)} a step{speed}")
    pageable = _pageable(copies)
    if pageable is not None:
        told.append(f"{percent(pageable)} of it from memory that is not pinned")
    for call in copies.calls[:1]:
        often = per_step(snapshot, call)
        if often is not None:
            each = f" of {size(call.bytes / call.calls)}" if call.bytes and call.calls else ""
            told.append(f"{call.name} at {short_place(call.file, call.line)}: {often:.1f} copies a step{each}")
    if copies.link is not None:
        told.append(f"PCIe carries {percent(copies.link)} of what it can")
    return told


def _bytes_a_step(snapshot: Snapshot) -> float | None:
    known = [step.transfer_bytes for step in records(snapshot) if step.transfer_bytes is not None]
    return sum(known) / len(known) if known else None


def _pageable(copies: Copies) -> float | None:
    known = [
        (call.bytes, call.pageable_bytes) for call in copies.calls if call.bytes and call.pageable_bytes is not None
    ]
    total = sum(moved for moved, _ in known)
    return sum(pageable or 0 for _, pageable in known) / total if total else None


def _fixes(snapshot: Snapshot, copies: Copies, share: float) -> tuple[Fix, ...]:
    """The changes that fit: where the copies come from, how many there are and how large."""
    first = next(iter(call_places(snapshot, copies.calls, copies.lines.lines) or copies.lines.where), None)
    at = f" at {short_place(first.file, first.line)}" if first is not None else ""
    gone = round(without(min(0.99, share)), 2)
    half = round(without(min(0.99, share)) / without(min(0.99, share / 2)), 2)
    found: list[Fix] = []
    often = sum(per_step(snapshot, call) or 0.0 for call in copies.calls)
    moved = _bytes_a_step(snapshot)
    if often >= MANY_COPIES and moved is not None and moved / often < SMALL_COPY:
        found.append(
            Fix(text=f"join the {often:.0f} copies a step{at} into one: stack on the host first", speedup=gone)
        )
    full = copies.link is not None and copies.link >= SATURATED
    if not full:
        found.append(_overlap(snapshot, copies, at, gone))
    if full or (moved is not None and moved >= LARGE_STEP):
        amount = f"{size(moved)} a step" if moved is not None else "what is copied"
        found.append(
            Fix(text=f"send {amount} in a smaller type (uint8, bfloat16) and widen it on the GPU", speedup=half)
        )
        found.append(Fix(text="keep what is used again on the GPU instead of copying it at every step", speedup=gone))
    return tuple(found)


def _overlap(snapshot: Snapshot, copies: Copies, at: str, gone: float) -> Fix:
    """Copy while the device computes: from pinned memory, without waiting."""
    loaders = snapshot.facts.loaders if snapshot.facts else ()
    pageable = _pageable(copies)
    pinned = any(loader.pin_memory for loader in loaders) or (pageable is not None and pageable < PAGEABLE)
    first = copies.calls[0] if copies.calls else None
    texts = [entry.where.text or "" for entry in copies.lines.lines if entry.where is not None]
    said = text_of(snapshot, first.file, first.line) if first else "".join(texts)
    if pinned and "non_blocking" not in said:
        return Fix(text=f"non_blocking=True{at}: the memory is pinned already, but the copy waits", speedup=gone)
    if pinned:
        return Fix(text=f"start the copy{at} a batch ahead, on a stream of its own", speedup=gone)
    if loaders:
        return Fix(text=f"pin_memory=True in the DataLoader, with non_blocking=True{at}", speedup=gone)
    return Fix(text=f"pin the host memory once (pin_memory()) and copy with non_blocking=True{at}", speedup=gone)


RULE = Rule(ID, judge, BAND)
