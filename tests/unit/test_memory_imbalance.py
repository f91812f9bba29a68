"""A rank that holds much more memory than the others."""

from __future__ import annotations

from snapshot_builder import snapshot

from aitop.diagnosis.conditions.memory_imbalance import memory_imbalance
from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample
from aitop.model.ranks import Ranks, RankView


def held(*memory, **fields):
    views = [RankView(rank=rank, pid=100 + rank, gpu=rank, gpu_memory=one << 30) for rank, one in enumerate(memory)]
    return snapshot([], ranks=Ranks(ranks=tuple(views)), **fields)


def test_a_rank_that_holds_much_more_memory_than_the_others():
    users = (GpuProcess(pid=100), GpuProcess(pid=101))
    gpu = GpuSample(time=1.0, devices=(GpuDevice(index=0, memory_total=40 << 30, processes=users),))
    told = memory_imbalance(held(36, 24, 24, gpu=gpu))
    assert (told.verdict.subtype, told.verdict.severity, told.verdict.ranks) == ("imbalance", "warning", (0,))
    assert "set_device" in told.verdict.fixes[0].text and "GPU 0 also holds memory of rank 1" in told.verdict.evidence
    assert told.level >= 1 > memory_imbalance(held(26, 24, 24)).level
    assert memory_imbalance(held(36)) is None and memory_imbalance(snapshot([])) is None
    host = [RankView(rank=rank, pid=rank, rss=one << 20) for rank, one in enumerate((900, 300))]
    assert memory_imbalance(snapshot([], ranks=Ranks(ranks=tuple(host)))).level == 0, "less than a gigabyte"
