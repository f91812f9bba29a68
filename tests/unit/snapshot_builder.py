"""Builds Snapshots for rule tests: only what a test names is measured, everything else is None."""

import msgspec

from aitop.diagnosis.ledger import ledgers
from aitop.engine.snapshot.steps import steps_view
from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.snapshot import HotLine, Phases, ProcessStacks, Series, Snapshot, Stacks, Steps, Target
from aitop.model.stacks import Frame
from aitop.model.steps import HookFacts, LoaderInfo, StepRecord
from aitop.stacks.work import working

RANK, WORKER = 100, 200


def step(index=0, seconds=0.1, **durations):
    return StepRecord(index=index, end=1000.0 + index * seconds, seconds=seconds, **durations)


def steps(count=40, seconds=0.1, **durations):
    """`count` equal steps; durations are in seconds."""
    return [step(index, seconds, **durations) for index in range(count)]


def line(function, share, *, pid=RANK, phase="outside", number=10, file="/x/train.py", via=(), **fields):
    """A line of the user's. `via` has (function, line, text) of its callers, the outermost first."""
    assert 0 <= share <= 1
    fields.setdefault("activity", "python")
    return HotLine(
        pid=pid,
        role="loader-worker" if pid >= WORKER else "rank",
        file=file,
        line=number,
        function=function,
        phase=phase,
        samples=round(share * 100),
        share=share,
        via=tuple(Frame(function=name, file=file, line=at, user=True, text=words) for name, at, words in via),
        **fields,
    )


def of_thread(function, share, *, thread="metrics", activity="python", number=50, text=None):
    return HotLine(
        pid=RANK,
        role="rank",
        file="/x/metrics.py",
        line=number,
        function=function,
        phase="outside",
        activity=activity,
        samples=round(share * 100),
        share=share,
        text=text,
        thread=thread,
    )


def process(pid=RANK, role="rank", **fields):
    return ProcessSample(pid=pid, ppid=1, started=0.0, role=role, name="python", command="python train.py", **fields)


def host(workers=0, *, worker_cpu=None, main_cpu=1.0, busy=(0.5, 0.5), state="S", read_bytes=None, **fields):
    processes = [process(cpu=main_cpu)]
    for index in range(workers):
        processes.append(process(WORKER + index, "loader-worker", cpu=worker_cpu, state=state, read_bytes=read_bytes))
    machine = MachineSample(cores=len(busy), core_busy=busy, memory_available=8 * 2**30, memory_total=16 * 2**30)
    return HostSample(time=1000.0, processes=tuple(processes), machine=machine, usable_cores=float(len(busy)), **fields)


def stacks(lines=(), workers=0, main_samples=100, phases=None):
    processes = [ProcessStacks(pid=RANK, role="rank", samples=main_samples, phases=phases or Phases())]
    processes += [
        ProcessStacks(pid=WORKER + index, role="loader-worker", samples=100, phases=Phases())
        for index in range(workers)
    ]
    return Stacks(seconds=5.0, samples=main_samples, processes=tuple(processes), lines=tuple(lines))


def constant(value, count=20, until=1000.0):
    return Series(times=tuple(until - count + index for index in range(count)), values=(value,) * count)


def facts(**fields):
    return HookFacts(way="attach", python="3.11", torch="2", **fields)


ON_CUDA = facts(cuda=True)


def on_devices(*devices, **fields):
    """A run whose machine has these devices."""
    return snapshot(steps(), gpu=GpuSample(time=1000.0, devices=devices), **fields)


def own_gpu(index=0, **fields):
    """A device of the run, unless `mine` says otherwise."""
    fields.setdefault("mine", True)
    return GpuDevice(index=index, memory_total=100, **fields)


def loaders(workers, **fields):
    return facts(loaders=(LoaderInfo(workers=workers, **fields),))


def on_gpu(records=None, *, busy=None, device=None, **more):
    """A run on one GPU; `busy` and further keywords like `dram` are what NVML says of it."""
    counters = {name: more.pop(name) for name in ("sm", "tensor", "dram", "fp32", "pcie_received") if name in more}
    counters |= {} if busy is None else {"busy": busy}
    device = device or GpuDevice(index=0, mine=True)
    series = {f"gpu{device.index}.{name}": constant(value) for name, value in counters.items()}
    more.setdefault("facts", facts(cuda=True))
    more.setdefault("steps_so_far", 40)
    return snapshot(records, gpu=GpuSample(time=1000.0, devices=(device,)), series=series, **more)


def snapshot(
    records=None,
    *,
    phases=None,
    lines=(),
    workers=0,
    kind="training",
    time=1000.0,
    main_samples=100,
    steps_so_far=1000,
    **fields,
):
    """A Snapshot with hook steps (`records`) or with phases from stacks (`phases`)."""
    if records:
        view = steps_view(RANK, records, steps_so_far, records)
    elif phases is not None:
        view = Steps(basis="stacks", pid=RANK, phases=phases)
    else:
        view = None
    fields.setdefault("host", host(workers))
    fields.setdefault("window", 10.0)
    if lines or main_samples:
        fields.setdefault("stacks", stacks(lines, workers, main_samples, phases))
    return with_ledgers(
        Snapshot(
            tick=5,
            time=time,
            wall=0.0,
            target=Target(pid=RANK, command="python train.py"),
            kind=kind,
            steps=view,
            **fields,
        )
    )


def with_ledgers(seen):
    """The Snapshot with those who work and their ledgers made anew, as the engine does before it judges."""
    made = seen.steps if seen.steps is not None and seen.steps.recent else None
    stepping = {made.pid: made.recent[-1].kind} if made else {}
    seen = msgspec.structs.replace(seen, working=working(seen.stacks, stepping, seen.target.pid))
    return msgspec.structs.replace(seen, ledgers=ledgers(seen))


def with_fields(seen, **fields):
    """The Snapshot with other fields, and the ledgers that follow from them."""
    return with_ledgers(msgspec.structs.replace(seen, **fields))
