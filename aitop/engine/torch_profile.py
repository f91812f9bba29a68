"""Profiles some steps with torch.profiler in a process that has the hook in, and computes figures from the trace.

Every byte of the trace is treated as hostile.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from aitop.errors import AitopError
from aitop.model.profile import ClassRow, DeviceUse, Holds, KernelRow, OpClass, OpRow, Profile
from aitop.sources.ring.burst import serial_number, wait_for
from aitop.sources.ring.reader import HookRing
from aitop.sources.source import SourceError

LEAST_SECONDS, SECONDS_PER_STEP = 30.0, 10.0
MOST_ROWS = 40
LONGEST_NAME = 200
LONGEST_US = 3.6e9
# A device needs up to this long to change from one kernel to the next: that is no gap.
LEAST_GAP_US = 2.0
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
MEMORY = "[memory]"
# The first match counts: a fused attention kernel has "gemm" in its name, and a copy kernel "elementwise".
_CLASSES: tuple[tuple[OpClass, str], ...] = (
    ("collective", r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|c10d|broadcast_kernel|gloo"),
    ("attention", r"flash(?!infer)|fmha|scaled_dot_product|attention|\bsdpa|with\w*kvcache"),
    ("convolution", r"conv(?!ert)|wgrad|dgrad|fprop|im2col|winograd|[s\d]cudnn_|cudnn.*nchw"),
    (
        "matmul",
        r"gemm|cutlass|xmma|matmul|addmm|\bbmm|\bbaddbmm|::mm\b|\bmm\b|linear|cublas|nvjet|\bcijk_|::mv\b|addmv|"
        r"::dot\b",
    ),
    ("normalization", r"norm|welford|\bbn_[fb]w"),
    ("copy", r"memcpy|memset|copy_|::copy|::to\b|_to_copy|contiguous|clone|direct_copy|catarray|::cat\b|::stack\b"),
    (
        "reduction",
        r"reduce|::sum\b|::mean\b|::max\b|::min\b|argmax|softmax|logsumexp|nll_loss|cross_entropy|cumsum|sort",
    ),
    (
        "elementwise",
        r"elementwise|vectorized|foreach|multi_tensor|pointwise|fill_|::(add|sub|mul|div|relu|gelu|tanh|sigmoid|exp|sqrt|pow|"
        r"clamp\w*|threshold\w*|zero|dropout|where|neg|lerp|addc\w+|silu|native_dropout)_?\b",
    ),
)


class TraceError(ValueError):
    """Not a trace that torch.profiler wrote."""


class _Event(msgspec.Struct):
    """What is used of a trace event; `ts` and `dur` are microseconds."""

    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: Any = 0
    args: dict[str, Any] = {}


class _Trace(msgspec.Struct):
    traceEvents: list[msgspec.Raw]  # noqa: N815 - the format's own name


@dataclass(slots=True)
class _Op:
    """One call of an operator. `inner`: seconds of the calls directly in it; `outermost`: in no call of its name."""

    name: str
    end: float
    seconds: float
    outermost: bool
    inner: float = 0.0
    device: float = 0.0
    allocated: int = 0


class TakenProfile(msgspec.Struct, frozen=True):
    """The figures of a burst, and its Chrome trace as torch wrote it."""

    profile: Profile
    trace: bytes


def take_profile(
    pid: int,
    steps: int,
    *,
    wanted: Callable[[], bool] = lambda: True,
    progress: Callable[[str], None] = lambda state: None,
) -> TakenProfile:
    """Profile `steps` steps of process `pid`, in which the caller keeps the hook.

    `progress` is called with "waiting", then with "running". Raises AitopError where there is no hook, the profiler
    does not start, the process ends or makes no steps, or `wanted` returns False (nobody waits any more).
    """
    try:
        ring = HookRing(pid)
    except SourceError as error:
        raise AitopError(f"no profile without the hook: {error}") from error
    try:
        serial = serial_number()
        ring.ask_for_burst(serial, steps)
        timeout = max(LEAST_SECONDS, SECONDS_PER_STEP * steps)
        try:
            burst = wait_for(pid, serial, timeout, wanted=wanted, progress=progress)
        except BaseException:
            # However the waiting ended (Ctrl-C, too): the process must not run a profile that nobody will read.
            ring.ask_for_burst(0, 0)
            raise
    except SourceError as error:
        raise AitopError(error.reason) from error
    finally:
        ring.close()
    try:
        return TakenProfile(analyse(burst.trace, pid=pid, steps=burst.steps, holds=burst.holds), burst.trace)
    except TraceError as error:
        raise AitopError(f"the profile of process {pid} cannot be read: {error}") from error


def analyse(trace: bytes, *, pid: int, steps: int, holds: Holds) -> Profile:
    """The figures of a trace. Raises TraceError if it is not one."""
    events = _events(trace)
    ops, by_id = _operators(events)
    on_device = [event for event in events if event.cat in ON_DEVICE]
    for event in on_device:
        op = _launched_by(event, by_id)
        if op is not None:
            op.device += event.dur / 1e6
    memory = [event for event in events if event.name == MEMORY]
    begin, end = _window(events)
    kinds = [_kind(event, by_id) for event in on_device]
    kernels = _kernels(on_device, kinds)
    rows = _rows(ops, bool(on_device), bool(memory))
    taken = zip(kinds, (event.dur / 1e6 for event in on_device), strict=True)
    return Profile(
        pid=pid,
        steps=steps,
        seconds=(end - begin) / 1e6,
        holds=holds,
        events=len(events),
        ops=rows[:MOST_ROWS],
        kernels=kernels[:MOST_ROWS],
        classes=_classes(taken if on_device else ((row.kind, row.self_host) for row in rows)),
        devices=_devices(on_device, events, begin, end),
        peak_memory=_peak(memory),
    )


def _events(trace: bytes) -> list[_Event]:
    try:
        raw = msgspec.json.decode(trace, type=_Trace).traceEvents
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"this is not a trace: {error}") from None
    decoder = msgspec.json.Decoder(_Event)
    events = []
    for line in raw:
        try:
            event = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # other kinds of events have other types in the same fields
        if 0 <= event.dur <= LONGEST_US and 0 <= event.ts < 1e18:
            event.name = event.name[:LONGEST_NAME]
            events.append(event)
    return events


def _operators(events: Sequence[_Event]) -> tuple[list[_Op], dict[int, _Op]]:
    """All operator calls, each with the time of the calls inside it and the bytes it allocated; and by external id."""
    ops: list[_Op] = []
    by_id: dict[int, _Op] = {}
    threads: dict[str, list[_Event]] = defaultdict(list)
    for event in events:
        if event.cat == "cpu_op" or event.name == MEMORY:
            threads[str(event.tid)].append(event)
    for thread in threads.values():
        stack: list[_Op] = []
        # How many calls of each operator are on the stack: a hostile trace may nest as deep as it is long.
        open_calls: Counter[str] = Counter()
        for event in sorted(thread, key=lambda event: (event.ts, -event.dur)):
            while stack and stack[-1].end <= event.ts:
                open_calls[stack.pop().name] -= 1
            if event.name == MEMORY:
                if stack:
                    stack[-1].allocated += max(0, _number(event, "Bytes") or 0)
                continue
            seconds = event.dur / 1e6
            op = _Op(event.name, event.ts + event.dur, seconds, outermost=not open_calls[event.name])
            if stack:
                stack[-1].inner += seconds
            stack.append(op)
            open_calls[event.name] += 1
            ops.append(op)
            number = _number(event, "External id")
            if number is not None:
                by_id[number] = op
    return ops, by_id


def _rows(ops: Sequence[_Op], device: bool, memory: bool) -> tuple[OpRow, ...]:
    """One row per operator, the most expensive first: by device time where there is a device, else by own host time."""
    named: dict[str, list[_Op]] = defaultdict(list)
    for op in ops:
        named[op.name].append(op)
    rows = [
        OpRow(
            name=name,
            kind=class_of(name),
            calls=len(calls),
            host=sum(op.seconds for op in calls if op.outermost),
            self_host=sum(max(0.0, op.seconds - op.inner) for op in calls),
            device=sum(op.device for op in calls) if device else None,
            allocated=sum(op.allocated for op in calls) if memory else None,
        )
        for name, calls in named.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.device or 0.0), -row.self_host, row.name)))


def _kernels(events: Sequence[_Event], kinds: Sequence[OpClass]) -> tuple[KernelRow, ...]:
    """One row per kernel, the longest first. Its class is the one that takes most of its time."""
    calls = Counter(event.name for event in events)
    seconds: dict[str, dict[OpClass, float]] = defaultdict(lambda: defaultdict(float))
    for event, kind in zip(events, kinds, strict=True):
        seconds[event.name][kind] += event.dur / 1e6
    rows = [
        KernelRow(name=name, kind=max(spent, key=spent.__getitem__), calls=calls[name], device=sum(spent.values()))
        for name, spent in seconds.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.device, row.name)))


def _kind(event: _Event, by_id: Mapping[int, _Op]) -> OpClass:
    """The class of a kernel: that of the torch operator which launched it, else that of its own name.

    The operator comes first because cuDNN convolves with kernels named gemm.
    """
    op = _launched_by(event, by_id)
    kind = class_of(op.name) if op and op.name.startswith("aten::") and event.cat == "kernel" else "other"
    return kind if kind != "other" else class_of(event.name)


def _launched_by(event: _Event, by_id: Mapping[int, _Op]) -> _Op | None:
    """The operator that launched a kernel; None where the trace does not say."""
    number = _number(event, "External id")
    return by_id.get(number) if number is not None else None


def _classes(parts: Iterable[tuple[OpClass, float]]) -> tuple[ClassRow, ...]:
    sums: dict[OpClass, float] = defaultdict(float)
    for kind, seconds in parts:
        sums[kind] += seconds
    total = sum(sums.values())
    classes = (ClassRow(kind=kind, seconds=taken, share=taken / total) for kind, taken in sums.items() if total > 0)
    return tuple(sorted(classes, key=lambda row: -row.seconds))


def _devices(on_device: Sequence[_Event], events: Iterable[_Event], begin: float, end: float) -> tuple[DeviceUse, ...]:
    launched = {
        number: event.ts + event.dur
        for event in events
        if event.cat in LAUNCHES and (number := _number(event, "correlation")) is not None
    }
    devices: dict[int, list[_Event]] = defaultdict(list)
    for event in on_device:
        device = _number(event, "device")
        devices[-1 if device is None else device].append(event)
    uses = []
    for device, work in sorted(devices.items()):
        busy, gaps = _covered(work, begin, end)
        delays = [
            event.ts - launched[number] for event in work if (number := _number(event, "correlation")) in launched
        ]
        uses.append(
            DeviceUse(
                device=device,
                busy=busy / 1e6,
                idle=max(0.0, end - begin - busy) / 1e6,
                gaps=len(gaps),
                longest_gap=max(gaps, default=0.0) / 1e6,
                launch_delay=max(0.0, statistics.median(delays)) / 1e6 if delays else None,
            )
        )
    return tuple(uses)


def _covered(work: Sequence[_Event], begin: float, end: float) -> tuple[float, list[float]]:
    """Microseconds in which something ran, and the lengths of the gaps between, in microseconds."""
    covered, at = 0.0, begin
    gaps = []
    for event in sorted(work, key=lambda event: event.ts):
        if event.ts - at > LEAST_GAP_US:
            gaps.append(event.ts - at)
        stop = event.ts + event.dur
        covered += max(0.0, stop - max(at, event.ts))
        at = max(at, stop)
    if end - at > LEAST_GAP_US:
        gaps.append(end - at)
    return covered, gaps


def _window(events: Sequence[_Event]) -> tuple[float, float]:
    """Begin and end of all work in the trace, in microseconds."""
    work = [event for event in events if event.cat in ("cpu_op", "user_annotation", *ON_DEVICE) and event.ts > 0]
    if not work:
        raise TraceError("the trace has no operators in it")
    return min(event.ts for event in work), max(event.ts + event.dur for event in work)


def _peak(memory: Sequence[_Event]) -> int | None:
    """The most bytes that were allocated on a device at a time; on the host where no device allocated."""
    kinds: dict[bool, int] = {}
    for event in memory:
        on_gpu = (_number(event, "Device Type") or 0) > 0
        kinds[on_gpu] = max(kinds.get(on_gpu, 0), _number(event, "Total Allocated") or 0)
    return kinds.get(True, kinds.get(False))


def class_of(name: str) -> OpClass:
    """The class of an operator (`aten::addmm`) or kernel (`sm90_xmma_gemm_…`); `other` where its name tells nothing."""
    # Without the types of a kernel's parameters, which may have names of other operations in them.
    own = name.replace("(anonymous namespace)", "").partition("(")[0]
    for kind, pattern in _CLASSES:
        if re.search(pattern, own, re.IGNORECASE):
            return kind
    return "other"


def _number(event: _Event, name: str) -> int | None:
    value = event.args.get(name)
    return int(value) if isinstance(value, (int, float)) and abs(value) < 1 << 62 else None
