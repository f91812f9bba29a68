"""What the fabricated Snapshots are put together from: steps, processes, devices, stacks, series."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec

from aitop.engine.snapshot.steps import steps_view
from aitop.model.gpu import GpmSample, GpuDevice, GpuProcess, GpuSample
from aitop.model.host import CgroupSample, HostSample, MachineSample, ProcessId, ProcessSample
from aitop.model.snapshot import (
    CallNode,
    HotLine,
    Phases,
    ProcessStacks,
    Series,
    Stacks,
    Steps,
    Target,
)
from aitop.model.source import SourceName, SourceStatus
from aitop.model.steps import AllocatorSample, HookFacts, LoaderInfo, StepRecord

GB = 2**30
MB = 2**20
TRAIN, DECODE, MODEL = "/home/ada/vision/train.py", "/home/ada/vision/data/decode.py", "/home/ada/vision/model.py"
MAIN, WORKERS = 3720, (3731, 3732, 3733, 3734)
START = 5000.0

SOURCE = """\
    def __getitem__(self, index):
        path, label = self.items[index]
        with open(path, "rb") as file:
            raw = file.read()
        # decoded at full size, then thrown away by the crop
        image = decode_jpeg(raw, size=None)
        image = random_crop(image, 224)
        return normalise(image, MEAN, STD), torch.tensor(label)
