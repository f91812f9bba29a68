"""What the host does beside a GPU: it costs a step only what the device idles for it."""

from __future__ import annotations

import pytest
from judgements import fired, level
from snapshot_builder import constant, line, snapshot, steps

from aitop.diagnosis.causes import between_steps, computing, launch_bound, optimizer, python_overhead
from aitop.diagnosis.causes import input_bound as input_bound
from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.snapshot import Phases
from aitop.model.steps import HookFacts

ON_CUDA = HookFacts(way="attach", python="3.11", torch="2", cuda=True, ops=4000, parameters=1_000_000)


def on_gpu(busy, records=None, index=0, **fields):
    """A run on one GPU that is busy for that share of the time."""
    gpu = GpuSample(time=1000.0, devices=(GpuDevice(index=index, mine=True),))
    fields["series"] = {f"gpu{index}.busy": constant(busy), **fields.get("series", {})}
    fields.setdefault("facts", ON_CUDA)
    return snapshot(records, gpu=gpu, **fields)


LAUNCHING = line("forward", 0.6, phase="forward", activity="native", text="x = self.block(x)")


def test_launching_for_a_busy_gpu_is_no_python_overhead():
    launches = steps(seconds=0.1, forward=0.05, backward=0.02)
    assert level(python_overhead.judge(on_gpu(0.97, launches, lines=[LAUNCHING]))) < 0.1
    starving = launch_bound.judge(on_gpu(0.3, launches, lines=[LAUNCHING]))
    assert fired(starving).share > 0.15 and python_overhead.judge(on_gpu(0.3, launches, lines=[LAUNCHING])) is None


def test_launches_that_starve_the_device_inside_the_phases():
    gaps = steps(
        seconds=0.1, forward=0.05, backward=0.04, device_forward=0.05, device_backward=0.04, device_optimizer=0.01
    )
    assert fired(launch_bound.judge(on_gpu(0.25, gaps, lines=[LAUNCHING]))).share > 0.15


def test_launch_times_alone_are_no_python_overhead():
    launches = steps(seconds=0.1, forward=0.05, backward=0.02)
    assert python_overhead.judge(snapshot(launches, lines=[LAUNCHING], facts=ON_CUDA)) is None


def test_the_wait_of_the_host_for_a_busy_gpu_is_not_the_optimizers():
    absorbed = steps(seconds=0.1, forward=0.01, backward=0.02, optimizer=0.06)
    assert level(optimizer.judge(on_gpu(0.95, absorbed))) < 0.18
    unproven = fired(optimizer.judge(snapshot(absorbed, facts=ON_CUDA)))
    assert (unproven.severity, unproven.confidence <= 0.5) == ("warning", True)
    device = steps(seconds=0.1, optimizer=0.06, device_forward=0.01, device_backward=0.02, device_optimizer=0.06)
    assert fired(optimizer.judge(on_gpu(0.95, device))).severity == "critical"


def test_a_host_that_waits_for_data_does_not_starve_a_busy_gpu():
    ahead = {"seconds": 0.1, "data_wait": 0.07, "forward": 0.01, "backward": 0.01}
    assert level(input_bound.judge(on_gpu(0.96, steps(**ahead)))) < input_bound.judge.band.leave
    assert fired(input_bound.judge(on_gpu(0.3, steps(**ahead)))).share == pytest.approx(0.7)
    unproven = fired(input_bound.judge(snapshot(steps(**ahead), facts=ON_CUDA)))
    assert (unproven.severity, unproven.confidence <= 0.5) == ("warning", True)


def test_a_busy_gpu_computes_wherever_the_host_waits_for_it():
    waiting = Phases(data_wait=0.0, forward=0.1, backward=0.05, optimizer=0.05, outside=0.8)
    verdict = fired(computing.compute_bound(on_gpu(0.98, phases=waiting, index=1)))
    assert verdict.share == pytest.approx(0.98)
    assert "GPU busy 98 % of the time" in verdict.evidence


def test_io_beside_a_busy_gpu_holds_nothing_up():
    writing = line("log_metrics", 0.4, activity="wait-network", work="database", text="db.execute(sql)")
    assert between_steps.host_io(on_gpu(0.99, steps(), lines=[writing])) is None
    assert fired(between_steps.host_io(on_gpu(0.4, steps(), lines=[writing]))).severity == "critical"


def test_an_idle_gpu_is_not_called_the_limit():
    launches = steps(seconds=0.1, forward=0.05, backward=0.045)
    verdict = fired(computing.compute_bound(on_gpu(0.2, launches)))
    assert "busy only 20 %" in verdict.title and verdict.confidence <= 0.5
