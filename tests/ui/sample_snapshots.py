"""Fabricated but realistic Snapshots in every state that the screen knows, for tests and for trying the screen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from aitop.model.candidate import Candidate
from aitop.model.gpu import GpmSample, GpuDevice, GpuProcess, GpuSample
from aitop.model.host import CgroupSample, HostSample, MachineSample, ProcessSample
from aitop.model.snapshot import (
    CallNode,
    Cost,
    HotLine,
    Phases,
    ProcessStacks,
    Series,
    Snapshot,
    Stacks,
    Steps,
    Target,
    ThreadShare,
)
from aitop.model.source import SourceName, SourceState, SourceStatus
from aitop.model.steps import AllocatorSample, CallKind, CallSite, DdpInfo, HookFacts, LoaderInfo, StepRecord
from aitop.model.verdict import Abstention, Diagnosis, Fix, Verdict, Where

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


def source_around(pid: int, file: str, line: int) -> list[tuple[int, str]]:
    """The lines around the guilty one, as the engine would read them."""
    first = line - 5
    return [(first + number, text) for number, text in enumerate(SOURCE.splitlines())]


def states(**changed: tuple[SourceState, str, str | None, float | None]) -> dict[SourceName, SourceStatus]:
    """All four sources ok, but for those given as (state, reason, remedy, age)."""
    names: tuple[SourceName, ...] = ("host", "gpu", "stacks", "hook")
    found = {name: SourceStatus(time=START, source=name, state="ok", age=0.4) for name in names}
    for name in names:
        if name in changed:
            state, reason, remedy, age = changed[name]
            found[name] = SourceStatus(time=START, source=name, state=state, reason=reason, remedy=remedy, age=age)
    return found


def target(**changed: object) -> Target:
    return msgspec.structs.replace(
        Target(pid=MAIN, command="/home/ada/.venv/bin/python train.py --bs 64", started=1.7e9, script=TRAIN), **changed
    )


def records(count: int, seconds: float, wait: float, *, seed: int = 7, save_every: int = 0) -> tuple[StepRecord, ...]:
    """Steps of about `seconds` of which a share `wait` is waiting for data; a save now and then."""
    chance = random.Random(seed)
    found, end = [], START - count * seconds
    for index in range(count):
        waited = seconds * wait * chance.uniform(0.6, 1.5)
        busy = seconds * (1 - wait)
        save = 0.9 if save_every and index % save_every == 17 else 0.0
        total = waited + busy * chance.uniform(0.98, 1.03) + save
        end += total
        found.append(
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
    return tuple(found)


def steps(recent: Sequence[StepRecord]) -> Steps:
    total = sum(record.seconds for record in recent)
    ordered = sorted(record.seconds for record in recent)

    def share(name: str) -> float:
        return sum(getattr(record, name) for record in recent) / total

    return Steps(
        basis="hook",
        pid=MAIN,
        count=14_208,
        p50=ordered[len(ordered) // 2],
        p95=ordered[int(len(ordered) * 0.95)],
        mean=total / len(recent),
        per_second=len(recent) / total,
        samples_per_second=64 * len(recent) / total,
        phases=Phases(
            data_wait=share("data_wait"),
            forward=share("forward"),
            backward=share("backward"),
            optimizer=share("optimizer"),
            outside=share("outside"),
        ),
        recent=tuple(recent),
    )


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
        cores=16, core_busy=(0.6, 0.5, 0.9, 0.97) * 4, iowait=0.02, load=5.2, memory_total=64 * GB,
        memory_available=33 * GB, swap_total=8 * GB, swap_used=0, disk_read=12.4 * MB, disk_write=0.3 * MB,
        net_received=41_000.0, net_sent=12_000.0,
    )  # fmt: skip
    cgroup = CgroupSample(version=2, cpu_quota=12.0, throttled=0.0, memory_limit=32 * GB, memory_used=9 * GB)
    return HostSample(
        time=START, processes=processes() if tree is None else tree, machine=machine, cgroup=cgroup, usable_cores=12.0
    )


def h200(index: int = 0, busy: float = 0.31, *, mine: bool = True, **changed: object) -> GpuDevice:
    device = GpuDevice(
        index=index, name="NVIDIA H200", busy=busy, memory_busy=0.12, memory_total=int(140.4 * GB),
        memory_used=int(39.1 * GB), memory_reserved=700 * MB, power=402.0, power_limit=700.0, temperature=55.0,
        sm_clock=1980, sm_clock_max=1980, memory_clock=3201, memory_clock_max=3201, throttle=(),
        pcie_received=1.2 * GB, pcie_sent=80.0 * MB, pcie_generation=5, pcie_generation_max=5, pcie_width=16,
        pcie_width_max=16, ecc_uncorrected=0, mig=False, mine=mine,
        processes=(GpuProcess(pid=MAIN, name="python", memory=int(38.6 * GB), sm=busy, mine=True),),
        gpm=GpmSample(sm_active=0.22, sm_occupancy=0.18, tensor_active=0.09, dram_active=0.14),
    )  # fmt: skip
    return msgspec.structs.replace(device, **changed)


def gpus(*devices: GpuDevice) -> GpuSample:
    return GpuSample(time=START, devices=devices or (h200(),), driver="570.86")


def facts(workers: int = 4) -> HookFacts:
    loader = LoaderInfo(
        workers=workers, batch_size=64, prefetch=2 if workers else None, pin_memory=True, dataset="JpegFolder",
        worker_pids=WORKERS[:workers],
    )  # fmt: skip
    return HookFacts(
        way="attach", python="3.11.9", torch="2.6.0", cuda=True, loaders=(loader,), optimizers=("AdamW",),
        foreach=True, parameters=25_557_032, root="ResNet", cost_us=6.1,
    )  # fmt: skip


def hot_lines() -> tuple[HotLine, ...]:
    worker = [
        HotLine(
            pid=pid, role="loader-worker", file=DECODE, line=41, function="JpegFolder.__getitem__", phase="data_wait",
            activity="transform", samples=470 - 6 * number, share=0.81, text="image = decode_jpeg(raw, size=None)",
        )
        for number, pid in enumerate(WORKERS)
    ]  # fmt: skip
    crop = [
        HotLine(
            pid=pid, role="loader-worker", file=DECODE, line=42, function="JpegFolder.__getitem__", phase="data_wait",
            activity="transform", samples=62, share=0.11, text="image = random_crop(image, 224)",
        )
        for pid in WORKERS
    ]  # fmt: skip

    def main(line: int, function: str, phase: str, samples: int, text: str, file: str = TRAIN) -> HotLine:
        return HotLine(
            pid=MAIN, role="rank", file=file, line=line, function=function, phase=phase, activity="compute",
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
    found = {
        "step_ms": Series(times=ends, values=tuple(record.seconds * 1e3 for record in recent)),
        "queue_ready": Series(times=ends, values=tuple(record.queue_ready for record in recent)),
        "rss": wave(1.1 * GB, 1.24 * GB, 40.0),
        "workers_cpu": wave(3.6, 3.9),
    }
    for index in range(devices):
        found[f"gpu{index}.busy"] = wave(max(0.0, busy - 0.25), min(1.0, busy + 0.2), 5.0 + index)
        found[f"alloc{index}.allocated"] = wave(24 * GB, 31 * GB, 3.0)
        found[f"alloc{index}.reserved"] = wave(38 * GB, 38.2 * GB, 30.0)
    return found


def allocator(device: int = 0) -> AllocatorSample:
    return AllocatorSample(
        device=device, allocated=31 * GB, reserved=int(38.2 * GB), peak_allocated=int(36.4 * GB),
        inactive_split=int(4.6 * GB), retries=0, ooms=0, capacity=int(140.4 * GB),
    )  # fmt: skip


def input_verdict() -> Verdict:
    return Verdict(
        id="input-bound", subtype="workers", severity="critical", share=0.64, speedup=2.8, confidence=0.84,
        title="64 % of each step waits for data",
        where=(
            Where(pid=WORKERS[0], file=DECODE, line=41, function="JpegFolder.__getitem__", share=0.81,
                  text="image = decode_jpeg(raw, size=None)"),
        ),
        evidence=(
            "each step waits 152 ms of 238 ms for its batch (p50 148 ms, p95 301 ms, 128 steps)",
            "the queue was empty at 94 % of the steps that asked",
            "the 4 workers use 3.7 cores: each makes a batch in 941 ms; 8 of 12 usable cores are idle",
            "81 % of the workers' samples stand on decode.py:41",
        ),
        fixes=(
            Fix(text="num_workers 4 → 10: 10 workers would make a batch every 94 ms", speedup=2.4),
            Fix(text="decode at the size that the crop needs: decode_jpeg(raw, size=256)", speedup=2.1),
        ),
        ranks=(0,),
    )  # fmt: skip


def other_verdicts() -> tuple[Verdict, ...]:
    save = Verdict(
        id="checkpoint-stall", severity="warning", share=0.07, speedup=1.07, confidence=0.7,
        title="7 % of the time saves checkpoints while the step stands",
        where=(Where(pid=MAIN, file=TRAIN, line=112, function="train", share=0.07,
                     text='torch.save(state, f"epoch-{epoch}.pt")'),),
        evidence=("torch.save took 902 ms, 3 times in the last 120 s",),
        fixes=(Fix(text="save in a thread from a copy on the host", speedup=1.06),),
    )  # fmt: skip
    oom = Verdict(
        id="oom-risk", severity="warning", confidence=0.45, title="GPU memory is 93 % full: a longer batch may not fit",
        evidence=("reserved 131 GB of 140 GB",),
    )  # fmt: skip
    return save, oom


def _snapshot(**given: object) -> Snapshot:
    return Snapshot(
        **{
            "tick": 42, "time": START, "wall": 1.75e9, "window": 30.0, "target": target(), "kind": "training",
            "sources": states(), "host": host(),
            "cost": Cost(monitor_cpu=0.014, hook_us_per_step=6.1, target_slowdown=0.0001),
        }
        | given
    )  # fmt: skip


def input_bound(tick: int = 42) -> Snapshot:
    """Four busy workers cannot feed an H200; a checkpoint now and then."""
    recent = records(128, 0.238, 0.68, seed=tick, save_every=50)
    return _snapshot(
        tick=tick, gpu=gpus(), steps=steps(recent), facts=facts(), allocators=(allocator(),), stacks=stacks(),
        series=series(recent), diagnosis=Diagnosis(verdicts=(input_verdict(), *other_verdicts())),
    )  # fmt: skip


def healthy() -> Snapshot:
    """The device is the limit, and nothing is worth mending first."""
    recent = records(340, 0.088, 0.01)
    verdict = Verdict(
        id="compute-bound", severity="info", share=0.96, confidence=0.9,
        title="96 % of each step computes: nothing else is worth removing first",
        evidence=("data wait 1 % of 88 ms", "GPU 0 busy 98 %, tensor cores 61 %"),
    )  # fmt: skip
    return _snapshot(
        gpu=gpus(h200(busy=0.98, power=688.0, temperature=66.0)),
        host=host(processes(worker_cpu=0.22, main_cpu=1.0)),
        steps=steps(recent), facts=facts(), allocators=(allocator(),), stacks=stacks(), series=series(recent, busy=0.9),
        diagnosis=Diagnosis(verdicts=(verdict,)),
    )  # fmt: skip


def no_gpu_no_hook() -> Snapshot:
    """Tier 2: stacks only."""
    full = input_bound()
    return msgspec.structs.replace(
        full, gpu=None, facts=None, allocators=(),
        steps=Steps(basis="stacks", pid=MAIN, phases=Phases(data_wait=0.61, forward=0.11, backward=0.21, outside=0.07)),
        series={"rss": full.series["rss"]},
        sources=states(
            gpu=("absent", "libnvidia-ml.so.1 is not installed", None, None),
            hook=("denied", "ptrace is limited to parents (ptrace_scope 1)",
                  "sudo sysctl kernel.yama.ptrace_scope=0", None),
        ),
        cost=Cost(monitor_cpu=0.011),
    )  # fmt: skip


def measured() -> Snapshot:
    """Everything that can be measured is: a training that copies, waits, talks, compiles and skips."""
    full = input_bound()
    recent = tuple(
        msgspec.structs.replace(
            record, transfer=0.009, transfer_bytes=38 * MB, blocking=0.012, blockings=3, communication=0.031,
            communication_apart=0.008, collectives=4, tokens=65_536,
        )
        for record in full.steps.recent
    )  # fmt: skip

    def call(kind: CallKind, name: str, line: int, **more: object) -> CallSite:
        return CallSite(
            kind=kind, name=name, file=TRAIN, line=line, function="train_epoch", calls=900,
            **{"seconds": 2.0, "bytes": 4 * GB} | more,
        )  # fmt: skip

    told = msgspec.structs.replace(
        full.facts, cost_us=9.4, flops=9.1e13, flops_basis="shapes in the graph", compiles=12, recompiles=3,
        graph_breaks=1, recompile_reasons=("train.py:98: tensor 'images' size mismatch at index 0",), scaler_skips=4,
        calls=(
            call("transfer", "to", 98, pageable_bytes=3 * GB), call("blocking", "item", 105),
            call("collective", "all_reduce", 103),
        ),
        ddp=DdpInfo(backend="nccl", world_size=2, communication=0.031, overlap=0.019),
        watches=("transfer", "blocking", "collective", "tokens"),
    )  # fmt: skip
    threads = (
        ThreadShare(pid=MAIN, thread="MainThread", samples=600, active=0.4, gil=0.37),
        ThreadShare(pid=MAIN, thread="pin_memory", samples=600, active=0.2, gil=0.11),
        ThreadShare(pid=MAIN, thread="tensorboard-writer-thread", samples=600, active=0.3, gil=0.24),
        ThreadShare(pid=MAIN, thread="idle", samples=600, active=0.0, gil=0.0),
    )
    return msgspec.structs.replace(
        full, facts=told, stacks=msgspec.structs.replace(full.stacks, threads=threads),
        steps=msgspec.structs.replace(
            steps(recent), tokens_per_second=249_000.0, flops_per_second=3.47e14, mfu=0.35,
            phases=msgspec.structs.replace(full.steps.phases, transfer=0.03, communication=0.03),
        ),
        allocators=(msgspec.structs.replace(allocator(), retries=2, ooms=1),),
        series=full.series | minutes() | lanes(),
        diagnosis=Diagnosis(
            verdicts=(
                input_verdict(), other_verdicts()[0],
                msgspec.structs.replace(
                    other_verdicts()[1], title="GPU 0's memory is 93 % full at its peak, full in 12 m 10 s: tight"
                ),
            )
        ),
        cost=Cost(monitor_cpu=0.014, hook_us_per_step=9.4, target_slowdown=0.00004),
    )  # fmt: skip


def minutes() -> dict[str, Series]:
    """Four minutes of step times with a checkpoint every minute and one evaluation."""
    times = tuple(START - 240 + number for number in range(240))

    def told(value: Callable[[int], float]) -> Series:
        return Series(times=times, values=tuple(value(number) for number in range(240)))

    return {
        "step_p50": told(lambda n: 230.0 + 20 * math.sin(n / 9) + 0.1 * n),
        "step_p95": told(lambda n: 300.0 + 50 * math.sin(n / 5) + (400.0 if n % 60 == 50 else 0.0)),
        "step_save": told(lambda n: 0.9 if n % 60 == 50 else 0.0),
        "step_evaluation": told(lambda n: 0.7 if 130 <= n < 136 else 0.0),
    }


def lanes() -> dict[str, Series]:
    """Workers that are busy, wait in turns for storage, and for a while have nothing to do."""
    times = tuple(START - 120 + number for number in range(120))
    found = {}
    for number, pid in enumerate(WORKERS):
        phase = [(second // 9 + number) % 5 for second in range(120)]
        busy = tuple({3: 0.15, 4: 0.05}.get(one, 0.97 - 0.1 * number) for one in phase)
        idle = tuple(0.9 if one == 4 else 0.02 for one in phase)
        found[f"worker{pid}.cpu"] = Series(times=times, values=busy)
        found[f"worker{pid}.idle"] = Series(times=times[::4], values=idle[::4])
    return found


def hook_on_its_way() -> Snapshot:
    """The hook was asked for, and the target is inside one long call."""
    return msgspec.structs.replace(
        no_gpu_no_hook(),
        sources=states(
            gpu=("absent", "no NVIDIA driver", None, None),
            hook=("absent", f"hook waiting for the target: process {MAIN} is inside one long call",
                  "try again when it is back in Python code", None),
        ),
    )  # fmt: skip


def waiting() -> Snapshot:
    """The first ticks: hardly anything is known."""
    return _snapshot(
        tick=2, window=1.8, kind="unknown", cost=Cost(),
        sources={"host": states()["host"], "gpu": states(gpu=("absent", "no NVIDIA driver", None, None))["gpu"]},
        diagnosis=Diagnosis(
            abstained=(
                Abstention(id="input-bound", reason="4 of 20 steps seen"),
                Abstention(id="checkpoint-stall", reason="needs 60 s of watching, has 2 s"),
                Abstention(id="memory-leak", reason="needs 60 s of watching, has 2 s"),
            )
        ),
    )  # fmt: skip


def stale() -> Snapshot:
    """The driver stopped answering, and the hook has been silent for a while."""
    return msgspec.structs.replace(
        input_bound(),
        sources=states(
            gpu=("stale", "no answer for 12 s", None, 12.0),
            hook=("stale", "nothing new for 34 s", None, 34.0),
            stacks=("failed", "py-spy ended with code 1", None, 31.0),
        ),
    )


def ended() -> Snapshot:
    """The target is gone, its last picture stays."""
    return msgspec.structs.replace(input_bound(), target=target(ended="exited on its own after 41 m 08 s"))


def eight_gpus() -> Snapshot:
    """One process on a machine with eight devices, one of them hot, one shared, one lost."""
    devices = [h200(index, 0.2 + 0.1 * index, mine=index < 4) for index in range(8)]
    devices[2] = h200(2, 0.91, throttle=("hw_thermal_slowdown",), temperature=91.0, sm_clock=1410)
    devices[5] = h200(5, 0.99, mine=False, processes=(GpuProcess(pid=9, name="vllm", memory=70 * GB),))
    devices[7] = h200(7, lost=True)
    full = input_bound()
    return msgspec.structs.replace(full, gpu=gpus(*devices), series=series(full.steps.recent, 8))


def two_ranks() -> Snapshot:
    """A launcher, two ranks with two workers each."""
    ranks = [
        ProcessSample(
            pid=MAIN + rank, ppid=MAIN - 1, started=1.7e9, role="rank", name="python", command="python train.py",
            rank=rank, local_rank=rank, world_size=2, cpu=0.7, rss=int((1.2 + rank) * GB), state="S",
        )
        for rank in (0, 1)
    ]  # fmt: skip
    workers = [
        msgspec.structs.replace(process, rank=number % 2, ppid=MAIN + number % 2)
        for number, process in enumerate(processes()[1:])
    ]
    launcher = ProcessSample(
        pid=MAIN - 1, ppid=1, started=1.7e9, role="launcher", name="torchrun", command="torchrun train.py", rss=90 * MB
    )
    return msgspec.structs.replace(
        input_bound(), host=host((launcher, *ranks, *workers)), target=target(command="torchrun --nproc 2 train.py"),
        gpu=gpus(h200(0), h200(1, 0.44)),
        diagnosis=Diagnosis(
            verdicts=(input_verdict(), msgspec.structs.replace(other_verdicts()[0], ranks=(1,)), other_verdicts()[1])
        ),
    )  # fmt: skip


def hostile() -> Snapshot:
    """Everything that comes from elsewhere tries to take over the terminal."""
    evil = "\x1b]0;owned\x07\x1b[31m[bold red]x[/]\u202egnp.exe\n\x00\ttail"
    verdict = input_verdict()
    where = msgspec.structs.replace(verdict.where[0], file="/tmp/" + evil, function=evil, text=evil)
    line = msgspec.structs.replace(hot_lines()[0], file="/tmp/" + evil, function=evil, text=evil)
    bad = msgspec.structs.replace(verdict, where=(where,), title=evil, evidence=(evil,), fixes=(Fix(text=evil),))
    full = input_bound()
    return msgspec.structs.replace(
        full, target=target(command=evil, ended=evil), gpu=gpus(h200(name=evil)),
        stacks=msgspec.structs.replace(full.stacks, lines=(line,)),
        sources=states(hook=("failed", evil, evil, 3.0)), diagnosis=Diagnosis(verdicts=(bad,)),
    )  # fmt: skip


def candidates() -> list[Candidate]:
    return [
        Candidate(pid=3720, user="ada", command="/home/ada/.venv/bin/python train.py --bs 64", framework="torch",
                  ranks=1, workers=4, age=2468.0, cpu=4.1, rss=2 * GB, gpus=(0,), gpu_memory=38 * GB),
        Candidate(pid=811, user="grace", command="torchrun --nproc-per-node 8 pretrain.py", framework="torch",
                  ranks=8, workers=64, age=86_000.0, cpu=61.0, rss=190 * GB, gpus=tuple(range(8)),
                  gpu_memory=980 * GB, mine=False),
        Candidate(pid=99, user="ada", command="python -m vllm.entrypoints.openai.api_server", framework=None,
                  ranks=1, workers=0, age=7.0),
    ]  # fmt: skip


ALL = {
    "input_bound": input_bound,
    "healthy": healthy,
    "no_gpu_no_hook": no_gpu_no_hook,
    "measured": measured,
    "hook_on_its_way": hook_on_its_way,
    "waiting": waiting,
    "stale": stale,
    "ended": ended,
    "eight_gpus": eight_gpus,
    "two_ranks": two_ranks,
    "hostile": hostile,
}
