"""Rules on the device itself: each fires, does not, and says what it could not judge."""

import pytest
from judgements import fired, unjudged
from snapshot_builder import ON_CUDA, RANK, constant, on_devices, own_gpu, snapshot, steps

from aitop.diagnosis.conditions import clocks, hardware
from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample
from aitop.model.snapshot import Series

HARDWARE = [hardware.shared, hardware.slow_link, hardware.fault, clocks.throttled, clocks.power_capped]


@pytest.mark.parametrize("judge", HARDWARE)
def test_a_run_on_a_gpu_that_is_not_seen_is_not_judged(judge):
    assert unjudged(judge(snapshot(steps(), facts=ON_CUDA))) == "no GPU figures"
    assert "which of the GPUs" in unjudged(judge(on_devices(own_gpu(mine=False), facts=ON_CUDA)))


@pytest.mark.parametrize("judge", HARDWARE)
def test_a_run_on_the_cpu_has_nothing_to_do_with_it(judge):
    assert judge(snapshot(steps())) is None
    hot = own_gpu(mine=False, throttle=("hw_thermal_slowdown", "sw_power_cap"), ecc_uncorrected=5, xid=(79,))
    assert judge(on_devices(hot)) is None


# gpu-shared -------------------------------------------------------------------------------------------------------

MINE = GpuProcess(pid=RANK, memory=30, sm=0.5, mine=True)


def test_a_shared_device():
    other = GpuProcess(pid=4711, name="python", memory=30, sm=0.4)
    verdict = fired(hardware.shared(on_devices(own_gpu(processes=(MINE, other)))))
    assert verdict.share == pytest.approx(0.4) and "4711" in verdict.evidence[0]
    assert hardware.shared(on_devices(own_gpu(processes=(MINE,)))) is None
    assert not hardware.shared(on_devices(own_gpu(processes=(MINE, other), mig=True))), "on another slice of the card"


def test_a_neighbour_that_takes_little_or_cannot_be_seen():
    assert "does not list" in unjudged(hardware.shared(on_devices(own_gpu(processes=None))))
    strangers = (GpuProcess(pid=4711, memory=30), GpuProcess(pid=4712, memory=30))
    assert "outside of the container" in unjudged(hardware.shared(on_devices(own_gpu(processes=strangers))))
    idle, busy = (GpuProcess(pid=4711, name="python", memory=30, sm=sm) for sm in (0.0, 0.95))
    verdict = fired(hardware.shared(on_devices(own_gpu(processes=(MINE, idle)))))
    assert (verdict.severity, verdict.share, verdict.speedup) == ("info", None, None)
    devices = GpuSample(time=1000.0, devices=(own_gpu(processes=(MINE, busy)),))
    verdict = fired(hardware.shared(snapshot(steps(seconds=0.1, data_wait=0.095), gpu=devices)))
    assert verdict.speedup < 1.1 and verdict.severity == "warning", "the step waits for data"


# thermal-throttle -------------------------------------------------------------------------------------------------


def test_a_hot_device():
    hot = {"throttle": ("sw_thermal_slowdown",), "sm_clock_max": 1980}
    verdict = fired(clocks.throttled(on_devices(own_gpu(sm_clock=990, temperature=92.0, **hot))))
    assert verdict.speedup == pytest.approx(2.0) and "990" in verdict.title
    assert fired(clocks.throttled(on_devices(own_gpu(sm_clock=495, busy=0.1, **hot)))).speedup < 1.1, "it hardly works"
    assert clocks.throttled(on_devices(own_gpu(sm_clock=1980, **hot))) is None, "heat that costs no clock"
    unknown = fired(clocks.throttled(on_devices(own_gpu(throttle=("sw_thermal_slowdown",)))))
    assert (unknown.share, unknown.speedup) == (None, None)


@pytest.mark.parametrize("judge", [clocks.throttled, clocks.power_capped])
def test_a_driver_that_does_not_say_what_holds_the_clocks(judge):
    assert "does not tell what holds the clocks" in unjudged(judge(on_devices(own_gpu(throttle=None))))


# power-cap --------------------------------------------------------------------------------------------------------

CAPPED = {"throttle": ("sw_power_cap",), "busy": 1.0, "sm_clock": 1400, "sm_clock_max": 1980, "power": 299.0}


def test_a_limit_that_was_lowered_is_a_warning_with_a_guess_of_its_cost():
    verdict = fired(clocks.power_capped(on_devices(own_gpu(power_limit=300.0, power_limit_default=700.0, **CAPPED))))
    assert (verdict.severity, verdict.title) == ("warning", "GPU 0 may draw 300 W of its 700 W")
    assert verdict.speedup == pytest.approx(1980 / 1400, rel=0.01) and verdict.confidence <= 0.5
    assert "nvidia-smi -i 0 -pl 700" in verdict.fixes[0].text


def test_a_device_at_its_own_limit_is_as_it_should_be():
    for told in ({"power_limit": 700.0, "power_limit_default": 700.0}, {"power_limit": 700.0}):
        verdict = fired(clocks.power_capped(on_devices(own_gpu(**told, **CAPPED))))
        assert (verdict.severity, verdict.share, verdict.speedup) == ("info", None, None)
        assert "SM clock 1400 of 1980 MHz" in verdict.title