"""


def source_around(process: ProcessId, file: str, line: int) -> list[tuple[int, str]]:
    """The lines around the guilty one, as the engine would read them."""
    first = line - 5
    return [(first + number, text) for number, text in enumerate(SOURCE.splitlines())]


def states(**changed: tuple[object, ...]) -> dict[SourceName, SourceStatus]:
    """All four sources ok, but for those given as (state, reason, remedy, age) and a code, where there is one."""
    names: tuple[SourceName, ...] = ("host", "gpu", "stacks", "hook")
    sources = {name: SourceStatus(time=START, source=name, state="ok", age=0.4) for name in names}
    for name in names:
        if name in changed:
            state, reason, remedy, age, code = (*changed[name], None)[:5]
            sources[name] = SourceStatus(
                time=START, source=name, state=state, reason=reason, remedy=remedy, age=age, code=code
            )
    return sources


def target(**changed: object) -> Target:
    return msgspec.structs.replace(
        Target(pid=MAIN, command="/home/ada/.venv/bin/python train.py --bs 64", started=1.7e9, script=TRAIN), **changed
    )


def records(count: int, seconds: float, wait: float, *, seed: int = 7, save_every: int = 0) -> tuple[StepRecord, ...]:
    """Steps of about `seconds` of which a share `wait` is waiting for data; a save now and then."""
    chance = random.Random(seed)
    recent, end = [], START - count * seconds
    for index in range(count):
        waited = seconds * wait * chance.uniform(0.6, 1.5)
        busy = seconds * (1 - wait)
        save = 0.9 if save_every and index % save_every == 17 else 0.0
        total = waited + busy * chance.uniform(0.98, 1.03) + save
        end += total
        recent.append(
            StepRecord(
                index=14_000 + index,
                end=end,
                seconds=total,
                data_wait=waited,
                forward=busy * 0.28,
                backward=busy * 0.55,
                optimizer=busy * 0.06,
                save=save,
                samples=64,
                queue_ready=chance.choice((0, 0, 0, 1)) if wait > 0.3 else chance.choice((7, 8, 8)),
                cpu=busy,
            )
        )
    return tuple(recent)


def steps(recent: Sequence[StepRecord]) -> Steps:
    """What a Snapshot says of these steps of the main process."""
    return steps_view(MAIN, recent, 14_208)


def processes(worker_cpu: float = 0.97, main_cpu: float = 0.41) -> tuple[ProcessSample, ...]:
    main = ProcessSample(
        pid=MAIN, ppid=1, started=1.7e9, role="rank", name="python", command="python train.py", rank=0,
        cpu=main_cpu, rss=int(1.24 * GB), threads=41, state="S", run_delay=0.01,
    )  # fmt: skip
    workers = [
        ProcessSample(
            pid=pid, ppid=MAIN, started=1.7e9, role="loader-worker", name="python", command="python train.py", rank=0,
            cpu=worker_cpu - 0.03 * number, rss=(212 + 7 * number) * MB, threads=2,
            state="S" if worker_cpu < 0.5 else "R" if number != 2 else "D",
        )
        for number, pid in enumerate(WORKERS)
    ]  # fmt: skip
    return (main, *workers)


def host(tree: tuple[ProcessSample, ...] | None = None) -> HostSample:
    machine = MachineSample(
        cores=16, core_busy=(0.6, 0.5, 0.9, 0.97) * 4, iowait=0.02, memory_total=64 * GB,
        memory_available=33 * GB, swap_used=0, disk_read=12.4 * MB, disk_write=0.3 * MB,
        net_received=41_000.0, net_sent=12_000.0,
    )  # fmt: skip
    cgroup = CgroupSample(version=2, cpu_quota=12.0, throttled=0.0, memory_limit=32 * GB, memory_used=9 * GB)
    return HostSample(
        time=START, processes=processes() if tree is None else tree, machine=machine, cgroup=cgroup, usable_cores=12.0
    )


def h200(index: int = 0, busy: float = 0.31, *, mine: bool = True, **changed: object) -> GpuDevice:
    device = GpuDevice(
        index=index, name="NVIDIA H200", busy=busy, memory_busy=0.12, memory_total=int(140.4 * GB),
        memory_used=int(39.1 * GB), power=402.0, power_limit=700.0, temperature=55.0,
        sm_clock=1980, sm_clock_max=1980, memory_clock=3201, throttle=(),
        pcie_received=1.2 * GB, pcie_sent=80.0 * MB, pcie_generation=5, pcie_generation_max=5, pcie_width=16,
        pcie_width_max=16, ecc_uncorrected=0, mig=False, mine=mine,
        processes=(GpuProcess(pid=MAIN, name="python", memory=int(38.6 * GB), sm=busy, mine=True),),
        gpm=GpmSample(sm_active=0.22, sm_occupancy=0.18, tensor_active=0.09, dram_active=0.14),
    )  # fmt: skip
    return msgspec.structs.replace(device, **changed)


def gpus(*devices: GpuDevice) -> GpuSample:
    return GpuSample(time=START, devices=devices or (h200(),))


def facts(workers: int = 4) -> HookFacts:
    loader = LoaderInfo(
        workers=workers, batch_size=64, prefetch=2 if workers else None, pin_memory=True, dataset="JpegFolder",
    )  # fmt: skip
    return HookFacts(
        way="attach", python="3.11.9", torch="2.6.0", cuda=True, loaders=(loader,), optimizers=("AdamW",),
        foreach=True, parameters=25_557_032, root="ResNet", cost_us=6.1,
    )  # fmt: skip


def hot_lines() -> tuple[HotLine, ...]:
    worker = [
        HotLine(
            pid=pid, role="loader-worker", file=DECODE, line=41, function="JpegFolder.__getitem__", phase="data_wait",
            activity="python", samples=470 - 6 * number, share=0.81, text="image = decode_jpeg(raw, size=None)",
        )
        for number, pid in enumerate(WORKERS)
    ]  # fmt: skip
    crop = [
        HotLine(
            pid=pid, role="loader-worker", file=DECODE, line=42, function="JpegFolder.__getitem__", phase="data_wait",
            activity="python", samples=62, share=0.11, text="image = random_crop(image, 224)",
        )
        for pid in WORKERS
    ]  # fmt: skip

    def main(line: int, function: str, phase: str, samples: int, text: str, file: str = TRAIN) -> HotLine:
        return HotLine(
            pid=MAIN, role="rank", file=file, line=line, function=function, phase=phase, activity="native",
            samples=samples, share=samples / 600, text=text,
        )  # fmt: skip

    return (
        *worker,
        main(96, "train_epoch", "data_wait", 384, "for images, labels in loader:"),
        main(103, "train_epoch", "backward", 117, "loss.backward()"),
        *crop,
        main(88, "ResNet.forward", "forward", 61, "x = self.layer3(x)", MODEL),
        main(104, "train_epoch", "optimizer", 14, "optimizer.step()"),
        main(112, "train", "save", 9, 'torch.save(state, f"epoch-{epoch}.pt")'),
    )


def tree() -> CallNode:
    def node(function: str, file: str, line: int, samples: int, *below: CallNode) -> CallNode:
        user = file.startswith("/home")
        return CallNode(function=function, file=file, line=line, samples=samples, user=user, children=below)

    lib = "/usr/lib/python3.11/site-packages/torch/"
    waiting = node(
        "__next__", lib + "utils/data/dataloader.py", 708, 384,
        node("_next_data", lib + "utils/data/dataloader.py", 1455, 384,
             node("_get_data", lib + "utils/data/dataloader.py", 1402, 384,
                  node("wait", "/usr/lib/python3.11/threading.py", 331, 384))),
    )  # fmt: skip
    back = node("backward", lib + "_tensor.py", 581, 117, node("backward", lib + "autograd/__init__.py", 347, 117))
    forward = node("_call_impl", lib + "nn/modules/module.py", 1750, 75, node("ResNet.forward", MODEL, 88, 75))
    step = node("step", lib + "optim/adamw.py", 220, 14)
    epoch = node("train_epoch", TRAIN, 96, 590, waiting, back, forward, step)
    return node("<module>", TRAIN, 140, 599, node("main", TRAIN, 131, 599, epoch))


def stacks() -> Stacks:
    workers = [
        ProcessStacks(
            pid=pid, role="loader-worker", samples=580, phases=Phases(),
            tree=CallNode(function="__getitem__", file=DECODE, line=41, samples=470, user=True),
        )
        for pid in WORKERS
    ]  # fmt: skip
    main = ProcessStacks(
        pid=MAIN, role="rank", samples=600, phases=Phases(data_wait=0.64, forward=0.1, backward=0.2), tree=tree()
    )
    return Stacks(seconds=30.0, samples=2920, processes=(main, *workers), lines=hot_lines())


def series(recent: Sequence[StepRecord], devices: int = 1, busy: float = 0.31) -> dict[str, Series]:
    times = tuple(START - 120 + number for number in range(120))

    def wave(low: float, high: float, pace: float = 7.0) -> Series:
        values = (low + (high - low) * (0.5 + 0.5 * math.sin(t / pace) * math.cos(t / (pace * 2.3))) for t in times)
        return Series(times=times, values=tuple(values))

    ends = tuple(record.end for record in recent)
    known = {
        "queue_ready": Series(times=ends, values=tuple(record.queue_ready for record in recent)),
        "rss": wave(1.1 * GB, 1.24 * GB, 40.0),
        "workers_cpu": wave(3.6, 3.9),
    }
    for index in range(devices):
        known[f"gpu{index}.busy"] = wave(max(0.0, busy - 0.25), min(1.0, busy + 0.2), 5.0 + index)
        known[f"alloc{index}.allocated"] = wave(24 * GB, 31 * GB, 3.0)
        known[f"alloc{index}.reserved"] = wave(38 * GB, 38.2 * GB, 30.0)
    return known


def allocator(device: int = 0) -> AllocatorSample:
    return AllocatorSample(
        device=device, gpu=device, allocated=31 * GB, reserved=int(38.2 * GB), peak_allocated=int(36.4 * GB),
        inactive_split=int(4.6 * GB), retries=0, ooms=0, capacity=int(140.4 * GB),
    )  # fmt: skip
