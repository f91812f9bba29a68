"""Rules about a device say what is missing where its figures are not there."""

import pytest
from device_runs import COMPUTES, COPY, COPYING, LAUNCHES, reading
from judgements import unjudged
from snapshot_builder import facts, line, on_gpu, snapshot, steps

from aitop.diagnosis.causes import bandwidth, launch_bound, sync_stall, transfer_bound

ALL = (sync_stall.judge, transfer_bound.judge, launch_bound.judge, bandwidth.judge)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_too_little_evidence_is_said(rule):
    assert "needed" in unjudged(rule(on_gpu(steps(3), busy=0.2, main_samples=0)))


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_without_a_device_nothing_is_said_of_one(rule):
    copying = line("main", 0.3, phase="transfer", activity="native", work="copy", text="x = x.to(device)")
    reading = line("main", 0.4, activity="wait-device", text="total += loss.item()")
    host_steps = steps(seconds=0.1, forward=0.05, backward=0.04, blocking=0.04, transfer=0.02)
    assert rule(snapshot(host_steps, lines=[copying, reading])) is None


@pytest.mark.parametrize(
    ("rule", "seen", "why"),
    [
        (sync_stall, reading(None), "nothing tells how much the GPU idles"),
        (transfer_bound, on_gpu(steps(**COPYING), lines=[COPY]), "not measured"),
        (launch_bound, on_gpu(steps(**LAUNCHES), facts=facts(cuda=True, ops=1500)), "not measured"),
        (bandwidth, on_gpu(steps(**COMPUTES), busy=0.98), "GPM"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_the_device_does_not_tell_is_not_judged(rule, seen, why):
    assert why in unjudged(rule.judge(seen))
