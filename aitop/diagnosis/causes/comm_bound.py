"""comm-bound: ranks spend their steps exchanging data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from aitop.diagnosis.device import calls_of, on_gpu
from aitop.diagnosis.evidence import MIN_SAMPLES, interval, main_lines, records, short_place
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import fix
from aitop.model.ledger import RESTS, Entry
from aitop.model.phases import Phase
from aitop.model.ranks import Ranks
from aitop.model.snapshot import CallNode, Snapshot
from aitop.model.steps import CallSite, DdpInfo
from aitop.model.units import duration, percent
from aitop.model.verdict import Fix, Where
from aitop.stacks.libraries import exchanges

# Fewer steps of several ranks say little.
MIN_STEPS = 10
# The number of batches over which the fix proposes to accumulate gradients.
ACCUMULATED = 4
ACCUMULATE = f"accumulate gradients over {ACCUMULATED} batches under `model.no_sync()`, and exchange once"
HALF = "exchange half the bytes: model.register_comm_hook(None, bf16_compress_hook)"
# DDP hides too little of its exchange if less than this part of it overlaps with the backward pass.
OVERLAPPED = 0.5
# Threads that exchange take cores from those that compute if that costs at least this share of a step.
OVERHEAD = 0.05
# The part of the exchange from which one of its causes counts as the main one.
MOSTLY = 0.5
# An exchange of fewer bytes than LARGE_STEP_BYTES that is slower than FAST_BYTES_PER_SECOND is limited by latency, not
# by bandwidth.
FAST_BYTES_PER_SECOND, LARGE_STEP_BYTES = 500e6, 8e6
MOST_SITES = 3
# In these phases a rank on the CPU waits for nothing but its own threads, other ranks and the exchange with them.
TOGETHER: frozenset[Phase] = frozenset({"forward", "backward", "optimizer", "exchange"})


class RankWaits(msgspec.Struct, frozen=True):
    """The part (0..1) of its time that a rank waits for others or for the exchange, between `least` and `most`."""

    share: float
    least: float
    most: float


def waits_without_hook(snapshot: Snapshot) -> Mapping[int, RankWaits]:
    """How long each rank waits for the others, by pid, by the kernel's counters and stacks.

    That is what its main thread rests without its waits for data and the like, which stacks tell apart. Empty where the
    hook compares the ranks step by step, which tells more, and where a device computes: the host rests meanwhile.
    Processes in whose stacks nothing exchanges data are no ranks of one job, but train side by side.
    """
    ranks = snapshot.ranks
    if ranks is None or ranks.step or records(snapshot) or snapshot.stacks is None or on_gpu(snapshot):
        return {}
    samples = {process.pid: process.samples for process in snapshot.stacks.processes}
    together = exchanging(snapshot)
    resting = {view.pid: view.resting for view in ranks.ranks if view.resting is not None and view.pid in together}
    waits = {}
    for ledger in snapshot.ledgers:
        if ledger.pid not in resting or samples.get(ledger.pid, 0) < MIN_SAMPLES:
            continue
        rests = resting[ledger.pid]
        other = sum(entry.share for entry in ledger.main if _rests_alone(entry))
        low, high = interval(other, samples[ledger.pid])
        share, least, most = (max(0.0, rests - each) for each in (other, high, low))
        waits[ledger.pid] = RankWaits(share, least, most)
    return waits if len(waits) > 1 else {}


def exchanging(snapshot: Snapshot) -> frozenset[int]:
    """The processes, by pid, in whose stacks a library exchanges data between ranks."""
    processes = snapshot.stacks.processes if snapshot.stacks is not None else ()
    return frozenset(each.pid for each in processes if each.tree is not None and _exchanges(each.tree))


def _exchanges(tree: CallNode) -> bool:
    """Whether a library that exchanges data between ranks is in this call tree."""
    nodes = [tree]
    for node in nodes:
        if exchanges(node.file):
            return True
        nodes += node.children
    return False


def _rests_alone(entry: Entry) -> bool:
    """Whether a rank that computes on the CPU rests here for a reason of its own.

    That is outside of the passes and the exchange, or where it sleeps.
    """
    return entry.activity == "sleep" or (entry.activity in RESTS and entry.phase not in TOGETHER)


def too_few_steps(snapshot: Snapshot) -> str | None:
    """Say what is missing before ranks can be compared; None if nothing is, or if there are no ranks."""
    ranks = snapshot.ranks
    if ranks is None or (ranks.steps >= MIN_STEPS and ranks.step):
        return None
    if snapshot.steps is not None and snapshot.steps.basis != "hook":
        return "the steps of ranks are timed only from inside of their processes"
    return f"{ranks.steps} steps of several ranks so far; {MIN_STEPS} are needed"


def _too_few_steps(snapshot: Snapshot) -> str | None:
    known = _waits_alone(snapshot) is not None or waits_without_hook(snapshot)
    return None if known else too_few_steps(snapshot)


def _waits_alone(snapshot: Snapshot) -> float | None:
    """The share of a step (0..1) that the only rank on this machine waits for others elsewhere.

    None if there are other ranks here, or none elsewhere, or if too little was timed.
    """
    ranks = snapshot.ranks
    if ranks is None or len(ranks.ranks) != 1 or (ranks.world_size or 1) < 2:
        return None
    phases = ranks.ranks[0].phases
    if phases is None or phases.wait is None or len(records(snapshot)) < MIN_STEPS:
        return None
    length = snapshot.steps.mean if snapshot.steps is not None else None
    return min(1.0, phases.wait / length) if length else None


def _elsewhere(ranks: Ranks) -> list[str]:
    """Evidence of how many ranks are on other machines; empty where none is."""
    number = (ranks.world_size or 0) - len(ranks.ranks)
    told = f"{number} of {ranks.world_size} ranks are on other machines, and one of them may be late"
    return [f"{told}: `aitop fleet` compares all ranks, where `aitop export --hook` watches them"] if number > 0 else []


@rule("comm-bound", 0.2, 0.12, missing=_too_few_steps)
def comm_bound(snapshot: Snapshot) -> Explanation | None:
    """The verdict on the exchange itself: the time after the last rank has come to it. Waits before that are for a
    straggler.

    For ranks on other machines it is not known when the last one comes, so both are one share.
    """
    ranks, facts = snapshot.ranks, snapshot.facts
    if waits := waits_without_hook(snapshot):
        return _without_hook(snapshot, waits)
    alone = _waits_alone(snapshot)
    if ranks is not None and alone is not None:
        return Explanation(
            subtype="elsewhere",
            share=alone,
            title=f"{percent(alone)} of each step waits for ranks on other machines, or for the exchange with them",
            where=_where(snapshot, ()),
            evidence=_elsewhere(ranks),
            ranks=tuple(rank.rank for rank in ranks.ranks if rank.rank is not None),
        )
    if ranks is None or not ranks.step or ranks.exchange is None:
        return None
    share = min(0.95, ranks.exchange / ranks.step)
    saved = share if ranks.apart is None else max(share, 1.0 - ranks.apart / ranks.step)
    ddp = facts.ddp if facts else None
    calls = ranks.calls or 0.0
    sites = list(calls_of(snapshot, "collective")) if calls > MOSTLY * ranks.exchange else []
    small = _latency(ranks.exchange, snapshot)
    # What DistributedDataParallel times by itself is an independent signal.
    unhidden = max(0.0, (ddp.communication or 0.0) - (ddp.overlap or 0.0)) if ddp else 0.0
    confirmed = unhidden + calls >= MOSTLY * ranks.exchange
    what = "many small exchanges" if small else "exchange"
    return Explanation(
        subtype="latency" if small else "volume",
        share=share,
        saved=saved,
        signals=(confirmed, share > 0.4),
        title=f"{percent(share)} of each step is {what} between ranks that no computing hides",
        where=_where(snapshot, sites),
        evidence=(
            *_evidence(ranks.exchange, ddp),
            *_cores_taken(ranks, saved - share),
            *scaling(ranks),
            *_elsewhere(ranks),
            *map(_site_words, sites[:MOST_SITES]),
        ),
        fixes=_fixes(snapshot, share, saved, calls / ranks.step, sites, small=small),
        ranks=tuple(rank.rank for rank in ranks.ranks if rank.rank is not None),
    )


def _without_hook(snapshot: Snapshot, waits: Mapping[int, RankWaits]) -> Explanation:
    """The verdict without the hook: what even the rank that rests least rests in its passes.

    Doubtful: it may also rest while threads of its own compute, or for a rank that is late now and then.
    """
    share = min(wait.share for wait in waits.values())
    return Explanation(
        share=share,
        level=min(wait.least for wait in waits.values()),
        doubtful=True,
        title=f"every rank waits {percent(share)} of the time in its passes: for the exchange, or for another rank",
        where=_where(snapshot, ()),
        evidence=(
            "their main threads neither run nor wait for a core meanwhile, and a library exchanges data",
            "how many bytes are exchanged, and whether one rank is late, is known with the hook only",
        ),
        fixes=(fix(ACCUMULATE, share * (1.0 - 1.0 / ACCUMULATED)), fix(HALF, share / 2)),
    )


def scaling(ranks: Ranks) -> list[str]:
    """Evidence of the scaling efficiency; empty where it was not measured."""
    if ranks.efficiency is None:
        return []
    return [f"scaling efficiency {percent(ranks.efficiency)}: for the rest of their time the ranks wait for each other"]


def _latency(exchange: float, snapshot: Snapshot) -> bool:
    """Whether so few bytes are exchanged in `exchange` seconds that latency is the limit, not bandwidth."""
    ddp = snapshot.facts.ddp if snapshot.facts else None
    counts = [step.collectives for step in records(snapshot) if step.collectives]
    sites = calls_of(snapshot, "collective")
    calls = sum(site.calls for site in sites)
    each = sum(site.bytes or 0 for site in sites) / calls if calls else 0.0
    size = ((ddp.gradient_bytes if ddp else None) or 0) + each * (sum(counts) / len(counts) if counts else 0.0)
    return size < LARGE_STEP_BYTES and size < FAST_BYTES_PER_SECOND * exchange


def _where(snapshot: Snapshot, sites: Sequence[CallSite]) -> tuple[Where, ...]:
    """The lines of the calls; without calls, the line of the backward pass, in which gradients are exchanged."""
    pid = snapshot.steps.pid if snapshot.steps else None
    if sites and pid is not None:
        return tuple(
            Where(pid=pid, file=site.file, line=site.line, function=site.function) for site in sites[:MOST_SITES]
        )
    return main_lines(snapshot, lambda entry: entry.phase == "backward").where[:1]


def _site_words(site: CallSite) -> str:
    each = f": {duration(site.seconds / site.calls)} each, lateness included" if site.seconds and site.calls else ""
    return f"{site.name} at {short_place(site)}{each}"


def _evidence(exchange: float, ddp: DdpInfo | None) -> list[str]:
    words = [f"after the last rank has arrived, each step still spends {duration(exchange)} in the exchange"]
    if ddp is not None and ddp.gradient_bytes:
        buckets = f", in buckets of {ddp.bucket_cap_mb:.0f} MB" if ddp.bucket_cap_mb else ""
        backend = ddp.backend or "an unnamed backend"
        words.append(f"{ddp.gradient_bytes / 1e6:.0f} MB of gradients a step over {backend}{buckets}")
    if ddp is not None and ddp.communication and ddp.overlap is not None:
        overlapped = min(1.0, ddp.overlap / ddp.communication)
        words.append(f"{percent(overlapped)} of the exchange overlaps with the backward pass")
    return words


def _cores_taken(ranks: Ranks, more: float) -> list[str]:
    """Evidence that the threads which exchange also take cores from those that compute; empty if they hardly do."""
    if more < OVERHEAD or ranks.apart is None:
        return []
    without = f"without any exchange a step would take {duration(ranks.apart)}"
    return [f"its threads also keep those that compute from their cores: {without}"]


def _fixes(
    snapshot: Snapshot, share: float, saved: float, calls: float, sites: Sequence[CallSite], *, small: bool
) -> list[Fix]:
    """`saved` is what a step saves without any exchange, `calls` the part of `share` in calls of the program's own.

    Accumulating gradients also saves updates of the optimizer.
    """
    ddp = snapshot.facts.ddp if snapshot.facts else None
    updates = snapshot.phases.optimizer or 0.0
    fixes = []
    if sites:
        call = f"{sites[0].name} at {short_place(sites[0])}"
        fixes.append(fix(f"not at every step what only reports or waits: {call}", calls))
    if ddp is None:
        return fixes
    rarely = (saved - calls + updates) * (1.0 - 1.0 / ACCUMULATED)
    fixes.append(fix(ACCUMULATE, rarely))
    if small:
        return [*fixes, fix("a larger batch for each rank: as many exchanges for more work")]
    fixes.append(fix(HALF, (share - calls) / 2))
    if ddp.communication and (ddp.overlap or 0.0) < OVERLAPPED * ddp.communication:
        fixes.append(fix("a smaller bucket_cap_mb, so that the exchange begins earlier in the backward pass"))
    return fixes
