"""Fabricated Snapshots of servers: an engine that decodes, a plain one, one seen from outside, an idle one."""

from __future__ import annotations

import math
import random

import msgspec
import sample_snapshots as samples
from sample_parts import MAIN, MB, START, host, states, target

from aitop.model.host import ProcessSample
from aitop.model.serving import IterationRecord, Pause, Percentiles, RequestRecord, Serving
from aitop.model.snapshot import Series, Snapshot
from aitop.model.verdict import Diagnosis, Fix, NamedShare, Verdict, Where

SERVER = "/home/ada/serving/server.py"


def tail_verdict(subtype: str = "collector", share: float = 0.7) -> Verdict:
    return Verdict(
        id="latency-tail", subtype=subtype, severity="warning", share=share, confidence=0.82,
        title="slowest requests take 6.2× the usual 121 ms: 70 % of that is garbage collection",
        where=(Where(pid=MAIN, file=SERVER, line=44, function="answer", share=0.4, text="gc.collect()"),),
        evidence=("the 7 slowest of 612 requests take 750 ms on average, the median 121 ms",),
        fixes=(Fix(text="gc.freeze() after the model is loaded"),),
        parts=(
            NamedShare(name=subtype, share=share),
            NamedShare(name="queue", share=0.2), NamedShare(name="size", share=0.03),
        ),
    )  # fmt: skip


def turns(number: int = 400, seed: int = 3) -> tuple[IterationRecord, ...]:
    """Turns of an engine: one in ten reads a prompt as well, one in forty only that."""
    chance, end, records = random.Random(seed), START - 30, []
    for index in range(number):
        kind = "prefill" if index % 40 == 0 else "mixed" if index % 10 == 0 else "decode"
        model = 0.045 if kind != "decode" else 0.028 * chance.uniform(0.9, 1.2)
        seconds = 0.012 + model
        idle = 0.004
        end += seconds + idle
        records.append(
            IterationRecord(
                end=end, seconds=seconds, kind=kind, idle=idle, schedule=0.002, prepare=0.004, model=model,
                sample=0.003, output=0.002, requests=6, prefill_tokens=0 if kind == "decode" else 180,
                decode_tokens=0 if kind == "prefill" else 6, running=6, waiting=2, kv_used=0.62, preempted=0,
            )
        )  # fmt: skip
    return tuple(records)


def answers(number: int = 612, seed: int = 5) -> tuple[RequestRecord, ...]:
    """Requests of which a few ran into a pause."""
    chance, records = random.Random(seed), []
    for index in range(number):
        seconds = 0.12 * math.exp(chance.gauss(0, 0.25)) + (0.64 if index % 90 == 89 else 0.0)
        records.append(
            RequestRecord(
                end=START - 30 + 30 * index / number, seconds=seconds, queue=seconds * 0.2, preprocess=0.006,
                model=seconds * 0.6, postprocess=0.003, first_token=seconds * 0.3, prompt_tokens=60, tokens=40,
                preempted=0,
            )
        )  # fmt: skip
    return tuple(records)


def minutes() -> dict[str, Series]:
    """Four minutes of requests second by second, a pause every half a minute."""
    times = tuple(START - 240 + number for number in range(240))

    def values(value) -> Series:
        return Series(times=times, values=tuple(value(number) for number in range(240)))

    return {
        "request_p50": values(lambda n: 120.0 + 15 * math.sin(n / 11)),
        "request_p99": values(lambda n: 210.0 + 30 * math.sin(n / 5) + (620.0 if n % 30 == 17 else 0.0)),
        "request_rate": values(lambda n: 20.0 + 3 * math.sin(n / 17) - (14.0 if n % 30 == 17 else 0.0)),
        "request_queue": values(lambda n: 2.0 + (9.0 if n % 30 in (17, 18) else 0.0)),
    }


