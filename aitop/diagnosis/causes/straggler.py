"""One rank is late and all others wait for it: straggler."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from aitop.diagnosis.causes.comm_bound import each_collective, scaling
from aitop.diagnosis.evidence import confidence, places
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.ledger import Entry
from aitop.model.ranks import RankPhases, Ranks, RankView
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Verdict, Where

MIN_STEPS = 10
MOSTLY = 0.6
CRITICAL_SHARE = 0.25
LONGER, SLOWER = 1.2, 0.9
WAITED = 0.05
HELD = 0.1
FIXES = {
    "input": "give this rank the data as fast as the others: local copies, more loader workers, equal shards",
    "batches": "give ranks equal work: bucket samples by length over all ranks, equal numbers of samples",
    "contention": "give this rank cores of its own: fewer threads, no other jobs on its cores, numactl or taskset",
    "throttled": "cool this GPU, raise its power limit, or take it out of the job: `nvidia-smi -q -d PERFORMANCE`",
    "compute": "take away what only this rank does, or do it on another thread or after the run",
    "uneven": "give ranks equal work at every step: bucket samples by length over all ranks",
}
WORDS = {
    "input": "it waits longer for its data",
    "batches": "its batches are larger",
    "contention": "it waits for a core",
    "compute": "it computes longer",
    "throttled": "its GPU runs at a lower clock",
}


def straggler(snapshot: Snapshot) -> Judgement:
    """The rank that waits least is the one that the others wait for."""
    ranks = snapshot.ranks
    if ranks is None:
        return None
    if ranks.steps < MIN_STEPS or not ranks.step:
        return Abstention(id="straggler", reason=f"{ranks.steps} steps of several ranks so far; {MIN_STEPS} are needed")
    timed = [one for one in ranks.ranks if one.work is not None and one.phases is not None]
    if len(timed) < 2:
        return None
    late = max(timed, key=lambda one: one.lateness or 0.0)
    often = (late.latest or 0.0) >= MOSTLY
    held = (ranks.held or 0.0) / ranks.step
    lost = _lost(late, _without(late, timed), ranks) if often else 0.0
    if held >= HELD and held > lost and (late.pid != ranks.held_by or not often):
        late, often = next((one for one in timed if one.pid == ranks.held_by), late), False
    elif not often:
        return _uneven(ranks)
    others = _without(late, timed)
    cause = _cause(late, others, ranks.step) if often else "contention"
    share = _lost(late, others, ranks)
    if cause == "contention" and late.pid == ranks.held_by:
        share = min(0.95, max(share, held))
    where = _where(snapshot, late, cause)
    least = (late.phases.wait or 0.0) <= min((one.phases.wait or 0.0) for one in others if one.phases)  # type: ignore[union-attr]
    when = f"is late in {percent(late.latest or 0.0)} of the steps" if often else "comes back late from each exchange"
    told = f"rank {late.rank} {when}: {WORDS[cause]}"
    return Finding(
        Verdict(
            id="straggler",
            subtype=cause,
            severity="critical" if share >= CRITICAL_SHARE and least else "warning",
            share=round(share, 4),
            speedup=round(without(share), 3),
            confidence=confidence(least, (late.latest or 0.0) > 0.9, bool(where), steps=ranks.steps),
            title=f"{told}; the others wait {percent(share)} of each step for it",
            where=where,
            evidence=(
                _side_by_side(late, others),
                *_for_a_core(late, others, ranks.step),
                *([_since(late, snapshot.time)] if often else []),
                *scaling(ranks),
                *_waits(ranks),
            ),
            fixes=(Fix(text=FIXES[cause], speedup=round(without(share), 3)),),
            ranks=(late.rank,) if late.rank is not None else (),
        ),
        level=share,
    )


def _without(late: RankView, timed: Sequence[RankView]) -> list[RankView]:
    return [one for one in timed if one is not late]


def _waits(ranks: Ranks) -> list[str]:
    return each_collective(ranks, WAITED * (ranks.step or 0.0))


def _for_a_core(late: RankView, others: Sequence[RankView], step: float) -> list[str]:
    """What the main thread waits for a core beside those of the others, where it is worth telling."""
    delays = [one.run_delay for one in others if one.run_delay is not None]
    if late.run_delay is None or not delays or late.run_delay - fmean(delays) < WAITED:
        return []
    mine, theirs = 1e3 * step * late.run_delay, 1e3 * step * fmean(delays)
    return [f"rank {late.rank} could run and waits for a core for {mine:.1f} ms of a step, the others {theirs:.1f} ms"]


def _lost(late: RankView, others: Sequence[RankView], ranks: Ranks) -> float:
    """The share of a step that would be saved if this rank were as fast as the slowest of the others."""
    gap = (late.work or 0.0) - max(one.work or 0.0 for one in others)
    return max(0.0, min(0.95, gap / (ranks.step or 1.0)))


def _uneven(ranks: Ranks) -> Judgement:
    """Now one rank is late and now another."""
    share = (ranks.uneven or 0.0) / (ranks.step or 1.0)
    return Finding(
        Verdict(
            id="straggler",
            subtype="uneven",
            severity="warning",
            share=round(share, 4),
            speedup=round(without(share), 3),
            confidence=confidence(ranks.steps >= 50, steps=ranks.steps),
            title=f"now one rank is late and now another: {percent(share)} of each step goes by in waiting for it",
            evidence=(f"{ranks.steps} steps compared; no rank is the last one in {percent(MOSTLY)} of them",),
            fixes=(Fix(text=FIXES["uneven"], speedup=round(without(share), 3)),),
        ),
        level=share if share >= 0.15 else 0.0,
    )


def _cause(late: RankView, others: Sequence[RankView], step: float) -> str:
    """What this rank spends its lateness on, beside the mean of the others."""
    gap = _over(late, others, "data_wait")
    if gap >= 0.5 * (late.lateness or 0.0):
        return "input"
    for name in ("tokens", "samples"):
        mine, theirs = getattr(late, name), [getattr(one, name) for one in others]
        if mine and all(theirs) and mine > LONGER * fmean(theirs):
            return "batches"
    delays = [one.run_delay for one in others if one.run_delay is not None]
    if (
        late.run_delay is not None
        and delays
        and (late.run_delay - fmean(delays)) * step >= 0.5 * (late.lateness or 0.0)
    ):
        return "contention"
    clocks = [one.gpu_clock for one in others if one.gpu_clock]
    if late.gpu_clock and clocks and late.gpu_clock < SLOWER * fmean(clocks):
        return "throttled"
    return "compute"


def _over(late: RankView, others: Sequence[RankView], phase: str) -> float:
    """By how many seconds a phase of this rank is longer than the mean of the others."""
    phases = [one.phases for one in others if one.phases is not None]
    return float(getattr(late.phases, phase) - fmean(getattr(one, phase) for one in phases))


def _where(snapshot: Snapshot, late: RankView, cause: str) -> tuple[Where, ...]:
    """Lines of that rank in the phase that is longer than those of the others."""
    entries = [entry for ledger in snapshot.ledgers for entry in ledger.entries]
    feeding = {
        process.pid for process in (snapshot.host.processes if snapshot.host else ()) if process.rank == late.rank
    }

    def wanted(entry: Entry) -> bool:
        if cause == "input":
            return entry.pid in feeding and (entry.phase == "data" or entry.role == "loader-worker")
        return entry.pid == late.pid and entry.lane == "main" and entry.phase not in ("exchange", "backward")

    chosen = sorted((entry for entry in entries if wanted(entry)), key=lambda entry: -entry.share)
    if cause == "compute":
        elsewhere = {(entry.file, entry.line): entry.share for entry in entries if entry.pid != late.pid}
        chosen.sort(key=lambda entry: elsewhere.get((entry.file, entry.line), 0.0) - entry.share)
        return places(chosen[:1])
    return places(chosen)


def _side_by_side(late: RankView, others: Sequence[RankView]) -> str:
    def told(one: RankView) -> str:
        phases = one.phases or RankPhases(data_wait=0.0, forward=0.0, backward=0.0, optimizer=0.0, outside=0.0)
        parts = {
            "data": phases.data_wait,
            "forward": phases.forward,
            "backward": phases.backward,
            "other": phases.optimizer + phases.outside,
            "waits": phases.wait or 0.0,
        }
        return f"rank {one.rank}: " + ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in parts.items())

    first = min(others, key=lambda one: one.lateness or 0.0)
    return f"{told(late)} – {told(first)}"


def _since(late: RankView, now: float) -> str:
    """Since when it is late: from the first step after the last one in which it was not."""
    big = 0.5 * (late.lateness or 0.0)
    number = next((back for back, skew in enumerate(reversed(late.skew)) if skew < big), len(late.skew))
    if number < len(late.skew) or late.skew_since is None:
        return f"late by more than {1e3 * big:.1f} ms in each of the last {number} steps"
    return f"late in every step seen, for at least {now - late.skew_since:.0f} s"


RULE = Rule("straggler", straggler, Band(enter=0.1, leave=0.06))
