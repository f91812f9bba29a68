"""One rank holds much more memory than the others: it runs out first, and bounds what all of them can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from aitop.diagnosis.rule import Explanation
from aitop.diagnosis.what_if import fix
from aitop.model.gpu import GpuDevice
from aitop.model.ranks import RankView
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent, size

# More than the others by this part of theirs, and by so many bytes, which libraries and chance do not explain.
MORE, LEAST_BYTES = 0.25, 1 << 30
TIGHT = 0.8
STRANGERS = "`torch.cuda.set_device(local_rank)` before anything else, and `torch.load(..., map_location=...)`"
UNEVEN = "give ranks equal shares: of the batch by length, of layers, of optimizer state; gather results in pieces"


def memory_imbalance(snapshot: Snapshot) -> Explanation | None:
    """By the devices of the ranks, else by their memory on the host. The level is 1 where it is much."""
    ranks = snapshot.ranks.ranks if snapshot.ranks else ()
    devices = {one.index: one for one in snapshot.gpu.devices} if snapshot.gpu else {}
    apart = [one for one in ranks if one.gpu is not None and one.gpu_memory]
    if len({one.gpu for one in apart}) == len(apart) > 1:
        return _found(apart, {one.pid: one.gpu_memory or 0 for one in apart}, devices)
    return _found(ranks, {one.pid: one.rss for one in ranks if one.rss}, {})


def _found(ranks: Sequence[RankView], held: Mapping[int, int], devices: Mapping[int, GpuDevice]) -> Explanation | None:
    known = [one for one in ranks if one.pid in held]
    if len(known) < 2:
        return None
    most = max(known, key=lambda one: held[one.pid])
    usual = median(held[one.pid] for one in known if one is not most)
    over = held[most.pid] - usual
    device = devices.get(most.gpu) if most.gpu is not None else None
    filled = held[most.pid] / device.memory_total if device and device.memory_total else None
    strangers = _strangers(device, ranks, most)
    where = f"on GPU {device.index}" if device else "of the machine"
    evidence = [f"rank {most.rank}: {size(held[most.pid])} {where}, the others {size(usual)} (median)"]
    if strangers:
        others = sorted(one.rank for one in ranks if one.pid in strangers and one.rank is not None)
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
        level=over / usual / MORE if over >= LEAST_BYTES and usual > 0 else 0.0,
    )


def _strangers(device: GpuDevice | None, ranks: Sequence[RankView], most: RankView) -> set[int]:
    """Other ranks that have memory on the device."""
    users = {process.pid for process in (device.processes or ())} if device else set()
    return users & {one.pid for one in ranks} - {most.pid}