def processes() -> tuple[ProcessSample, ...]:
    def process(pid: int, ppid: int, name: str, cpu: float) -> ProcessSample:
        return ProcessSample(
            pid=pid, ppid=ppid, started=1.7e9, role="rank" if pid == MAIN else "other", name=name, command=name,
            cpu=cpu, rss=700 * MB, threads=24, state="S",
        )  # fmt: skip

    return process(MAIN, 1, "python", 0.4), process(MAIN + 1, MAIN, "VLLM::EngineCore", 1.0)


def engine() -> Snapshot:
    """An engine that decodes for many clients, everything measured."""
    serving = Serving(
        basis="hook", pid=MAIN, requests_per_second=20.4, tokens_per_second=816.0, concurrency=7.4, queue=2.1,
        latency=Percentiles(p50=0.121, p95=0.187, p99=0.76), first_token=Percentiles(p50=0.036, p95=0.061, p99=0.22),
        inter_token=Percentiles(p50=0.0021, p95=0.0042, p99=0.0161), batch_mean=5.8, kv_used=0.62,
        preemptions_per_second=0.0, alive=8, still=0.04, requests=answers(), iterations=turns(),
        pauses=tuple(Pause(end=START - 5 * number, seconds=0.64, kind="collect") for number in range(5, 0, -1)),
    )  # fmt: skip
    full = samples.input_bound()
    return msgspec.structs.replace(
        full, kind="inference", gpu=None, steps=None, facts=None, allocators=(), serving=serving,
        engine="vllm 0.32.0", host=host(processes()), target=target(command="vllm serve /models/tiny --port 8123"),
        sources=states(gpu=("absent", "no NVIDIA driver", None, None)),
        series={"rss": full.series["rss"]} | minutes(), diagnosis=Diagnosis(verdicts=(tail_verdict(),)),
    )  # fmt: skip


def with_gpu() -> Snapshot:
    full = samples.input_bound()
    return msgspec.structs.replace(engine(), gpu=full.gpu, series=full.series | minutes(), sources=states())


def plain() -> Snapshot:
    """A server of one's own: requests with their parts, neither tokens nor turns."""
    serving = Serving(
        basis="hook", pid=MAIN, requests_per_second=20.4, concurrency=2.4,
        latency=Percentiles(p50=0.121, p95=0.187, p99=0.76), alive=2, still=0.1,
        requests=tuple(msgspec.structs.replace(request, first_token=None, tokens=None) for request in answers()),
    )  # fmt: skip
    return msgspec.structs.replace(engine(), serving=serving, engine=None, diagnosis=Diagnosis())


def from_metrics() -> Snapshot:
    """What the server says of itself, the hook being kept out."""
    full = engine()
    serving = msgspec.structs.replace(
        full.serving, basis="metrics", requests=(), iterations=(), pauses=(), alive=None, still=None
    )
    hook = ("denied", "ptrace is limited to parents", "sudo sysctl kernel.yama.ptrace_scope=0", None)
    return msgspec.structs.replace(
        full, serving=serving, sources=states(gpu=("absent", "no NVIDIA driver", None, None), hook=hook)
    )


def from_stacks() -> Snapshot:
    """Hardly anything is measured."""
    full = from_metrics()
    return msgspec.structs.replace(full, serving=Serving(basis="stacks", pid=MAIN), series={})


def idle() -> Snapshot:
    """No request for a while."""
    serving = Serving(
        basis="hook", pid=MAIN, requests_per_second=0.0, tokens_per_second=0.0, concurrency=0.0, queue=0.0, alive=0,
        still=42.0,
    )  # fmt: skip
    return msgspec.structs.replace(engine(), serving=serving, series={}, diagnosis=Diagnosis())


def training_that_serves() -> Snapshot:
    """A training run that also answers requests."""
    return msgspec.structs.replace(samples.input_bound(), serving=engine().serving)


SERVERS = {
    "engine": engine,
    "with_gpu": with_gpu,
    "plain": plain,
    "from_metrics": from_metrics,
    "from_stacks": from_stacks,
    "idle": idle,
}