def test_a_lowered_limit_costs_nothing_while_the_device_waits():
    idle = own_gpu(power_limit=300.0, power_limit_default=700.0, **{**CAPPED, "busy": 0.05})
    assert fired(clocks.power_capped(on_devices(idle))).severity == "info"


def test_a_lowered_limit_that_costs_nothing_promises_nothing():
    full_clock = {**CAPPED, "sm_clock": 1980}
    verdict = fired(
        clocks.power_capped(on_devices(own_gpu(power_limit=300.0, power_limit_default=700.0, **full_clock)))
    )
    assert verdict.share is None and [fix.speedup for fix in verdict.fixes] == [None]
    assert clocks.power_capped(on_devices(own_gpu(power_limit=300.0, power_limit_default=700.0, throttle=()))) is None


def test_a_power_brake_is_no_limit_of_the_card():
    braked = own_gpu(throttle=("hw_slowdown", "hw_power_brake"), sm_clock=600, sm_clock_max=1980)
    verdict = fired(clocks.power_capped(on_devices(braked)))
    assert verdict.severity == "warning" and "power supply" in verdict.title


# pcie-degraded ----------------------------------------------------------------------------------------------------

SLOW = {"pcie_generation": 4, "pcie_generation_max": 4, "pcie_width": 4, "pcie_width_max": 16}
BUSY = {"gpu0.busy": constant(0.8)}


def test_a_link_with_a_quarter_of_its_lanes():
    full = own_gpu(**SLOW, pcie_received=6e9, pcie_sent=1e8)
    verdict = fired(hardware.slow_link(on_devices(full, series=BUSY)))
    assert verdict.severity == "warning" and "4 of 16 lanes" in verdict.title and "25 %" in verdict.title
    assert "85 % of what the link can carry" in verdict.evidence[1]


def test_a_link_that_nobody_uses_or_that_is_whole_is_no_warning():
    for used in ({"pcie_received": 1e7}, {}):
        assert fired(hardware.slow_link(on_devices(own_gpu(**SLOW, **used), series=BUSY))).severity == "info"
    for link in ({**SLOW, "pcie_width": 16}, {}):
        assert hardware.slow_link(on_devices(own_gpu(**link), series=BUSY)) is None


def test_copies_count_beside_phases_of_the_devices_clock():
    copying = steps(
        seconds=0.1, transfer=0.03, device_forward=0.02, device_backward=0.02, device_optimizer=0.01, device_idle=0.05
    )
    devices = GpuSample(time=1000.0, devices=(own_gpu(**SLOW),))
    verdict = fired(hardware.slow_link(snapshot(copying, gpu=devices, series=BUSY)))
    assert verdict.severity == "warning" and verdict.share == pytest.approx(0.225)
    assert "copies to the device take 30 % of each step" in verdict.evidence


@pytest.mark.parametrize("busy", [(0.0,) * 20, (0.9,) * 6 + (0.0,) + (0.9,) * 3, (0.9,) * 5])
def test_a_link_that_sleeps_with_its_device_is_not_judged(busy):
    idle = {"gpu0.busy": Series(times=tuple(990.0 + n for n in range(len(busy))), values=busy)}
    asleep = own_gpu(pcie_generation=1, pcie_generation_max=5, pcie_width=16, pcie_width_max=16)
    assert "only while the GPU works" in unjudged(hardware.slow_link(on_devices(asleep, series=idle)))


# gpu-fault --------------------------------------------------------------------------------------------------------


def test_a_lost_device():
    verdict = fired(hardware.fault(on_devices(GpuDevice(index=1, lost=True, mine=True, xid=(79,)), own_gpu(xid=()))))
    assert verdict.severity == "critical" and verdict.title.startswith("GPU 1 is lost")
    assert verdict.evidence == ("Xid 79: the GPU has fallen off the bus",)
    assert fired(hardware.fault(on_devices(GpuDevice(index=0, lost=True), facts=ON_CUDA))).severity == "critical"
    assert hardware.fault(on_devices(GpuDevice(index=1, lost=True), own_gpu(xid=()))) is None, "somebody else's device"


def test_memory_errors_that_come_now_are_worse_than_old_ones():
    old = on_devices(own_gpu(ecc_uncorrected=3, xid=()), series={"gpu0.ecc_uncorrected": constant(3)})
    assert fired(hardware.fault(old)).severity == "warning"
    rising = Series(times=(998.0, 999.0, 1000.0), values=(3, 3, 5))
    now = fired(hardware.fault(on_devices(own_gpu(ecc_uncorrected=5), series={"gpu0.ecc_uncorrected": rising})))
    assert now.severity == "critical" and "2 of them in the last five minutes" in now.evidence[0]


@pytest.mark.parametrize(
    ("xid", "severity", "words"),
    [(48, "critical", "another device"), (63, "warning", "Xid 63"), (31, "warning", "compute-sanitizer")],
)
def test_xids_of_devices_and_of_programs(xid, severity, words):
    verdict = fired(hardware.fault(on_devices(own_gpu(xid=(xid,)))))
    assert verdict.severity == severity and words in verdict.fixes[0].text


def test_a_device_without_errors_and_one_that_reports_none():
    assert hardware.fault(on_devices(own_gpu(xid=(), ecc_uncorrected=0))) is None
    assert hardware.fault(on_devices(own_gpu(xid=(), ecc_uncorrected=None))) is None
    assert "neither Xids nor memory errors" in unjudged(hardware.fault(on_devices(own_gpu())))
