"""A rank that holds much more memory than the others."""

from __future__ import annotations

from snapshot_builder import snapshot

from aitop.diagnosis.conditions.device_memory import oom_risk
from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample
from aitop.model.ranks import Ranks, RankView


def held(*memory, **fields):
    views = [RankView(rank=rank, pid=100 + rank, gpu=rank, gpu_memory=one << 30) for rank, one in enumerate(memory)]
    return snapshot([], ranks=Ranks(ranks=tuple(views)), **fields)


def test_a_rank_that_holds_much_more_memory_than_the_others():
    users = (GpuProcess(pid=100), GpuProcess(pid=101))
    gpu = GpuSample(time=1.0, devices=(GpuDevice(index=0, memory_total=40 << 30, processes=users),))
    told = oom_risk(held(36, 24, 24, gpu=gpu))
    assert (told.verdict.subtype, told.verdict.severity, told.verdict.ranks) == ("imbalance", "warning", (0,))
    assert "set_device" in told.verdict.fixes[0].text and "GPU 0 also holds memory of rank 1" in told.verdict.evidence
    assert oom_risk(held(26, 24, 24)) is None and oom_risk(held(36)) is None and oom_risk(snapshot([])) is None
    host = [RankView(rank=rank, pid=rank, rss=one << 20) for rank, one in enumerate((900, 300))]
    assert oom_risk(snapshot([], ranks=Ranks(ranks=tuple(host)))) is None, "less than a gigabyte"
