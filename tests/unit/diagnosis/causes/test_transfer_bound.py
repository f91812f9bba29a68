"""transfer-bound: copies to the device, where they hold it up."""

import pytest
from device_runs import COPY, COPYING
from judgements import fired, level
from msgspec.structs import replace
from snapshot_builder import facts, on_gpu, steps

from aitop.diagnosis.causes import transfer_bound
from aitop.model.gpu import GpuDevice
from aitop.model.snapshot import Phases
from aitop.model.steps import CallSite, LoaderInfo

TO = CallSite(
    kind="transfer", name="to", file="/x/train.py", line=40, function="main", calls=40, seconds=1.6,
    bytes=40 * 80 * 2**20, pageable_bytes=40 * 80 * 2**20,
)  # fmt: skip


def test_pageable_copies_that_hold_up_the_device():
    known = facts(cuda=True, calls=(TO,), loaders=(LoaderInfo(workers=2),))
    verdict = fired(transfer_bound.judge(on_gpu(steps(**COPYING), busy=0.5, facts=known, lines=[COPY])))
    assert (verdict.severity, verdict.where[0].line, verdict.share) == ("critical", 40, pytest.approx(0.4))
    assert "80 MB a step at 2.0 GB/s" in verdict.evidence
    assert "100 % of it from memory that is not pinned" in verdict.evidence
    assert verdict.fixes[0].text == "pin_memory=True in the DataLoader, with non_blocking=True at train.py:40"
    assert any("uint8" in fix.text and fix.speedup < verdict.speedup for fix in verdict.fixes)


def test_the_fix_of_copies_that_are_pinned_or_many():
    pinned = replace(TO, bytes=40 * 2**20, pageable_bytes=0)
    seen = on_gpu(steps(**COPYING), busy=0.5, facts=facts(cuda=True, calls=(pinned,)), lines=[COPY])
    assert fired(transfer_bound.judge(seen)).fixes[0].text.startswith("non_blocking=True at train.py:40")
    small = replace(TO, calls=4000, bytes=4000 * 4096, pageable_bytes=None)
    records = steps(seconds=0.1, forward=0.02, backward=0.02, transfer=0.04, transfer_bytes=100 * 4096)
    verdict = fired(
        transfer_bound.judge(on_gpu(records, busy=0.5, facts=facts(cuda=True, calls=(small,)), lines=[COPY]))
    )
    assert verdict.fixes[0].text == "join the 100 copies a step at train.py:40 into one: stack on the host first"


def test_copies_under_a_busy_device_cost_nothing():
    assert level(transfer_bound.judge(on_gpu(steps(**COPYING), busy=0.97, lines=[COPY]))) < transfer_bound.judge.leave


def test_a_full_link_is_the_limit_however_copies_are_made():
    device = GpuDevice(index=0, mine=True, pcie_generation=4, pcie_width=16)
    records = steps(seconds=0.1, forward=0.01, backward=0.01, transfer=0.001, transfer_bytes=2 * 2**30)
    verdict = fired(transfer_bound.judge(on_gpu(records, busy=0.3, device=device, pcie_received=22e9)))
    assert verdict.share == pytest.approx(0.7)
    assert not any("non_blocking" in fix.text for fix in verdict.fixes)


def test_stacks_alone_find_the_copy():
    seen = on_gpu(phases=Phases(forward=0.3, backward=0.3, transfer=0.4, outside=0.0), busy=0.5, lines=[COPY])
    verdict = fired(transfer_bound.judge(seen))
    assert verdict.where[0].line == 40 and verdict.severity == "warning"
