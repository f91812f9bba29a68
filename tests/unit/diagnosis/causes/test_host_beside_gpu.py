"""What the host does beside a GPU: it costs a step only what the device idles for it."""

import pytest
from judgements import fired, level
from snapshot_builder import facts, line, on_gpu, snapshot, steps

from aitop.diagnosis.causes import between_steps, computing, input_bound, launch_bound, optimizer, python_overhead
from aitop.model.gpu import GpuDevice
from aitop.model.snapshot import Phases

ON_CUDA = facts(cuda=True, ops=4000, parameters=1_000_000)


LAUNCHING = line("forward", 0.6, phase="forward", activity="native", text="x = self.block(x)")


def test_launching_for_a_busy_gpu_is_no_python_overhead():
    launches = steps(seconds=0.1, forward=0.05, backward=0.02)
    assert level(python_overhead.judge(on_gpu(launches, busy=0.97, facts=ON_CUDA, lines=[LAUNCHING]))) < 0.1
    starving = launch_bound.judge(on_gpu(launches, busy=0.3, facts=ON_CUDA, lines=[LAUNCHING]))
    assert (
        fired(starving).share > 0.15
        and python_overhead.judge(on_gpu(launches, busy=0.3, facts=ON_CUDA, lines=[LAUNCHING])) is None
    )


def test_launches_that_starve_the_device_inside_the_phases():
    gaps = steps(
        seconds=0.1, forward=0.05, backward=0.04, device_forward=0.05, device_backward=0.04, device_optimizer=0.01
    )
    assert fired(launch_bound.judge(on_gpu(gaps, busy=0.25, facts=ON_CUDA, lines=[LAUNCHING]))).share > 0.15


def test_launch_times_alone_are_no_python_overhead():
    launches = steps(seconds=0.1, forward=0.05, backward=0.02)
    assert python_overhead.judge(snapshot(launches, lines=[LAUNCHING], facts=ON_CUDA)) is None


def test_the_wait_of_the_host_for_a_busy_gpu_is_not_the_optimizers():
    absorbed = steps(seconds=0.1, forward=0.01, backward=0.02, optimizer=0.06)
    assert level(optimizer.judge(on_gpu(absorbed, busy=0.95, facts=ON_CUDA))) < 0.18
    unproven = fired(optimizer.judge(snapshot(absorbed, facts=ON_CUDA)))
    assert (unproven.severity, unproven.confidence <= 0.5) == ("warning", True)
    device = steps(seconds=0.1, optimizer=0.06, device_forward=0.01, device_backward=0.02, device_optimizer=0.06)
    assert fired(optimizer.judge(on_gpu(device, busy=0.95, facts=ON_CUDA))).severity == "critical"


def test_a_host_that_waits_for_data_does_not_starve_a_busy_gpu():
    ahead = {"seconds": 0.1, "data_wait": 0.07, "forward": 0.01, "backward": 0.01}
    assert level(input_bound.judge(on_gpu(steps(**ahead), busy=0.96, facts=ON_CUDA))) < input_bound.judge.leave
    assert fired(input_bound.judge(on_gpu(steps(**ahead), busy=0.3, facts=ON_CUDA))).share == pytest.approx(0.7)
    unproven = fired(input_bound.judge(snapshot(steps(**ahead), facts=ON_CUDA)))
    assert (unproven.severity, unproven.confidence <= 0.5) == ("warning", True)


def test_a_busy_gpu_computes_wherever_the_host_waits_for_it():
    waiting = Phases(data_wait=0.0, forward=0.1, backward=0.05, optimizer=0.05, outside=0.8)
    verdict = fired(computing.compute_bound(on_gpu(phases=waiting, busy=0.98, device=GpuDevice(index=1, mine=True))))
    assert verdict.share == pytest.approx(0.98)
    assert "GPU busy 98 % of the time" in verdict.evidence


def test_io_beside_a_busy_gpu_holds_nothing_up():
    writing = line("log_metrics", 0.4, activity="wait-network", work="database", text="db.execute(sql)")
    assert between_steps.host_io(on_gpu(steps(), busy=0.99, facts=ON_CUDA, lines=[writing])) is None
    assert (
        fired(between_steps.host_io(on_gpu(steps(), busy=0.4, facts=ON_CUDA, lines=[writing]))).severity == "critical"
    )


def test_an_idle_gpu_is_not_called_the_limit():
    launches = steps(seconds=0.1, forward=0.05, backward=0.045)
    verdict = fired(computing.compute_bound(on_gpu(launches, busy=0.2, facts=ON_CUDA)))
    assert "busy only 20 %" in verdict.title and verdict.confidence <= 0.5
