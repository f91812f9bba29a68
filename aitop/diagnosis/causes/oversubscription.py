"""cpu-oversubscription: more threads want to run than there are cores, or the control group's quota runs out."""

from __future__ import annotations

from dataclasses import dataclass

from aitop.diagnosis.evidence import (
    UNPROVEN,
    confidence,
    host_limit,
    host_unproven,
    mean_of,
    records,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Setting, Severity, Verdict

ID = "cpu-oversubscription"
BAND = Band(enter=0.12, leave=0.07)
CRITICAL_SHARE = 0.3
CROWDED = 1.5
# Threads of one process alone that are more than its cores need not want so much to be in each other's way.
OWN_CROWD = 1.1
# Cores that a process wants which has more than one thread at work, and one that is at work at all.
MORE_THAN_ONE, SOME = 1.3, 0.3
THROTTLED = 0.1
OTHERS_DELAY, OTHERS_PART = 0.25, 0.3
# Fewer threads compute less side by side, too, and no barrier waits for one without a core: the gain is an estimate.
SURE = 0.45


@dataclass(frozen=True)
class Crowd:
    """Threads of the run that want cores at the same time. Cores, but for the counts.

    `usable` are there, `used` by the run, `wanted` by it (running or waiting), `others` used by everybody else.
    `most` threads are those of the rank that has most. One process alone wants at most `one_rank` or `one` cores, and
    `computing` of them want more than SOME.
    """

    usable: float
    used: float
    wanted: float
    others: float
    ranks: int
    threads: int
    workers: int
    worker_threads: int
    most: int
    one_rank: float
    one: float
    computing: int

    @property
    def own(self) -> bool:
        """Whether it is the run's own threads that are too many: those of one process alone, or of all together.

        One thread in each process is none too many, unless there are more of those than cores to share: the one that
        steps takes turns with those that load for it.
        """
        if self.most > self.usable and self.one_rank >= OWN_CROWD * self.usable:
            return True
        everyone = self.threads + self.worker_threads
        if self.wanted < CROWDED * self.usable or everyone < CROWDED * self.usable + 1:
            return False
        return self.one >= MORE_THAN_ONE or self.computing > self.usable + 1


def judge(snapshot: Snapshot) -> Judgement:
    """Whether the run's own threads take each other's cores, or its quota stops them; else who takes them."""
    crowd = _crowd(snapshot)
    delay = mean_of(snapshot, "run_delay", 20.0)
    if crowd is None or delay is None:
        return Abstention(id=ID, reason="run queues of the threads have not been read twice yet")
    throttled = mean_of(snapshot, "throttled", 20.0) or 0.0
    if throttled >= THROTTLED:
        return _of_quota(snapshot, crowd, delay, throttled)
    if not crowd.own:
        return _of_others(snapshot, crowd, delay)
    share = min(_owed_to_own_threads(crowd, delay), host_limit(snapshot), 0.95)
    return Finding(_verdict(snapshot, crowd, share, delay), level=share)


def _crowd(snapshot: Snapshot) -> Crowd | None:
    host = snapshot.host
    wanted = mean_of(snapshot, "cores_wanted", 20.0)
    if host is None or wanted is None or host.machine.core_busy is None:
        return None
    ranks = [one for one in host.processes if one.role == "rank"]
    workers = [one for one in host.processes if one.role == "loader-worker"]
    used = sum(one.cpu or 0.0 for one in host.processes)
    # What each wants now as a part of what all want on average.
    now = sum(one.wanted or 0.0 for one in host.processes)
    scale = wanted / now if now else 0.0
    return Crowd(
        usable=host.usable_cores or float(host.machine.cores),
        used=used,
        wanted=wanted,
        others=max(0.0, sum(host.machine.core_busy) - used),
        ranks=len(ranks),
        threads=sum(one.wanting or 0 for one in ranks),
        workers=len(workers),
        worker_threads=sum(one.wanting or 0 for one in workers),
        most=max((one.wanting or 0 for one in ranks), default=0),
        one_rank=max((scale * (one.wanted or 0.0) for one in ranks), default=0.0),
        one=max((scale * (one.wanted or 0.0) for one in (*ranks, *workers)), default=0.0),
        computing=sum(scale * (one.wanted or 0.0) >= SOME for one in (*ranks, *workers)),
    )


def _owed_to_own_threads(crowd: Crowd, delay: float) -> float:
    """The part of the main thread's waits for a core in which the run's own threads have it, rather than others."""
    own = max(0.0, crowd.wanted - 1.0)
    return delay * own / (own + crowd.others) if own > 0 else 0.0


def _verdict(snapshot: Snapshot, crowd: Crowd, share: float, delay: float) -> Verdict:
    unproven = host_unproven(snapshot)
    waiting = delay > 0.15
    severity: Severity = "critical" if share >= CRITICAL_SHARE and waiting and not unproven else "warning"
    sure = confidence(waiting, crowd.wanted > 2 * crowd.usable, base=0.45, steps=len(records(snapshot)))
    everyone = crowd.threads + crowd.worker_threads
    evidence = [
        f"{everyone} threads want {crowd.wanted:.1f} cores, and {crowd.usable:g} are there",
        f"the main thread waits for a core {percent(delay)} of the time",
    ]
    set_to = snapshot.facts.threads if snapshot.facts else None
    if set_to is not None and set_to > crowd.usable:
        evidence.append(f"torch is set to {set_to} threads, as on a machine with so many cores")
    if crowd.others > 0.25 * crowd.usable:
        evidence.append(f"processes outside of this run use {crowd.others:.1f} cores")
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(share), 3),
        confidence=min(sure, UNPROVEN if unproven else SURE),
        title=f"{everyone} threads compete for {crowd.usable:g} cores",
        evidence=tuple(evidence),
        fixes=_fixes(snapshot, crowd, share),
    )


