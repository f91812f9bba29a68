"""What the hook inside the process reports: steps and slow-moving facts. Times in seconds unless named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Literal

import msgspec

from aitop.model.serving import Count, IterationRecord, Pause, RequestRecord

Kind = Literal["training", "inference", "unknown"]
StepKind = Literal["train", "infer", "generate"]
CallKind = Literal["transfer", "blocking", "collective"]


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step: from the end of the previous optimizer step (or root forward, in inference) to the end of this one.

    `end` is on CLOCK_MONOTONIC. `data_wait` is the time inside a loader's `__next__`, `loader_start` the time to make
    loader iterators (which starts their workers), `save` the time inside `torch.save`, `gc` collector pauses.
    `evaluation` is root forwards without gradient during training, with the waits for their data; such forwards that
    are made in every step, as of a teacher model or a policy that acts, belong to `forward`: `no_grad` seconds of it in
    `no_grad_forwards` calls, which took `no_grad_samples` samples together. Those of `evaluation` are counted alike: a
    policy that acts once for several updates is among them. `cpu` is the CPU time of the thread that
    steps. `device_*` are on the device clock; None without CUDA or before the events were ready. Where two durations
    overlap, one contains the other, and that time is never counted twice.

    `samples` is the leading batch dimension of the largest forward before each backward, summed over the step's
    backwards (in inference, of the forward). `tokens` is the number of integer ids that went in (for `generate`, that
    came out). `tokens_again` is the number that `generate` computed for these, the whole sequence for each, if it kept
    no KV cache. `queue_ready` is the number of batches that lay ready when the step asked for one.

    `transfer` is host time inside host-to-device copies (of `transfer_bytes`), `blocking` inside calls that wait for
    the device (`blockings` of them), `communication` inside collectives and waits for them (`collectives` of them).
    These three may lie within other phases, and are None where they are not watched. `transfer_apart` and
    `communication_apart` are those parts that lie in no other phase. `collective_calls` has the seconds of each of the
    first few collectives of the step, in order, each with the wait for it.

    `others` has the phases that have no field here (see model.phases) and that occurred, by key; they lie outside of
    the phases above. Where steps are short, the hook times only some of them and counts the others. A step that is
    `estimated` was counted: it has the phases of a step that was timed shortly before, scaled so that all counted steps
    together take the time that was measured; or it is a long one among them, whose own length was measured.
    """

    index: int
    end: float
    seconds: float
    kind: StepKind = "train"
    data_wait: float = 0.0
    loader_start: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    save: float = 0.0
    evaluation: float = 0.0
    gc: float = 0.0
    transfer: float | None = None
    cpu: float | None = None
    forwards: int = 0
    backwards: int = 0
    no_grad: float = 0.0
    no_grad_forwards: int = 0
    no_grad_samples: int = 0
    evaluation_forwards: int = 0
    evaluation_samples: int = 0
    samples: int | None = None
    queue_ready: int | None = None
    device_forward: float | None = None
    device_backward: float | None = None
    device_optimizer: float | None = None
    device_idle: float | None = None
    transfer_apart: float | None = None
    transfer_bytes: int | None = None
    blocking: float | None = None
    blockings: int | None = None
    communication: float | None = None
    communication_apart: float | None = None
    collectives: int | None = None
    collective_calls: tuple[float, ...] = ()
    tokens: int | None = None
    tokens_again: int | None = None
    others: dict[str, float] = {}
    estimated: bool = False

    @property
    def loading(self) -> float:
        """Seconds that the step spent on data: waiting for it, and making loader iterators."""
        return self.data_wait + self.loader_start

    @property
    def outside(self) -> float:
        """Seconds of the step in no other phase of `Phases`. Saving, evaluation and `others` are part of it."""
        known = self.loading + self.forward + self.backward + self.optimizer
        return max(0.0, self.seconds - known - (self.transfer_apart or 0.0) - (self.communication_apart or 0.0))


def measured_in(
    steps: Sequence[StepRecord], value: Callable[[StepRecord], float | None]
) -> tuple[Sequence[StepRecord], list[float]]:
    """The steps in which `value` was measured, and its values there. Its share of the time is of these steps alone."""
    values = list(map(value, steps))
    known = [each for each in values if each is not None]
    return steps if len(known) == len(steps) else list(compress(steps, (each is not None for each in values))), known


def total(steps: Iterable[StepRecord], field: str) -> float | None:
    """Sum of a field over the steps in which it was measured, None where it was in none."""
    values = [value for value in map(attrgetter(field), steps) if value is not None]
    return sum(values) if values else None


class LoaderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a DataLoader that was seen in use is set up. `prefetch` is batches a worker, None without workers."""

    workers: int
    batch_size: int | None = None
    prefetch: int | None = None
    pin_memory: bool = False
    persistent: bool = False
    dataset: str | None = None


class PaddingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How long the rows of a loader's batches are, in tokens, as means over `looks` batches.

    `width` is the length with padding, `longest` that of the longest sequence of a batch, `mean` that of all of them.
    """

    looks: Count
    width: float
    longest: float
    mean: float


class AllocatorSample(msgspec.Struct, frozen=True, kw_only=True):
    """The CUDA caching allocator of one device, in bytes; counters since the process started.

    `device` is the process's own number of it (cuda:0), which CUDA_VISIBLE_DEVICES may have changed. `gpu` is the
    driver's number of the same device, None where it is not known; `uuid` is what the process knows it by.
    """

    device: int
    allocated: int
    reserved: int
    peak_allocated: int | None = None
    inactive_split: int | None = None
    retries: int | None = None
    ooms: int | None = None
    capacity: int | None = None
    uuid: str | None = None
    gpu: int | None = None


