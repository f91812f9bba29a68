"""Fabricated but realistic Snapshots in every state that the screen knows, for tests and for trying the screen."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
from sample_parts import (
    DECODE,
    GB,
    MAIN,
    MB,
    START,
    TRAIN,
    WORKERS,
    allocator,
    facts,
    gpus,
    h200,
    host,
    processes,
    records,
    series,
    stacks,
    states,
    steps,
    target,
)
from sample_ranks import hanging, job

from aitop.diagnosis.run_summary import anonymous, run_of
from aitop.model.gpu import GpuProcess
from aitop.model.host import ProcessSample
from aitop.model.job import Candidate
from aitop.model.run import SoFar, Units
from aitop.model.snapshot import (
    Cost,
    Phases,
    Series,
    Snapshot,
    Steps,
    ThreadShare,
)
from aitop.model.steps import CallKind, CallSite, DdpInfo
from aitop.model.verdict import Abstention, Diagnosis, Fix, Setting, Verdict, Where


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
            Fix(
                text="num_workers 4 → 10: 10 workers would make a batch every 94 ms",
                speedup=2.4,
                setting=Setting(name="num_workers", to=10, current=4),
            ),
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


def compared() -> Snapshot:
    """A run that is faster than the one of the day before."""
    full = input_bound()
    noise = tuple(1 + 0.02 * ((7 * index) % 5 - 2) for index in range(40))

    def units(seconds: float, wait: float) -> Units:
        return Units(
            kind="step", each=8, seconds=tuple(8 * seconds * off for off in noise),
            phases={"data": tuple(8 * wait * off for off in noise)}, samples=(8 * 32.0,) * len(noise),
        )  # fmt: skip

    now = msgspec.structs.replace(full, so_far=SoFar(seconds=60.0, units=(units(0.18, 0.06),)))
    before = msgspec.structs.replace(
        anonymous(run_of(full)), units=units(0.24, 0.12), ended=full.wall - 86_400.0, settings={"loader workers": 2}
    )
    return msgspec.structs.replace(now, before=before)


def measured() -> Snapshot:
    """Everything that can be measured is: a training that copies, waits, talks, compiles and skips."""
    full = input_bound()
    recent = tuple(
        msgspec.structs.replace(
            record, transfer=0.009, transfer_apart=0.009, transfer_bytes=38 * MB, blocking=0.012, blockings=3,
            communication=0.031,
            communication_apart=0.008, collectives=4, tokens=65_536,
        )
        for record in full.steps.recent
    )  # fmt: skip

    def call(kind: CallKind, name: str, line: int, **more: object) -> CallSite:
        return CallSite(
            kind=kind, name=name, file=TRAIN, line=line, function="train_epoch", calls=900,
            **{"seconds": 2.0, "bytes": 4 * GB} | more,
        )  # fmt: skip

    known = msgspec.structs.replace(
        full.facts, cost_us=9.4, flops_basis="shapes in the graph", compiles=12, recompiles=3,
        graph_breaks=1, recompile_reasons=("train.py:98: tensor 'images' size mismatch at index 0",), scaler_skips=4,
        calls=(
            call("transfer", "to", 98, pageable_bytes=3 * GB), call("blocking", "item", 105),
            call("collective", "all_reduce", 103),
        ),
        ddp=DdpInfo(backend="nccl", communication=0.031, overlap=0.019),
        watches=("transfer", "blocking", "collective", "tokens"),
    )  # fmt: skip
    threads = (
        ThreadShare(pid=MAIN, thread="MainThread", samples=600, active=0.4, gil=0.37),
        ThreadShare(pid=MAIN, thread="pin_memory", samples=600, active=0.2, gil=0.11),
        ThreadShare(pid=MAIN, thread="tensorboard-writer-thread", samples=600, active=0.3, gil=0.24),
        ThreadShare(pid=MAIN, thread="idle", samples=600, active=0.0, gil=0.0),
    )
    return msgspec.structs.replace(
        full, facts=known, stacks=msgspec.structs.replace(full.stacks, threads=threads),
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

    def values(value: Callable[[int], float]) -> Series:
        return Series(times=times, values=tuple(value(number) for number in range(240)))

    return {
        "step_p50": values(lambda n: 230.0 + 20 * math.sin(n / 9) + 0.1 * n),
        "step_p95": values(lambda n: 300.0 + 50 * math.sin(n / 5) + (400.0 if n % 60 == 50 else 0.0)),
        "step_save": values(lambda n: 0.9 if n % 60 == 50 else 0.0),
        "step_evaluation": values(lambda n: 0.7 if 130 <= n < 136 else 0.0),
    }


def lanes() -> dict[str, Series]:
    """Workers that are busy, wait in turns for storage, and for a while have nothing to do."""
    times = tuple(START - 120 + number for number in range(120))
    each = {}
    for number, pid in enumerate(WORKERS):
        phase = [(second // 9 + number) % 5 for second in range(120)]
        busy = tuple({3: 0.15, 4: 0.05}.get(state, 0.97 - 0.1 * number) for state in phase)
        idle = tuple(0.9 if state == 4 else 0.02 for state in phase)
        each[f"worker{pid}.cpu"] = Series(times=times, values=busy)
        each[f"worker{pid}.idle"] = Series(times=times[::4], values=idle[::4])
    return each


def hook_on_its_way() -> Snapshot:
    """The hook was asked for, and the target is inside one long call."""
    return msgspec.structs.replace(
        no_gpu_no_hook(),
        sources=states(
            gpu=("absent", "no NVIDIA driver", None, None),
            hook=("absent", f"hook waiting for the target: process {MAIN} is inside one long call",
                  "try again when it is back in Python code", None, "waiting-for-target"),
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
            gpu=("stale", "no answer for more than 10 s", None, 12.0),
            hook=("stale", "nothing new for 34 s", None, 34.0, "nothing-new"),
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


def hang() -> Snapshot:
    """Four ranks of which one keeps the others waiting."""
    return hanging(two_ranks(), 4)


def many_ranks() -> Snapshot:
    """Sixteen ranks, one of them late."""
    return job(two_ranks(), 16, gpu=True)


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
    "hang": hang,
}
