"""oom-risk and fragmentation: memory of a device is nearly gone, or its allocator holds it in unusable pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from aitop.diagnosis.conditions.memory import left_of, steady
from aitop.diagnosis.device import Held, held_memory, own_devices, without_figures
from aitop.diagnosis.evidence import records
from aitop.diagnosis.rule import Explanation, condition
from aitop.diagnosis.series import trend
from aitop.diagnosis.what_if import fix
from aitop.model.gpu import GpuDevice
from aitop.model.ranks import RankView
from aitop.model.snapshot import Snapshot
from aitop.model.steps import AllocatorSample, Kind
from aitop.model.units import duration, percent, rate, size
from aitop.model.verdict import Fix, Severity

# A device whose memory is this full (0..1) gets the verdict, which goes once it is less than LEAVE full.
FULL, LEAVE = 0.92, 0.88
# It will be full soon enough to matter now.
SOON_SECONDS = 600.0
WATCH_SECONDS = 60.0
# The driver and CUDA's libraries take up to this for themselves; only if more is missing it is worth a search.
CONTEXT_BYTES = 1.5 * 2**30
LEAST_WASTE = 256 * 2**20
CROWDED = 0.7
FEW_SIZES = 3
# A rank has more memory than the others if it exceeds them by this share of theirs and by this number of bytes, which
# libraries and chance do not explain.
MORE, LEAST_BYTES = 0.25, 1 << 30
TIGHT = 0.8
STRANGERS = "`torch.cuda.set_device(local_rank)` before anything else, and `torch.load(..., map_location=...)`"
UNEVEN = "give ranks equal shares: of the batch by length, of layers, of optimizer state; gather results in pieces"
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def _full(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict if a device of the run is nearly full at its peak, or if its allocator ran out a moment ago."""
    held = max(held_memory(snapshot), key=lambda device: device.level, default=None)
    if held is None:
        untold = [device for device in own_devices(snapshot) if not device.memory_total]
        reason = "the driver does not tell how much memory the GPU has"
        if any(device.mig for device in own_devices(snapshot)):
            return "how full the run's slice of the GPU (MIG) is, only the hook can tell"
        return reason if untold else without_figures(snapshot)
    if held.level <= 0:
        return None
    allocator, ran_out = held.allocator, bool(held.retries or held.ooms)
    slope, full_in = _filling(snapshot, held)
    gone = held.share >= FULL and ((full_in is not None and full_in < SOON_SECONDS) or bool(held.retries))
    severity: Severity = "critical" if held.ooms or gone else "warning"
    if held.share >= FULL or not ran_out:
        state = f"is {percent(held.share)} full" + (" at its peak" if allocator and allocator.peak_allocated else "")
    else:
        state = "ran out a moment ago"
    soon = f", full in {duration(full_in)}" if full_in is not None else ""
    return Explanation(
        severity=severity,
        # Without the hook, much of what the driver counts as used may be the allocator's cache.
        confidence=0.85 if allocator is not None and allocator.peak_allocated else 0.5,
        title=f"{held.name}'s memory {state}{soon}: a longer batch may not fit",
        evidence=_signs(held, slope, full_in),
        fixes=_remedies(held, snapshot.kind),
        level=held.level,
        full_in=full_in,
    )


def _filling(snapshot: Snapshot, held: Held) -> tuple[float | None, float | None]:
    """How fast a device fills (bytes per second), and in how many seconds it is full; (None, None) if it does not."""
    names = [f"alloc{held.allocator.device}.allocated"] if held.allocator is not None else []
    names += [f"gpu{held.device.index}.memory"] if held.device is not None else []
    for name in names:
        line = trend(snapshot.series.get(name), snapshot.time - WATCH_SECONDS)
        left = left_of(snapshot, name)
        if line is not None and left is not None and steady(line):
            return line.slope, left / line.slope
    return None, None


