"""straggler: one rank is late and all others wait for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from msgspec.structs import replace

from aitop.diagnosis.causes.comm_bound import RankWaits, scaling, too_few_steps, waits_without_hook
from aitop.diagnosis.evidence import lines_of, shares_by
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import estimated, fix
from aitop.model.ledger import Entry
from aitop.model.ranks import RankPhases, Ranks, RankView
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, percent
from aitop.model.verdict import Where

# The share of a step that is lost from which the verdict appears; where no rank is always the late one, it is UNEVEN.
ENTER, UNEVEN = 0.1, 0.15
# A rank is the late one if it comes last in at least this part of the steps.
MOSTLY = 0.6
# Its batches are larger from this factor over the others' mean on; its clock is low below this part of theirs.
LONGER, SLOWER = 1.2, 0.9
# It waits for a core from this share of a step more than the others on.
WAITED = 0.05
# The least share of a step for which a rank without a core keeps the others waiting.
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
    "batches": "its batches are larger or longer",
    "contention": "it waits for a core",
    "compute": "it computes longer",
    "throttled": "its GPU runs at a lower clock",
}


def _too_few_steps(snapshot: Snapshot) -> str | None:
    return None if waits_without_hook(snapshot) else too_few_steps(snapshot)


@rule("straggler", ENTER, 0.06, missing=_too_few_steps)
def straggler(snapshot: Snapshot) -> Explanation | None:
    """The verdict on the rank that the others wait for: the one that is latest, or that is kept from its core."""
    ranks = snapshot.ranks
    if ranks is not None and (waits := waits_without_hook(snapshot)):
        return _without_hook(snapshot, [view for view in ranks.ranks if view.pid in waits], waits)
    timed = [view for view in ranks.ranks if view.work is not None and view.phases is not None] if ranks else []
    if ranks is None or not ranks.step or len(timed) < 2:
        return None
    late = max(timed, key=lambda view: view.lateness or 0.0)
    others = [view for view in timed if view is not late]
    often = (late.latest or 0.0) >= MOSTLY
    held = (ranks.held or 0.0) / ranks.step
    lost = _lost(late, others, ranks) if often else 0.0
    if held >= HELD and held > lost and (late.pid != ranks.held_by or not often):
        late, often = next((view for view in timed if view.pid == ranks.held_by), late), False
        others = [view for view in timed if view is not late]
    elif not often:
        return _uneven(ranks)
    cause = _cause(late, others, ranks.step) if often else "contention"
    share = _lost(late, others, ranks)
    if cause == "contention" and late.pid == ranks.held_by:
        share = min(0.95, max(share, held))
    where = _where(snapshot, late, cause)
    least = (_phases(late).wait or 0.0) <= min(_phases(view).wait or 0.0 for view in others)
    when = f"is late in {percent(late.latest or 0.0)} of the steps" if often else "comes back late from each exchange"
    return Explanation(
        subtype=cause,
        share=share,
        signals=(least, (late.latest or 0.0) > 0.9, bool(where)),
        title=f"rank {late.rank} {when}: {WORDS[cause]}; the others wait {percent(share)} of each step for it",
        where=where,
        evidence=(
            _side_by_side(late, others),
            *_operations(late, others),
            *_for_a_core(late, others, ranks.step),
            *([_since(late)] if often else []),
            *scaling(ranks),
            *_each_collective(ranks, WAITED * ranks.step),
        ),
        fixes=(fix(FIXES[cause], share),),
        ranks=(late.rank,) if late.rank is not None else (),
    )


def _without_hook(snapshot: Snapshot, views: Sequence[RankView], waits: Mapping[int, RankWaits]) -> Explanation | None:
    """The verdict without the hook: the rank that waits least for the others, if each of them surely waits more."""
    late, *others = sorted(views, key=lambda view: waits[view.pid].share)
    least = waits[late.pid]
    if min(waits[view.pid].least for view in others) <= least.most:
        return None
    share = min(waits[view.pid].share for view in others) - least.share
    # A step is as long for all of them: each works for as long as it does not wait.
    worked = {view.pid: 1.0 - waits[view.pid].share for view in views}
    later = worked[late.pid] - fmean(worked[view.pid] for view in others)
    late = replace(late, phases=_phases_by_stacks(snapshot, late.pid), lateness=later)
    others = [replace(view, phases=_phases_by_stacks(snapshot, view.pid)) for view in others]
    cause = _cause(late, others, 1.0)
    where = _where(snapshot, late, cause)
    # What only this rank does may be left out; work that belongs to all of them can only be divided equally.
    divided = worked[late.pid] - fmean(worked.values())
    saved = estimated(0.5 * (divided + share), 0.8 * divided, share)
    return Explanation(
        subtype=cause,
        share=share,
        saved=saved,
        # That it waits for its data is why it is late: one loss, not two.
        claims=_data_of(snapshot, late.pid) if cause == "input" else (),
        signals=(False, share > 0.2, bool(where)),
        title=f"rank {late.rank} is late: {WORDS[cause]}; the others wait {percent(share)} of each step for it",
        where=where,
        evidence=(
            f"the main thread of rank {late.rank} rests {percent(least.share)} of the time in passes and exchanges, "
            + ", ".join(f"that of rank {view.rank} {percent(waits[view.pid].share)}" for view in others),
            *(("whether its batches are larger, only the hook sees",) if cause == "compute" else ()),
        ),
        fixes=(
            fix(FIXES[cause], share),
            *((fix(FIXES["batches"], divided),) if cause == "compute" else ()),
        ),
        ranks=(late.rank,) if late.rank is not None else (),
    )


def _main_entries(snapshot: Snapshot, pid: int) -> tuple[Entry, ...]:
    """The entries of the thread that makes a rank's steps."""
    return next((ledger.main for ledger in snapshot.ledgers if ledger.pid == pid), ())