def _fixes(snapshot: Snapshot, crowd: Crowd, share: float) -> tuple[Fix, ...]:
    gain = round(without(share), 2)
    fixes = []
    if crowd.threads > crowd.usable:
        fixes.append(Fix(text=_fewer_threads(snapshot, crowd), speedup=gain))
    if crowd.workers and crowd.worker_threads > 1.5 * crowd.workers:
        text = "torch.set_num_threads(1) or OMP_NUM_THREADS=1 in each worker (worker_init_fn)"
        fixes.append(Fix(text=text, speedup=gain))
    elif crowd.workers > crowd.usable:
        fewer = max(1, int(crowd.usable))
        setting = Setting(name="num_workers", to=fewer, current=crowd.workers)
        text = f"num_workers {crowd.workers} → {fewer}: more only wait for a core"
        fixes.append(Fix(text=text, speedup=gain, setting=setting))
    return tuple(fixes) or (Fix(text=f"start no more threads than there are cores ({crowd.usable:g})", speedup=gain),)


def _fewer_threads(snapshot: Snapshot, crowd: Crowd) -> str:
    # Cores that others use are not there for a barrier to wait on.
    each = max(1, int((crowd.usable - crowd.others + 0.3) // max(1, crowd.ranks)))
    now = snapshot.facts.threads if snapshot.facts else None
    before = f" instead of {now} threads" if now and now > each else ""
    return f"torch.set_num_threads({each}) or OMP_NUM_THREADS={each} in each process that computes{before}"


def _of_quota(snapshot: Snapshot, crowd: Crowd, delay: float, throttled: float) -> Judgement:
    """The control group's quota ran out: the kernel stops every thread until the next period."""
    share = min(delay, throttled, host_limit(snapshot), 0.95)
    if share < BAND.leave:
        return None
    everyone = crowd.threads + crowd.worker_threads
    enough = max(1, int(crowd.usable // max(1, crowd.ranks)))
    return Finding(
        Verdict(
            id=ID,
            severity="critical" if share >= CRITICAL_SHARE else "warning",
            share=round(share, 4),
            speedup=round(without(share), 3),
            confidence=SURE,
            title=f"the quota of {crowd.usable:g} cores runs out in {percent(throttled)} of the kernel's periods",
            evidence=(
                f"{everyone} threads want {crowd.wanted:.1f} cores, the control group allows {crowd.usable:g}",
                f"the main thread is kept waiting {percent(delay)} of the time",
            ),
            fixes=(
                Fix(text="raise the CPU limit of the container or job", speedup=round(without(share), 2)),
                Fix(text=f"use no more threads than the quota: torch.set_num_threads({enough}), fewer workers"),
            ),
        ),
        level=share,
    )


def others_have_cores(snapshot: Snapshot) -> bool:
    """Whether the run wants no more cores than there are, and does not get them because of somebody else's load."""
    crowd = _crowd(snapshot)
    return crowd is not None and not crowd.own and _held_up(crowd, mean_of(snapshot, "run_delay", 20.0) or 0.0)


def _held_up(crowd: Crowd, delay: float) -> bool:
    return crowd.others >= OTHERS_PART * crowd.usable and delay >= OTHERS_DELAY


def _of_others(snapshot: Snapshot, crowd: Crowd, delay: float) -> Judgement:
    """The run wants no more than there is, and does not get it: somebody else's load. Said, but no fault of the run."""
    if not _held_up(crowd, delay):
        return None
    own = (Fix(text=_fewer_threads(snapshot, crowd)),) if crowd.most > crowd.usable else ()
    return Finding(
        Verdict(
            id=ID,
            severity="info",
            confidence=0.6,
            title=f"other programs use {crowd.others:.1f} of {crowd.usable:g} cores: this run waits for them",
            evidence=(
                f"the main thread waits for a core {percent(delay)} of the time",
                f"this run's own threads want {crowd.wanted:.1f} cores",
            ),
            fixes=(
                *own,
                Fix(text="look for stray processes on this machine, or give the run cores of its own (taskset)"),
            ),
        ),
        level=delay,
    )


RULE = Rule(ID, judge, BAND)
