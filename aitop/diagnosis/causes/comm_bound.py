"""Ranks spend their steps exchanging data: comm-bound."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.diagnosis.evidence import confidence, main_lines
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.ranks import Ranks
from aitop.model.snapshot import Snapshot
from aitop.model.steps import CallSite, DdpInfo
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Verdict, Where

MIN_STEPS = 10
CRITICAL_SHARE = 0.4
ACCUMULATED = 4
OVERLAPPED = 0.5
OVERHEAD = 0.05
MOSTLY = 0.5
# An exchange of fewer bytes, slower than this, goes by in waiting for answers and not in moving data.
FAST_BYTES_PER_SECOND, LARGE_STEP_BYTES = 500e6, 8e6
MOST_SITES = 3


def comm_bound(snapshot: Snapshot) -> Judgement:
    """What passes after the last rank has come is the exchange; what passes before that is its lateness."""
    ranks = snapshot.ranks
    if ranks is None:
        return None
    if ranks.steps < MIN_STEPS or not ranks.step or ranks.exchange is None:
        return Abstention(
            id="comm-bound", reason=f"{ranks.steps} steps of several ranks so far; {MIN_STEPS} are needed"
        )
    share = min(0.95, ranks.exchange / ranks.step)
    gone = share if ranks.apart is None else max(share, 1.0 - ranks.apart / ranks.step)
    ddp = snapshot.facts.ddp if snapshot.facts else None
    sites = _sites(snapshot) if (ranks.calls or 0.0) > MOSTLY * ranks.exchange else []
    small = _latency(ranks.exchange, snapshot)
    # What DistributedDataParallel times by itself is a signal of its own.
    unhidden = max(0.0, (ddp.communication or 0.0) - (ddp.overlap or 0.0)) if ddp else 0.0
    confirmed = unhidden + (ranks.calls or 0.0) >= MOSTLY * ranks.exchange
    what = "many small exchanges" if small else "exchange"
    return Finding(
        Verdict(
            id="comm-bound",
            subtype="latency" if small else "volume",
            severity="critical" if share >= CRITICAL_SHARE and confirmed else "warning",
            share=round(share, 4),
            speedup=round(without(gone), 3),
            confidence=confidence(confirmed, share > CRITICAL_SHARE, steps=ranks.steps),
            title=f"{percent(share)} of each step is {what} between ranks that no computing hides",
            where=_where(snapshot, sites),
            evidence=(
                *_evidence(1e3 * ranks.exchange, ddp),
                *_beside(ranks, gone - share),
                *scaling(ranks),
                *(_told(site) for site in sites[:MOST_SITES]),
            ),
            fixes=tuple(_fixes(snapshot, share, gone, (ranks.calls or 0.0) / ranks.step, sites, small=small)),
            ranks=tuple(one.rank for one in ranks.ranks if one.rank is not None),
        ),
        level=share,
    )


def scaling(ranks: Ranks) -> list[str]:
    """How well the job makes use of its ranks, in words."""
    if ranks.efficiency is None:
        return []
    return [f"scaling efficiency {percent(ranks.efficiency)}: for the rest of their time the ranks wait for each other"]


def each_collective(ranks: Ranks, least: float) -> list[str]:
    """Who comes last to the collectives of a step, in words, for those in which at least `least` seconds are waited."""
    return [
        f"collective {one.place} of {len(ranks.collectives)} in a step: rank {one.last} comes last in "
        f"{percent(one.often)} of the steps, the others wait {1e3 * one.waited:.1f} ms for the last one"
        for one in ranks.collectives
        if one.waited >= least
    ]


def _sites(snapshot: Snapshot) -> list[CallSite]:
    """The lines that call collectives, those that take longest first."""
    calls = [one for one in (snapshot.facts.calls if snapshot.facts else ()) if one.kind == "collective" and one.calls]
    return sorted(calls, key=lambda one: -(one.seconds or 0.0))


def _latency(exchange: float, snapshot: Snapshot) -> bool:
    """Whether so little is exchanged in that time that its amount cannot be why."""
    ddp = snapshot.facts.ddp if snapshot.facts else None
    recent = snapshot.steps.recent if snapshot.steps else ()
    counts = [record.collectives for record in recent if record.collectives]
    sites = _sites(snapshot)
    calls = sum(one.calls for one in sites)
    each = sum(one.bytes or 0 for one in sites) / calls if calls else 0.0
    size = ((ddp.gradient_bytes if ddp else None) or 0) + each * (sum(counts) / len(counts) if counts else 0.0)
    return size < LARGE_STEP_BYTES and size < FAST_BYTES_PER_SECOND * exchange


def _where(snapshot: Snapshot, sites: Sequence[CallSite]) -> tuple[Where, ...]:
    """The lines of the calls; else the line under which gradients are exchanged."""
    pid = snapshot.steps.pid if snapshot.steps else None
    if sites and pid is not None:
        return tuple(Where(pid=pid, file=one.file, line=one.line, function=one.function) for one in sites[:MOST_SITES])
    backward = main_lines(snapshot, lambda entry: entry.phase == "backward")
    return backward.where[:1]


def _told(site: CallSite) -> str:
    each = f"{1e3 * site.seconds / site.calls:.1f} ms each, lateness included" if site.seconds is not None else ""
    return f"{site.name} at {site.file.rpartition('/')[2]}:{site.line}" + (f": {each}" if each else "")


def _evidence(milliseconds: float, ddp: DdpInfo | None) -> list[str]:
    told = [f"from when the last rank has come, {milliseconds:.1f} ms of each step go by in the exchange"]
    if ddp is None:
        return told
    if ddp.gradient_bytes:
        told.append(
            f"{ddp.gradient_bytes / 1e6:.0f} MB of gradients a step over {ddp.backend or 'an unnamed backend'}"
            + (f", in buckets of {ddp.bucket_cap_mb:.0f} MB" if ddp.bucket_cap_mb else "")
        )
    if ddp.communication and ddp.overlap is not None:
        hidden = min(1.0, ddp.overlap / ddp.communication)
        told.append(f"{percent(hidden)} of the exchange lies in the shadow of the backward pass")
    return told


def _beside(ranks: Ranks, more: float) -> list[str]:
    """What exchanging costs beside the time that it takes itself, where that is worth telling."""
    if more < OVERHEAD or ranks.apart is None:
        return []
    told = f"without any exchange a step would take {1e3 * ranks.apart:.1f} ms"
    return [f"its threads also keep those that compute from their cores: {told}"]


def _fixes(
    snapshot: Snapshot, share: float, gone: float, calls: float, sites: Sequence[CallSite], *, small: bool
) -> list[Fix]:
    """`gone` is what a step would save without any exchange, `calls` the part of `share` in calls of the program's own.

    Who accumulates also makes fewer updates.
    """
    ddp = snapshot.facts.ddp if snapshot.facts else None
    updates = (snapshot.steps.phases.optimizer if snapshot.steps else None) or 0.0
    fixes = []
    if sites:
        place = f"{sites[0].file.rpartition('/')[2]}:{sites[0].line}"
        told = f"not at every step what only reports or waits: {sites[0].name} at {place}"
        fixes.append(Fix(text=told, speedup=round(without(calls), 3)))
    if ddp is None:
        return fixes
    rarely = without((gone - calls + updates) * (1.0 - 1.0 / ACCUMULATED))
    text = f"accumulate gradients over {ACCUMULATED} batches under `model.no_sync()`, and exchange once"
    fixes.append(Fix(text=text, speedup=round(rarely, 3)))
    if small:
        fixes.append(Fix(text="a larger batch for each rank: as many exchanges for more work"))
        return fixes
    text = "exchange half the bytes: model.register_comm_hook(None, bf16_compress_hook)"
    fixes.append(Fix(text=text, speedup=round(without((share - calls) / 2), 3)))
    if ddp.communication and (ddp.overlap or 0.0) < OVERLAPPED * ddp.communication:
        fixes.append(Fix(text="a smaller bucket_cap_mb, so that the exchange begins earlier in the backward pass"))
    return fixes


RULE = Rule("comm-bound", comm_bound, Band(enter=0.2, leave=0.12))