def _signs(held: Held, slope: float | None, full_in: float | None) -> tuple[str, ...]:
    words = []
    if held.used is not None:
        words.append(f"{held.name}: {size(held.used)} of {size(held.capacity)} in use")
    allocator = held.allocator
    if allocator is not None and allocator.peak_allocated is not None:
        peak = f"{size(allocator.peak_allocated)} ({percent(allocator.peak_allocated / held.capacity)} of the device)"
        words.append(f"tensors took {peak} at their peak, {size(allocator.allocated)} now")
        words.append(f"PyTorch holds {size(allocator.reserved)} of it in reserve")
    elif held.device is not None:
        words.append("how much of it is PyTorch's cache, which it would give up, only the hook can tell")
    if held.others is not None and held.others > CONTEXT_BYTES:
        words.append(f"{size(held.others)} is held by CUDA itself, by libraries or by other processes")
    if held.retries or held.ooms:
        counted = f"ran out {_times(held.ooms or 0)} and freed its cache to try again {_times(held.retries or 0)}"
        words.append(f"in the last two minutes the allocator {counted}")
    if slope is not None and full_in is not None:
        words.append(f"it fills by {rate(slope)}: full in {duration(full_in)}")
    return tuple(words)


def _remedies(held: Held, kind: Kind) -> tuple[Fix, ...]:
    smaller = "smaller batch with gradient accumulation, or activation checkpointing"
    if kind == "inference":
        smaller = "smaller batches, a bound on the length of inputs, weights in a narrower type, torch.inference_mode()"
    fixes = [fix(smaller)]
    allocator = held.allocator
    if allocator is not None and (waste := _waste(allocator)) is not None and waste > LEAST_WASTE:
        fixes.append(fix(f"{EXPANDABLE}: {size(waste)} lies in pieces that no large tensor fits into"))
    elif allocator is None:
        fixes.append(fix(f"{EXPANDABLE} if reserved is far above allocated"))
    if held.device is not None and held.others is not None and held.others > CONTEXT_BYTES:
        fixes.append(fix(f"see who holds the other {size(held.others)}: nvidia-smi -i {held.device.index}"))
    return tuple(fixes)