def _data_of(snapshot: Snapshot, pid: int) -> tuple[Entry, ...]:
    """The entries of a rank's own thread that make its data or wait for them."""
    return tuple(entry for entry in _main_entries(snapshot, pid) if entry.phase == "data")


def _phases_by_stacks(snapshot: Snapshot, pid: int) -> RankPhases:
    """The phases of a rank by its stacks, as parts (0..1) of its time."""
    shares = shares_by(_main_entries(snapshot, pid), lambda entry: entry.phase)
    data, forward, backward, optimizer = (shares.get(key, 0.0) for key in ("data", "forward", "backward", "optimizer"))
    rest = max(0.0, 1.0 - data - forward - backward - optimizer)
    return RankPhases(data_wait=data, forward=forward, backward=backward, optimizer=optimizer, outside=rest)


def _phases(view: RankView) -> RankPhases:
    return view.phases or RankPhases(data_wait=0.0, forward=0.0, backward=0.0, optimizer=0.0, outside=0.0)


def _each_collective(ranks: Ranks, least: float) -> list[str]:
    """Evidence of who comes last to each collective of a step in which the others wait for `least` seconds or more."""
    return [
        f"collective {collective.place} of {len(ranks.collectives)} in a step: rank {collective.last} comes last in "
        f"{percent(collective.often)} of the steps, the others wait {duration(collective.waited)} for the last one"
        for collective in ranks.collectives
        if collective.waited >= least
    ]


def _over_others(late: RankView, others: Sequence[RankView]) -> float | None:
    """By how much the share of time that this rank's main thread waits for a core exceeds the mean of the others."""
    delays = [view.run_delay for view in others if view.run_delay is not None]
    return late.run_delay - fmean(delays) if late.run_delay is not None and delays else None


def _for_a_core(late: RankView, others: Sequence[RankView], step: float) -> list[str]:
    """Evidence that it waits longer for a core than the other ranks; empty where it hardly does."""
    more = _over_others(late, others)
    if more is None or more < WAITED or late.run_delay is None:
        return []
    mine, theirs = duration(step * late.run_delay), duration(step * (late.run_delay - more))
    return [f"rank {late.rank} could run and waits for a core for {mine} of a step, the others {theirs}"]


def _lost(late: RankView, others: Sequence[RankView], ranks: Ranks) -> float:
    """The share of a step that would be saved if this rank were as fast as the slowest of the others."""
    gap = (late.work or 0.0) - max(view.work or 0.0 for view in others)
    return max(0.0, min(0.95, gap / (ranks.step or 1.0)))


