"""cpu-oversubscription: more threads want to run than there are cores, or the control group's quota runs out."""

from __future__ import annotations

import msgspec

from aitop.diagnosis.device import host_limit, host_unproven
from aitop.diagnosis.evidence import (
    MAIN,
    RUNNING,
    cores_wanted,
    lead_ledger,
    loader_size,
    main_lines,
    of_unit,
    others_cores,
    producer_entries,
    server_idle_share,
    serves,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.series import mean_of
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Fix, Setting

# There are too few cores if CROWDED times as many are wanted. For the threads of one process OWN_CROWD is enough: they
# wait for each other at barriers.
CROWDED, OWN_CROWD = 1.5, 1.1
# A process that wants at least MORE_THAN_ONE cores has several threads at work; one that wants at least SOME has one.
MORE_THAN_ONE, SOME = 1.3, 0.3
# The part of the kernel's periods in which the quota runs out from which it is the cause.
THROTTLED = 0.1
# Other programs are to blame if the main thread waits for a core for OTHERS_DELAY of the time, and they use OTHERS_PART
# of the cores.
OTHERS_DELAY, OTHERS_PART = 0.25, 0.3
# Why a server's queue and batches are not judged while other programs have the cores.
BECAUSE_OF_OTHERS = "requests may wait only because other programs have the cores"
# The highest confidence: fewer threads also compute less in parallel, so the gain is an estimate.
SURE = 0.45
# Phases in which libraries divide an operation among threads.
TOGETHER = ("forward", "backward", "optimizer")


class CoreDemand(msgspec.Struct, frozen=True):
    """Threads that want cores at the same time.

    usable         cores that the run may use
    wanted         cores that its threads run on or wait for; producers of the stepping thread want `making` of them
    others         cores that other programs use
    delay          share of the time in which the main thread waits for a core
    kept_waiting   the same as a share of the time in which it has work: a server rests between requests
    threads, worker_threads   how many threads of the `ranks` and of the loader `workers` want a core
    most           how many threads want a core in the rank that has most of them
    own            whether the run's own threads are too many
    """

    usable: float
    wanted: float
    making: float
    others: float
    delay: float
    kept_waiting: float
    ranks: int
    threads: int
    workers: int
    worker_threads: int
    most: int
    own: bool

    @property
    def everyone(self) -> int:
        """All threads of the run that want a core."""
        return self.threads + self.worker_threads

    @property
    def held_up(self) -> bool:
        """Whether the run wants no more cores than there are, and does not get them because of somebody else's load."""
        return not self.own and self.others >= OTHERS_PART * self.usable and self.kept_waiting >= OTHERS_DELAY


# It needs no steps: the kernel's run queues show a lack of cores before any step was seen.
@rule("cpu-oversubscription", 0.12, 0.07, scope=Scope(everywhere=True), missing=None)
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether the quota stops the run's threads, or these take each other's cores; else whether other programs do."""
    crowd = _core_demand(snapshot)
    if crowd is None:
        return "run queues of the threads have not been read twice yet"
    throttled = mean_of(snapshot, "throttled") or 0.0
    if throttled >= THROTTLED:
        return _of_quota(snapshot, crowd, throttled)
    return _of_own_threads(snapshot, crowd) if crowd.own else _of_others(snapshot, crowd)


def _core_demand(snapshot: Snapshot) -> CoreDemand | None:
    """The threads that want cores; None before they were counted."""
    host, others, ledger = snapshot.host, others_cores(snapshot), lead_ledger(snapshot)
    wanted, delay = mean_of(snapshot, "cores_wanted"), mean_of(snapshot, "run_delay")
    if host is None or others is None or wanted is None or delay is None:
        return None
    usable = host.usable_cores or float(host.machine.cores)
    ranks, workers = ([one for one in host.processes if one.role == role] for role in ("rank", "loader-worker"))
    threads, worker_threads = (sum(one.wanting or 0 for one in those) for those in (ranks, workers))
    most = max((one.wanting or 0 for one in ranks), default=0)
    # What each process wants now, scaled so that all together want as much as they do on average.
    now = sum(one.wanted or 0.0 for one in host.processes)
    each = {one.pid: (one.wanted or 0.0) * (wanted / now if now else 0.0) for one in (*ranks, *workers)}
    # What producers make for the stepping thread, such as batches, has to be made by however many threads, so they do
    # not count as too many. Nor do threads of a server with a request each: those that wait for a core are a queue,
    # and with fewer threads the requests would queue elsewhere.
    makers = [entry for entry in producer_entries(snapshot) if entry.activity in RUNNING and not serves(snapshot)]
    within = [entry for entry in makers if ledger is not None and entry.pid == ledger.pid]
    making, answering = cores_wanted(makers), _answering(snapshot)
    one_rank = max((each[one.pid] for one in ranks), default=0.0) - cores_wanted(within)
    alone = most - answering - len({entry.thread for entry in within}) > usable and one_rank >= OWN_CROWD * usable
    together = threads + worker_threads - answering - len({(entry.pid, entry.thread) for entry in makers})
    crowded = wanted - making >= CROWDED * usable and together >= CROWDED * usable + 1
    # One thread per process is not too many, unless more processes compute than there are cores plus one: the process
    # that steps takes turns with those that load for it.
    several = max(each.values(), default=0.0) >= MORE_THAN_ONE or sum(one >= SOME for one in each.values()) > usable + 1
    return CoreDemand(
        usable=usable,
        wanted=wanted,
        making=making,
        others=others,
        delay=delay,
        kept_waiting=min(1.0, delay / max(0.01, 1.0 - server_idle_share(snapshot))),
        ranks=len(ranks),
        threads=threads,
        workers=len(workers),
        worker_threads=worker_threads,
        most=most,
        own=alone or (crowded and several),
    )


def _answering(snapshot: Snapshot) -> int:
    """How many threads of a server have a request to themselves; the ledger has threads of a pool under one name."""
    ledger, stacks = lead_ledger(snapshot), snapshot.stacks
    if ledger is None or stacks is None or snapshot.kind != "inference":
        return 0
    names = {(entry.pid, entry.thread) for entry in ledger.entries if entry.handler == "thread"}
    for process in stacks.processes:
        if process.pool is not None and (process.pid, process.thread) in names:
            names |= {(process.pid, thread) for thread in process.pool.threads}
    looks = {thread.pid: thread.samples for thread in stacks.threads if thread.thread == MAIN}
    answering = [thread for thread in stacks.threads if (thread.pid, thread.thread) in names]
    return sum(round(thread.samples / looks[thread.pid]) for thread in answering if looks.get(thread.pid))


def _of_own_threads(snapshot: Snapshot, crowd: CoreDemand) -> Explanation:
    """The verdict on more threads than there are cores."""
    # At the end of every operation, the threads that compute it wait for the one that had no core.
    together = main_lines(snapshot, lambda entry: entry.phase in TOGETHER and entry.activity in ("wait-lock", "wait"))
    # Only the part of these waits counts in which the run's own threads have the cores, rather than others.
    own = max(0.0, crowd.wanted - 1.0 - crowd.making)
    waits = crowd.delay + together.share
    share = min(
        waits * own / (own + crowd.making + crowd.others) if own else 0.0, host_limit(snapshot, in_phases=True), 0.95
    )
    of_each, at_leisure = of_unit(snapshot, share)
    waiting = crowd.delay > 0.15
    evidence = [
        f"{crowd.everyone} threads want {crowd.wanted:.1f} cores, and {crowd.usable:g} are there",
        f"the main thread waits for a core {percent(crowd.delay)} of the time",
    ]
    if together.share > 0.05:
        evidence.append(f"and {percent(together.share)} for the threads that compute with it")
    threads = snapshot.facts.threads if snapshot.facts else None
    if threads is not None and threads > crowd.usable:
        evidence.append(f"torch is set to {threads} threads, as on a machine with so many cores")
    if crowd.others > 0.25 * crowd.usable:
        evidence.append(f"processes outside of this run use {crowd.others:.1f} cores")
    if at_leisure:
        evidence.append(at_leisure)
    return Explanation(
        share=share,
        saved=of_each,
        level=of_each,
        signals=(waiting, crowd.wanted > 2 * crowd.usable),
        doubtful=host_unproven(snapshot, in_phases=True),
        most_sure=SURE,
        title=f"{crowd.everyone} threads compete for {crowd.usable:g} cores",
        evidence=evidence,
        fixes=_fixes(snapshot, crowd, of_each),
    )


def _fixes(snapshot: Snapshot, crowd: CoreDemand, share: float) -> list[Fix]:
    fixes = []
    if crowd.threads > crowd.usable:
        fixes.append(fix(_fewer_threads(snapshot, crowd), share))
    if crowd.workers and crowd.worker_threads > 1.5 * crowd.workers:
        fixes.append(fix("torch.set_num_threads(1) or OMP_NUM_THREADS=1 in each worker (worker_init_fn)", share))
    elif crowd.workers > crowd.usable:
        # A loader's own: each rank has one.
        now, fewer = loader_size(snapshot), max(1, int(crowd.usable // max(1, crowd.ranks)))
        if fewer < now:
            setting = Setting(name="num_workers", to=fewer, current=now)
            fixes.append(fix(f"num_workers {now} → {fewer}: more only wait for a core", share, setting))
    return fixes or [fix(f"start no more threads than there are cores ({crowd.usable:g})", share)]


def _fewer_threads(snapshot: Snapshot, crowd: CoreDemand) -> str:
    # Cores that others use are left out: a thread without a core holds up every barrier.
    each = max(1, int((crowd.usable - crowd.others + 0.3) // max(1, crowd.ranks)))
    now = snapshot.facts.threads if snapshot.facts else None
    before = f" instead of {now} threads" if now and now > each else ""
    return f"torch.set_num_threads({each}) or OMP_NUM_THREADS={each} in each process that computes{before}"


def _of_quota(snapshot: Snapshot, crowd: CoreDemand, throttled: float) -> Explanation:
    """The verdict that the control group's quota runs out: the kernel stops every thread until the next period."""
    share = min(crowd.delay, throttled, host_limit(snapshot, in_phases=True), 0.95)
    enough = max(1, int(crowd.usable // max(1, crowd.ranks)))
    return Explanation(
        share=share,
        signals=(True, crowd.delay > 0.15),
        confidence=SURE,
        title=f"the quota of {crowd.usable:g} cores runs out in {percent(throttled)} of the kernel's periods",
        evidence=(
            f"{crowd.everyone} threads want {crowd.wanted:.1f} cores, the control group allows {crowd.usable:g}",
            f"the main thread is kept waiting {percent(crowd.delay)} of the time",
        ),
        fixes=(
            fix("raise the CPU limit of the container or job", share),
            fix(f"use no more threads than the quota: torch.set_num_threads({enough}), fewer workers"),
        ),
    )


def others_have_cores(snapshot: Snapshot) -> bool:
    """Whether the load of other programs keeps the run from its cores."""
    crowd = _core_demand(snapshot)
    return crowd is not None and crowd.held_up


def _of_others(snapshot: Snapshot, crowd: CoreDemand) -> Explanation | None:
    """The verdict, for information, that other programs have the cores; None if they do not keep the run waiting."""
    if not crowd.held_up:
        return None
    own = [fix(_fewer_threads(snapshot, crowd))] if crowd.most > crowd.usable else []
    working = " in which it has something to do" if crowd.kept_waiting > crowd.delay else ""
    return Explanation(
        severity="info",
        share=min(crowd.delay, 0.99),
        gains=False,
        level=crowd.kept_waiting,
        confidence=0.6,
        title=f"other programs use {crowd.others:.1f} of {crowd.usable:g} cores: this run waits for them",
        evidence=(
            f"the main thread waits for a core {percent(crowd.kept_waiting)} of the time{working}",
            f"this run's own threads want {crowd.wanted:.1f} cores",
        ),
        fixes=(*own, fix("look for stray processes on this machine, or give the run cores of its own (taskset)")),
    )