@condition("fragmentation", 0.2, 0.15)
def fragmentation(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on memory that the allocator cannot give back: it is free, but in pieces between blocks in use."""
    counted = [
        (waste / allocator.reserved if waste >= min(LEAST_WASTE, 0.05 * held.capacity) else 0.0, waste, held, allocator)
        for held in held_memory(snapshot)
        if (allocator := held.allocator) is not None and (waste := _waste(allocator)) is not None
    ]
    if not counted:
        cuda = snapshot.facts is not None and snapshot.facts.cuda
        if not cuda and not own_devices(snapshot):
            return None
        hooked = "" if snapshot.facts is not None else ": only the hook sees it"
        return f"no figures of PyTorch's allocator{hooked}"
    level, waste, held, allocator = max(counted, key=lambda each: each[0])
    if level <= 0:
        return None
    crowded = allocator.reserved + (held.others or 0.0) >= CROWDED * held.capacity
    severity: Severity = "critical" if held.ooms else "warning" if held.retries or crowded else "info"
    sizes = _batch_sizes(snapshot)
    signs = [
        f"{size(allocator.reserved)} reserved, {size(allocator.allocated)} in tensors now"
        + (f", {size(allocator.peak_allocated)} at their peak" if allocator.peak_allocated is not None else ""),
        f"{size(allocator.inactive_split or 0)} of it free, but between blocks that are in use",
    ]
    if held.retries or held.ooms:
        signs.append(
            f"freed its cache to try again {_times(held.retries or 0)} in the last two minutes: each one stalls"
        )
    if sizes is not None and sizes > FEW_SIZES:
        signs.append(f"the last {len(records(snapshot))} steps had {sizes} different sizes")
    fixes = [fix(f"start it with {EXPANDABLE}: gives back up to {size(waste)}")]
    if sizes is None or sizes > FEW_SIZES:
        fixes.append(fix("fewer distinct shapes: sort or bucket by length and pad to a few sizes"))
    return Explanation(
        severity=severity,
        confidence=0.85 if held.retries and allocator.peak_allocated is not None else 0.65,
        title=f"{percent(waste / allocator.reserved)} of PyTorch's memory on {held.name} lies in pieces"
        + ("" if crowded or held.retries else ", and there is room yet"),
        evidence=tuple(signs),
        fixes=tuple(fixes),
        level=level,
    )


def _waste(allocator: AllocatorSample) -> float | None:
    """Bytes in free pieces that are not needed even at the peak of tensors; None where they are not counted.

    Right after a step much is free between blocks in use, but is used again in the next step: that is no waste.
    """
    if allocator.inactive_split is None or not allocator.reserved:
        return None
    peak = allocator.peak_allocated if allocator.peak_allocated is not None else allocator.allocated
    return float(max(0, min(allocator.inactive_split, allocator.reserved - max(peak, allocator.allocated))))


def _batch_sizes(snapshot: Snapshot) -> int | None:
    """How many different amounts of samples and tokens the last steps had; None where neither was counted."""
    sizes = {(step.samples, step.tokens) for step in records(snapshot) if step.samples or step.tokens}
    return len(sizes) or None


def _times(number: float) -> str:
    return "once" if number == 1 else f"{number:.0f} times"


@condition("oom-risk", FULL, LEAVE)
def oom_risk(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on a device that is nearly full; else on a rank that holds much more than the others."""
    full, uneven = _full(snapshot), _uneven(snapshot)
    level = (full.level or 0.0) if isinstance(full, Explanation) else 0.0
    return uneven if uneven is not None and level < FULL and (uneven.level or 0.0) >= max(level, LEAVE) else full


def _uneven(snapshot: Snapshot) -> Explanation | None:
    """The verdict on a rank that needs more memory than the others, on devices or else on the host.

    Its level is at least FULL where the difference is large enough to count (MORE, LEAST_BYTES).
    """
    ranks = snapshot.ranks.ranks if snapshot.ranks else ()
    devices = {device.index: device for device in snapshot.gpu.devices} if snapshot.gpu else {}
    apart = [rank for rank in ranks if rank.gpu is not None and rank.gpu_memory]
    if len({rank.gpu for rank in apart}) == len(apart) > 1:
        return _beside_others(apart, {rank.pid: rank.gpu_memory or 0 for rank in apart}, devices)
    return _beside_others(ranks, {rank.pid: rank.rss for rank in ranks if rank.rss}, {})


def _beside_others(
    ranks: Sequence[RankView], held: Mapping[int, int], devices: Mapping[int, GpuDevice]
) -> Explanation | None:
    """The verdict on the rank that holds most, from the bytes that each rank (by pid) holds."""
    known = [rank for rank in ranks if rank.pid in held]
    if len(known) < 2:
        return None
    most = max(known, key=lambda rank: held[rank.pid])
    usual = median(held[rank.pid] for rank in known if rank is not most)
    over = held[most.pid] - usual
    device = devices.get(most.gpu) if most.gpu is not None else None
    filled = held[most.pid] / device.memory_total if device and device.memory_total else None
    strangers = _strangers(device, ranks, most)
    where = f"on GPU {device.index}" if device else "of the machine"
    evidence = [f"rank {most.rank}: {size(held[most.pid])} {where}, the others {size(usual)} (median)"]
    if strangers:
        others = sorted(rank.rank for rank in ranks if rank.pid in strangers and rank.rank is not None)
        evidence.append(f"GPU {most.gpu} also holds memory of rank {', '.join(map(str, others))}")
    if filled is not None:
        evidence.append(f"GPU {most.gpu} is {percent(filled)} full")
    return Explanation(
        subtype="imbalance",
        severity="warning" if (filled or 0.0) >= TIGHT else "info",
        confidence=0.8 if strangers else 0.6,
        title=f"rank {most.rank} holds {size(over)} more memory than the others: it bounds the batch of all",
        evidence=tuple(evidence),
        fixes=(fix(STRANGERS if strangers else UNEVEN),),
        ranks=(most.rank,) if most.rank is not None else (),
        level=FULL * over / usual / MORE if over >= LEAST_BYTES and usual > 0 else 0.0,
    )


def _strangers(device: GpuDevice | None, ranks: Sequence[RankView], most: RankView) -> set[int]:
    """Other ranks that have memory on the device."""
    users = {process.pid for process in (device.processes or ())} if device else set()
    return users & {rank.pid for rank in ranks} - {most.pid}