def _uneven(ranks: Ranks) -> Explanation:
    """The verdict where no rank is always the late one: now one is, now another."""
    share = (ranks.uneven or 0.0) / (ranks.step or 1.0)
    return Explanation(
        subtype="uneven",
        severity="warning",
        share=share,
        level=ENTER * share / UNEVEN,
        signals=(ranks.steps >= 50,),
        title=f"now one rank is late and now another: {percent(share)} of each step goes by in waiting for it",
        evidence=(f"{ranks.steps} steps compared; no rank is the last one in {percent(MOSTLY)} of them",),
        fixes=(fix(FIXES["uneven"], share),),
    )


def _cause(late: RankView, others: Sequence[RankView], step: float) -> str:
    """The cause of the rank's lateness: where it takes longer than the mean of the others."""
    most = 0.5 * (late.lateness or 0.0)
    if _phases(late).data_wait - fmean(_phases(view).data_wait for view in others) >= most:
        return "input"
    # Operations follow the length of sequences, too, which are no token ids.
    for name in ("tokens", "samples", "operations"):
        mine, theirs = getattr(late, name), [getattr(view, name) for view in others]
        if mine and all(theirs) and mine > LONGER * fmean(theirs):
            return "batches"
    delayed = _over_others(late, others)
    if delayed is not None and delayed * step >= most:
        return "contention"
    clocks = [view.gpu_clock for view in others if view.gpu_clock]
    if late.gpu_clock and clocks and late.gpu_clock < SLOWER * fmean(clocks):
        return "throttled"
    return "compute"


def _where(snapshot: Snapshot, late: RankView, cause: str) -> tuple[Where, ...]:
    """The lines at which the late rank loses time; for `compute` the line that exceeds the other ranks' share most."""
    entries = [entry for ledger in snapshot.ledgers for entry in ledger.entries]
    feeding = {process.pid for process in snapshot.processes if process.rank == late.rank}

    def wanted(entry: Entry) -> bool:
        if cause == "input":
            return entry.pid in feeding and (entry.phase == "data" or entry.role == "loader-worker")
        return entry.pid == late.pid and entry.lane == "main" and entry.phase not in ("exchange", "backward")

    chosen = lines_of(filter(wanted, entries))
    if cause != "compute" or not chosen.entries:
        return chosen.where
    # A line has an entry for each of its activities.
    mine = shares_by(chosen.entries, lambda entry: entry.at)
    others = {entry.pid for entry in entries if entry.lane == "main"} - {late.pid}
    elsewhere = shares_by(
        (entry for entry in entries if entry.lane == "main" and entry.pid in others), lambda entry: entry.at
    )
    most = max(mine, key=lambda at: mine[at] - elsewhere.get(at, 0.0) / max(1, len(others)))
    return lines_of(entry for entry in chosen.entries if entry.at == most).where


def _side_by_side(late: RankView, others: Sequence[RankView]) -> str:
    def words(view: RankView) -> str:
        phases = _phases(view)
        parts = {
            "data": phases.data_wait,
            "forward": phases.forward,
            "backward": phases.backward,
            "other": phases.optimizer + phases.outside,
            "waits": phases.wait or 0.0,
        }
        return f"rank {view.rank}: " + ", ".join(f"{name} {duration(value)}" for name, value in parts.items())

    return f"{words(late)} – {words(min(others, key=lambda view: view.lateness or 0.0))}"


def _operations(late: RankView, others: Sequence[RankView]) -> list[str]:
    """Evidence of how much more this rank computes in a step; empty where it does not, or where that is not known."""
    known = [view.operations for view in others if view.operations]
    if not late.operations or not known or late.operations <= LONGER * fmean(known):
        return []
    mine, theirs = 1e-9 * late.operations, 1e-9 * fmean(known)
    return [f"a backward pass of rank {late.rank} and its forward are {mine:.3g} GFLOP, of the others {theirs:.3g}"]


def _since(late: RankView) -> str:
    """Evidence of how long the rank has been late without a break."""
    big = 0.5 * (late.lateness or 0.0)
    number = next((back for back, skew in enumerate(reversed(late.skew)) if skew < big), len(late.skew))
    return f"late by more than {duration(big)} in each of the last {number} steps"