class CallSite(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code that calls the device or other ranks; counts and sums since the hook came in.

    `name` is the call as people know it (to, item, all_reduce). `calls` is their number, `seconds` and `bytes` are of
    all calls (scaled up where only some were timed). `pageable_bytes` is the part of a copy's bytes that came from
    memory that is not pinned. None is not measured.
    """

    kind: CallKind
    name: str
    file: str
    line: int
    function: str
    calls: int
    seconds: float | None = None
    bytes: int | None = None
    pageable_bytes: int | None = None


# From this pageable share of the copied bytes on, the advice to pin memory is worth it.
PAGEABLE = 0.5


def pageable_share(calls: Iterable[CallSite]) -> float | None:
    """The part (0..1) of the copied bytes that came from memory that is not pinned; None where it was not counted."""
    known = [(call.bytes, call.pageable_bytes) for call in calls if call.bytes and call.pageable_bytes is not None]
    total = sum(moved for moved, _ in known)
    return sum(pageable for _, pageable in known) / total if total else None


class Caller(msgspec.Struct, frozen=True):
    """A line of the user's code below which the hook saw a phase. `function`: a qualified name from Python 3.11 on."""

    file: str
    line: int
    function: str
    # Recordings of an older aitop have the lines of forwards only.
    phase: Literal["forward", "backward", "optimizer"] = "forward"


class DdpInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What DistributedDataParallel logs of itself: settings, and mean seconds of its sampled iterations."""

    backend: str | None = None
    bucket_cap_mb: float | None = None
    gradient_bytes: int | None = None
    backward: float | None = None
    communication: float | None = None
    overlap: float | None = None


class HookFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Slow-moving facts from inside the process. `way` is how the hook came in: attach, run or import.

    `cost_us` is the hook's own measured time per step, in microseconds; `ops` the number of autograd nodes in a step's
    graph. `looked_up_parameters` is the number of those `parameters` that are only in embeddings, of which a step reads
    just some rows. `calls` are the most expensive call sites, `callers` the lines that were under way when the model
    was called or updated. `flops_per_backward` is the floating-point operations of one backward pass and its forward,
    estimated from shapes, as `flops_basis` says in words; `flops_dtype` is the dtype of most of them (tf32 where
    float32 may be rounded to it). `unused_gradients` is the part (0..1) of a backward pass's operations that give
    gradients which no optimizer uses, None where that is not known. `input_dtypes` are those of the tensors that the
    root model gets, `autocast` is the dtype of an active autocast, `matmul_precision` torch's setting for float32
    products.
    `compiles`, `recompiles` and `graph_breaks` are torch.compile's own counters since the process started, None where
    it was not used; `recompile_reasons` has the last few, the newest first: where, and which guard failed.
    `scaler_skips` counts steps that a GradScaler left out since the hook came in.
    `watches` names what is watched beside the phases (transfer, blocking, collective, tokens): steps have None for the
    others.
    `foreach` says whether the last optimizer seen updates all tensors at once (foreach or fused, by choice or by
    torch's default), `fused` whether it was told to fuse; None where it has no such setting. `own_optimizer` says that
    its class is not torch's. `denormals` is the share (0..1) of the groups of eight neighbours in its state that have a
    denormal number in them; None where the state lies on a device or was not read. `padding` is None where no batch of
    a loader had an attention mask.
    """

    way: str
    python: str
    torch: str
    cuda: bool = False
    threads: int | None = None
    loaders: tuple[LoaderInfo, ...] = ()
    optimizers: tuple[str, ...] = ()
    foreach: bool | None = None
    fused: bool | None = None
    own_optimizer: bool | None = None
    denormals: float | None = None
    padding: PaddingInfo | None = None
    parameters: int | None = None
    parameter_tensors: int | None = None
    looked_up_parameters: int | None = None
    parameter_dtypes: tuple[str, ...] = ()
    root: str | None = None
    ops: int | None = None
    cost_us: float | None = None
    rank: int | None = None
    world_size: int | None = None
    calls: tuple[CallSite, ...] = ()
    callers: tuple[Caller, ...] = ()
    flops_basis: str | None = None
    flops_per_backward: float | None = None
    flops_dtype: str | None = None
    unused_gradients: float | None = None
    input_dtypes: tuple[str, ...] = ()
    autocast: str | None = None
    matmul_precision: str | None = None
    compiles: int | None = None
    recompiles: int | None = None
    graph_breaks: int | None = None
    recompile_reasons: tuple[str, ...] = ()
    scaler_skips: int | None = None
    ddp: DdpInfo | None = None
    watches: tuple[str, ...] = ()

    @property
    def main_loader(self) -> LoaderInfo | None:
        """The loader with most workers, which is taken for the one that feeds the training; None without loaders."""
        return max(self.loaders, key=lambda loader: loader.workers, default=None)


class HookSample(msgspec.Struct, frozen=True, kw_only=True, tag="hook"):
    """What came out of one process's ring since the last read. `lost` counts records overwritten before being read.

    `sequence` is the number of the last collective that was called in the whole job's group; None where none was seen.
    A process that serves has `requests`, `iterations` of its engine and `pauses` beside steps, or instead of them.
    `alive` is the number of requests under way at this read, including those that began before the hook came. It is
    None where requests are not watched, and where it is not known whether one from before the hook is under way.
    """

    time: float
    pid: int
    steps: tuple[StepRecord, ...] = ()
    lost: int = 0
    facts: HookFacts | None = None
    allocators: tuple[AllocatorSample, ...] = ()
    sequence: int | None = None
    requests: tuple[RequestRecord, ...] = ()
    iterations: tuple[IterationRecord, ...] = ()
    pauses: tuple[Pause, ...] = ()
    alive: Count | None = None
