"""Verdicts about devices, from NVML (a fake one) through the real pynvml to the report."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.e2e

BUSY = "print('up', flush=True)\nwhile True: sum(range(1000))"
# The link of an idle device, and a power limit that is the maker's: neither is a fault.
AT_REST = """
include base-h200.txt
devices 1
gpu 0 process $TARGET_PID 20G 0 0
gpu 0 memory.used 20G
gpu 0 pcie.gen 1
gpu 0 throttle 1
"""
OF_DEVICES = {"thermal-throttle", "power-cap", "pcie-degraded", "gpu-fault", "gpu-shared", "oom-risk"}


@pytest.mark.slow
def test_six_devices_with_a_fault_each_and_one_at_rest(fake_nvml, start, diagnose):
    pid = start(BUSY).pid
    # Both look at the same time.
    with ThreadPoolExecutor() as both:
        worlds = (fake_nvml("faults", TARGET_PID=str(pid)), fake_nvml(AT_REST, TARGET_PID=str(pid)))
        flags = ("--no-stacks", "--no-hook", "--interval", "0.5s")
        faulty, at_rest = both.map(lambda world: diagnose(pid, 9, *flags, allowed=(0, 5), env=world), worlds)
    assert faulty["sources"]["gpu"]["state"] == "ok"
    said = {verdict["id"]: verdict for verdict in faulty["verdicts"]}
    assert said["gpu-fault"]["title"].startswith("GPU 3 is lost") and said["gpu-fault"]["severity"] == "critical"
    assert "Xid 79" in said["gpu-fault"]["evidence"][0]
    assert "GPU 0" in said["thermal-throttle"]["title"] and "1125 of 1980 MHz" in said["thermal-throttle"]["title"]
    assert "hw_thermal_slowdown" in said["thermal-throttle"]["evidence"][0]
    assert said["power-cap"]["title"] == "GPU 1 may draw 350 W of its 700 W"
    assert said["power-cap"]["speedup"] == pytest.approx(2**0.5, rel=0.05)
    assert "GPU 2 has 25 % of its PCIe bandwidth" in said["pcie-degraded"]["title"]
    assert said["pcie-degraded"]["severity"] == "warning"
    assert said["gpu-shared"]["share"] == pytest.approx(0.4, abs=0.02) and "GPU 4" in said["gpu-shared"]["title"]
    assert said["oom-risk"]["title"].startswith("GPU 4's memory is 95 % full")

    assert not {verdict["id"] for verdict in at_rest["verdicts"]} & OF_DEVICES
    reasons = {abstained["id"]: abstained["reason"] for abstained in at_rest["abstained"]}
    assert "only while the GPU works" in reasons["pcie-degraded"]
    assert reasons["fragmentation"] == "no figures of PyTorch's allocator: only the hook sees it"
