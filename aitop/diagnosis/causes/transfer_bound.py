"""transfer-bound: copies to the device hold it up: from pageable memory, synchronous, many small ones, or too much."""

from __future__ import annotations

from operator import attrgetter

import msgspec

from aitop.diagnosis.device import (
    activity_of_devices,
    call_places,
    calls_of,
    idle_share,
    idle_words,
    link_rate,
    on_gpu,
    own_devices,
    per_step,
)
from aitop.diagnosis.evidence import MIN_STEPS, Lines, each_unit, main_lines, records, share_of_steps, short_place
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import PAGEABLE, CallSite, pageable_share
from aitop.model.units import percent, rate, size
from aitop.model.verdict import Fix, Where

ENTER, LEAVE = 0.08, 0.05
# If at least this share of its capacity is in use, the link is the limit, however copies are made.
SATURATED = 0.6
# Copies smaller than SMALL_COPY are worth joining where a step has MANY_COPIES; more than LARGE_STEP bytes per step
# are worth a narrower type.
SMALL_COPY, MANY_COPIES = 256 * 1024, 16.0
LARGE_STEP = 64 * 2**20


class Copies(msgspec.Struct, frozen=True):
    """What copies cost: `share` of step time in which the host makes them, `link` how full PCIe is (0..1)."""

    share: float
    measured: bool
    lines: Lines
    where: tuple[Where, ...]
    calls: tuple[CallSite, ...]
    link: float | None

    @property
    def full(self) -> bool:
        """Whether the link is the limit."""
        return self.link is not None and self.link >= SATURATED

    @property
    def pageable(self) -> float | None:
        """The part (0..1) of the bytes that comes from memory which is not pinned; None where it was not counted."""
        return pageable_share(self.calls)


@rule("transfer-bound", ENTER, LEAVE, applies=on_gpu, scope=Scope(each_unit=True, idle=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether the device idles while data are copied to it."""
    copies = _copies(snapshot)
    costs = max(copies.share, copies.link or 0.0) if copies.full else copies.share
    if costs < LEAVE:
        return None
    idle = idle_share(snapshot)
    if idle is None:
        of = f"{percent(costs)} of {each_unit(snapshot)}"
        return f"the host copies to the GPU in {of}; whether the GPU idles is not measured"
    share = min(0.99, costs, idle)
    how = "measured in the process" if copies.measured else "of stack samples"
    return Explanation(
        share=share,
        signals=(copies.measured, copies.lines.share >= LEAVE, (copies.link or 0.0) > 0.2),
        title=f"{percent(share)} of {each_unit(snapshot)} passes while the GPU waits for copies from the host",
        where=copies.where,
        claims=copies.lines.entries,
        evidence=(
            f"copying to the GPU takes {percent(copies.share)} of {each_unit(snapshot)} ({how})",
            *idle_words(snapshot),
            *_amounts(snapshot, copies),
        ),
        fixes=_fixes(snapshot, copies, share),
    )


def _copies(snapshot: Snapshot) -> Copies:
    """The copies to the device, as the hook measured them, else as sampled."""
    lines = main_lines(snapshot, _copying)
    measured = share_of_steps(records(snapshot), attrgetter("transfer"), MIN_STEPS)
    calls = calls_of(snapshot, "transfer")
    received = activity_of_devices(snapshot, "pcie_received")
    most = [link for device in own_devices(snapshot) if (link := link_rate(device)) is not None]
    return Copies(
        share=measured if measured is not None else lines.share,
        measured=measured is not None,
        lines=lines,
        where=call_places(snapshot, calls, lines.lines) or lines.where,
        calls=calls,
        link=min(1.0, received / min(most)) if received is not None and most else None,
    )


def _copying(entry: Entry) -> bool:
    return entry.phase not in ("save", "evaluation") and (entry.phase == "transfer" or entry.work == "copy")


def _amounts(snapshot: Snapshot, copies: Copies) -> list[str]:
    """Evidence of how much is copied in a step, from which memory and where."""
    words = []
    moved = _bytes_a_step(snapshot)
    steps = [step for step in records(snapshot) if step.transfer_bytes is not None]
    seconds = sum(step.transfer or 0.0 for step in steps)
    if moved is not None:
        speed = f" at {rate(moved * len(steps) / seconds)}" if seconds > 0 else ""
        words.append(f"{size(moved)} a step{speed}")
    if copies.pageable is not None:
        words.append(f"{percent(copies.pageable)} of it from memory that is not pinned")
    for call in copies.calls[:1]:
        often = per_step(snapshot, call)
        if often is not None:
            each = f" of {size(call.bytes / call.calls)}" if call.bytes and call.calls else ""
            words.append(f"{call.name} at {short_place(call)}: {often:.1f} copies a step{each}")
    if copies.link is not None:
        words.append(f"PCIe carries {percent(copies.link)} of what it can")
    return words


def _bytes_a_step(snapshot: Snapshot) -> float | None:
    known = [step.transfer_bytes for step in records(snapshot) if step.transfer_bytes is not None]
    return sum(known) / len(known) if known else None


def _fixes(snapshot: Snapshot, copies: Copies, share: float) -> list[Fix]:
    """The changes that fit: where the copies come from, how many there are and how large."""
    at = f" at {short_place(copies.where[0])}" if copies.where else ""
    fixes: list[Fix] = []
    often = sum(per_step(snapshot, call) or 0.0 for call in copies.calls)
    moved = _bytes_a_step(snapshot)
    if often >= MANY_COPIES and moved is not None and moved / often < SMALL_COPY:
        fixes.append(fix(f"join the {often:.0f} copies a step{at} into one: stack on the host first", share))
    if not copies.full:
        fixes.append(fix(_overlap(snapshot, copies, at), share))
    if copies.full or (moved is not None and moved >= LARGE_STEP):
        amount = f"{size(moved)} a step" if moved is not None else "what is copied"
        fixes.append(fix(f"send {amount} in a smaller type (uint8, bfloat16) and widen it on the GPU", share / 2))
        fixes.append(fix("keep what is used again on the GPU instead of copying it at every step", share))
    return fixes


def _overlap(snapshot: Snapshot, copies: Copies, at: str) -> str:
    """How to copy while the device computes: from pinned memory, without waiting."""
    loaders = snapshot.facts.loaders if snapshot.facts else ()
    pinned = any(loader.pin_memory for loader in loaders) or (
        copies.pageable is not None and copies.pageable < PAGEABLE
    )
    if pinned:
        return f"non_blocking=True{at}, a batch ahead and on a stream of its own: the memory is pinned already"
    if loaders:
        return f"pin_memory=True in the DataLoader, with non_blocking=True{at}"
    return f"pin the host memory once (pin_memory()) and copy with non_blocking=True{at}"
