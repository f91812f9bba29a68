"""Snapshots for reports: of a run whose loader is too slow, and of one full of text that a terminal obeys."""

from __future__ import annotations

from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.ledger import Entry, Ledger
from aitop.model.snapshot import Cost, Phases, Snapshot, Steps, Target
from aitop.model.source import SourceStatus
from aitop.model.verdict import Abstention, Diagnosis, Fix, Setting, Verdict, Where

INPUT_BOUND = Verdict(
    id="input-bound",
    subtype="workers",
    severity="critical",
    title="64 % of each step waits for data",
    share=0.64001,
    speedup=2.77777,
    speedup_range=(2.40001, 3.1),
    processes=(4242,),
    confidence=0.9,
    where=(
        Where(pid=4250, file="/x/decode.py", line=41, function="D.__getitem__", share=0.81, text="img = decode(p)"),
    ),
    evidence=("data wait is 64 % of step time", "0 of 4 batches ready"),
    fixes=(
        Fix(text="num_workers 2 → 6", speedup=2.4, setting=Setting(name="num_workers", to=6, current=2)),
        Fix(text="decode once, not every epoch"),
    ),
    ranks=(0,),
)


def entry(share, phase, activity, place=None, **fields):
    bounds = {"low": share, "high": share, "basis": "sampled", "pid": 4242, "lane": "main", "samples": 100}
    return Entry(share=share, phase=phase, activity=activity, where=place, **{**bounds, **fields})


LOOP = Where(pid=4242, file="/x/train.py", line=41, function="main", text="    for images, labels in loader:")
DECODE = Where(pid=4250, file="/x/decode.py", line=41, function="D.__getitem__", text="img = decode(p)")
LEDGER = Ledger(
    pid=4242,
    thread="MainThread",
    unit="step",
    length=0.0238,
    entries=(
        entry(0.64, "data", "wait-queue", LOOP, basis="measured", seconds=0.0152),
        entry(0.355, "backward", "native"),
        entry(0.005, "host", "python", LOOP),
        entry(1.0, "data", "python", DECODE, lane="producers", pid=4250),
    ),
)


TOO_SHORT = (Abstention(id="memory-leak", reason="too short"), Abstention(id="oom-risk", reason="too short"))


def process(pid, role, rank):
    return ProcessSample(pid=pid, ppid=1, started=1.0, role=role, rank=rank, name="python", command="python train.py")


def snapshot(**changes) -> Snapshot:
    fields = {
        "tick": 15,
        "time": 100.0,
        "wall": 1.7e9,
        "window": 15.0,
        "target": Target(pid=4242, command="python train.py"),
        "kind": "training",
        "sources": {
            "host": SourceStatus(time=1.0, source="host", state="ok"),
            "gpu": SourceStatus(time=1.0, source="gpu", state="absent", reason="NVML is not here"),
            "stacks": SourceStatus(time=1.0, source="stacks", state="denied", reason="no right", remedy="sudo aitop"),
        },
        "host": HostSample(
            time=99.0,
            processes=(process(4242, "rank", 0), process(4250, "loader-worker", 0), process(4260, "helper", None)),
            machine=MachineSample(cores=8),
        ),
        "steps": Steps(
            basis="hook",
            count=312,
            p50=0.0212,
            p95=0.0601,
            per_second=4.2,
            samples_per_second=67.0,
            tokens_per_second=6700.0,
            flops_per_second=4.1e13,
            mfu=0.41,
            phases=Phases(data_wait=0.64, forward=0.1, backward=0.2, optimizer=0.02, outside=0.04),
        ),
        "cost": Cost(monitor_cpu=0.021, hook_us_per_step=6.1, target_slowdown=0.001),
        "diagnosis": Diagnosis(verdicts=(INPUT_BOUND,), abstained=TOO_SHORT),
    }
    return Snapshot(**{**fields, **changes})


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n<script>alert(1)</script>\u202e\x9b31m"


def hostile():
    verdict = Verdict(
        id="input-bound",
        severity="warning",
        title=HOSTILE,
        confidence=0.5,
        where=(Where(pid=1, file=HOSTILE, line=1, function=HOSTILE, text=HOSTILE),),
        evidence=(HOSTILE,),
        fixes=(Fix(text=HOSTILE),),
    )
    return snapshot(
        target=Target(pid=1, command=HOSTILE, ended=HOSTILE),
        sources={"gpu": SourceStatus(time=1.0, source="gpu", state="failed", reason=HOSTILE, remedy=HOSTILE)},
        diagnosis=Diagnosis(verdicts=(verdict,), abstained=(Abstention(id="x", reason=HOSTILE),)),
        ledgers=(
            Ledger(pid=1, thread=HOSTILE, unit="step", entries=(entry(1.0, "host", "python", verdict.where[0]),)),
        ),
    )
