"""NvmlSource through the real pynvml, on the fake library: one child process a scenario."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from aitop.model.gpu import GpuDevice, GpuSample
from aitop.sources.nvml import count_cards, without_driver

pytestmark = pytest.mark.e2e

MY_PID = os.getpid()

# Reads so often, so far apart, and prints a JSON line a read; the tree of the target is this test's process.
READER = """
import os, sys, time, msgspec
from aitop.sources.devices import device_source
from aitop.sources.source import SourceError
reads, pause, target = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
source, opened = device_source(lambda: frozenset({target})), False
for _ in range(reads):
    try:
        if not opened:
            source.open()
            opened = True
        line = msgspec.json.encode(source.read()[0]).decode()
    except SourceError as error:
        line = f"! {error.state} | {error.reason} | {error.remedy}"
        source.close()
        opened = False
    print(line, flush=True)
    time.sleep(pause)
source.close()
"""


def lines_of(environment: dict[str, str], reads: int, pause: float) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", READER, str(reads), str(pause), str(MY_PID)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def samples_of(environment: dict[str, str], reads: int = 2, pause: float = 0.13) -> list[GpuSample]:
    return [msgspec.json.decode(line, type=GpuSample) for line in lines_of(environment, reads, pause)]


def last_devices(environment: dict[str, str], reads: int = 2) -> tuple[GpuDevice, ...]:
    return samples_of(environment, reads)[-1].devices


def calls(log: Path) -> collections.Counter[tuple[str, int, int]]:
    """How often each (function, device, code) was called."""
    counted: collections.Counter[tuple[str, int, int]] = collections.Counter()
    for line in log.read_text().splitlines():
        _, _, function, device, code = line.split()
        counted[function, int(device), int(code)] += 1
    return counted


def test_everything_of_a_busy_h200(fake_nvml, tmp_path):
    log = tmp_path / "calls"
    sample = samples_of(fake_nvml("h200-busy", log=log, TARGET_PID=str(MY_PID)))[-1]
    (gpu,) = sample.devices
    assert (gpu.name, gpu.uuid) == ("NVIDIA H200", "GPU-fa4e0000-0000-4000-8000-000000000000")
    assert (gpu.busy, gpu.memory_busy) == (0.99, 0.61)
    assert (gpu.memory_total, gpu.memory_used) == (143771 << 20, 96 << 30)
    assert gpu.power in (642.0, 655.0)
    assert gpu.power_limit == 700.0
    assert gpu.temperature == 58.0
    assert (gpu.sm_clock, gpu.sm_clock_max, gpu.memory_clock) == (1935, 1980, 3201)
    assert gpu.throttle == ()
    assert (gpu.pcie_generation, gpu.pcie_generation_max, gpu.pcie_width, gpu.pcie_width_max) == (5, 5, 16, 16)
    assert (gpu.pcie_received, gpu.pcie_sent) == (1144 << 20, 86 << 20)
    assert (gpu.nvlink_received, gpu.nvlink_sent, gpu.nvlinks_active) == (0.0, 0.0, 18)
    assert gpu.ecc_uncorrected == 0
    assert (gpu.xid, gpu.fan, gpu.mig, gpu.mig_devices, gpu.lost, gpu.mine) == ((), None, False, (), False, True)
    (process,) = gpu.processes
    assert (process.pid, process.memory, process.sm) == (MY_PID, 95 << 30, 0.99)
    assert process.mine
    assert process.name
    assert (gpu.gpm.sm_active, gpu.gpm.sm_occupancy, gpu.gpm.tensor_active) == (0.91, 0.38, 0.54)
    assert (gpu.gpm.dram_active, gpu.gpm.fp64_active, gpu.gpm.fp32_active) == (0.47, 0.0, 0.08)
    made = calls(log)
    # Performance monitoring tells of PCIe, so nobody waits for the 20 ms counters.
    assert not any(function == "nvmlDeviceGetPcieThroughput" for function, _, _ in made)
    assert made["nvmlGpmSampleAlloc", -1, 0] == made["nvmlGpmSampleFree", -1, 0] == 2
    assert made["nvmlEventSetCreate", -1, 0] == made["nvmlEventSetFree", -1, 0] == 1
    assert made["nvmlShutdown", -1, 0] == 1


def test_gpm_is_the_mean_between_two_reads(fake_nvml):
    text = """
        include base-h200.txt
        gpu 0 gpm.sm every 0.1 0:80 0.05:0
    """
    first, *later = samples_of(fake_nvml(text), reads=3, pause=0.3)
    assert first.devices[0].gpm is None
    for sample in later:
        assert sample.devices[0].gpm.sm_active == pytest.approx(0.4, abs=0.12)


def test_a_starved_gpu_comes_in_bursts(fake_nvml):
    text = """
        include base-h200.txt
        gpu 0 busy every 0.4 0:96 0.1:0
        gpu 0 process $TARGET_PID 10G busy busy
    """
    seen = [s.devices[0] for s in samples_of(fake_nvml(text, TARGET_PID=str(MY_PID)), reads=16, pause=0.05)]
    assert {gpu.busy for gpu in seen} == {0.96, 0.0}
    assert {(0.96, 0.96), (0.0, 0.0)} <= {(gpu.busy, gpu.processes[0].sm) for gpu in seen}


def test_heat_is_told_by_its_reasons(fake_nvml):
    started = str(time.monotonic() - 20)
    (gpu,) = last_devices(fake_nvml("thermal", FAKE_NVML_START=started), reads=1)
    assert gpu.throttle == ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown")
    assert (gpu.temperature, gpu.sm_clock) == (89.0, 1125)


def test_only_the_device_of_the_tree_is_mine(fake_nvml):
    first, second = last_devices(fake_nvml("two-gpus", TARGET_PID=str(MY_PID)))
    assert (first.mine, second.mine) == (True, False)
    assert (first.busy, second.busy) == (0.99, 0.0)
    assert second.processes == ()
    assert second.throttle == ()  # idle is not held back


def test_a_stranger_on_the_device_is_not_mine(fake_nvml):
    (gpu,) = last_devices(fake_nvml("shared", TARGET_PID=str(MY_PID)))
    assert {process.pid: (process.mine, process.sm) for process in gpu.processes} == {
        1: (False, 0.41),
        MY_PID: (True, 0.99),
    }


def test_eight_gpus_with_nvlink(fake_nvml):
    devices = last_devices(fake_nvml("eight-gpus"))
    assert [gpu.index for gpu in devices] == list(range(8))
    assert devices[0].nvlink_received == 87890 << 20
    assert (devices[5].nvlinks_active, devices[5].throttle) == (17, ("sw_power_cap",))


def test_without_gpm_nvlink_comes_from_counters_and_pcie_from_one_device_a_tick(fake_nvml, tmp_path):
    log = tmp_path / "calls"
    text = """
        include eight-gpus.txt
        devices 3
        gpu * gpm.sm -
    """
    samples = samples_of(fake_nvml(text, log=log), reads=3)
    assert [[gpu.pcie_received is not None for gpu in sample.devices] for sample in samples] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert samples[-1].devices[2].pcie_received == 1.2e9
    assert samples[-1].devices[0].gpm is None
    assert samples[-1].devices[0].nvlink_sent == pytest.approx(88000000 * 1024, rel=0.05)
    made = calls(log)
    assert [made["nvmlDeviceGetPcieThroughput", index, 0] for index in range(3)] == [2, 2, 2]


def test_pcie_is_asked_only_of_the_device_of_the_tree(fake_nvml, tmp_path):
    log = tmp_path / "calls"
    text = """
        include two-gpus.txt
        gpu * gpm.sm -
    """
    samples_of(fake_nvml(text, log=log, TARGET_PID=str(MY_PID)), reads=4, pause=0.01)
    assert calls(log)["nvmlDeviceGetPcieThroughput", 1, 0] == 0


def test_mig_slices_have_their_own_memory(fake_nvml):
    (gpu,) = last_devices(fake_nvml("mig", TARGET_PID=str(MY_PID)))
    assert gpu.mig is True
    assert gpu.busy is None
    assert gpu.gpm is None
    assert [(s.index, s.name, s.memory_total, s.memory_used) for s in gpu.mig_devices] == [
        (0, "NVIDIA H200 MIG 3g.71gb", 72064 << 20, 40 << 30),
        (1, "NVIDIA H200 MIG 1g.18gb", 18176 << 20, 2 << 30),
    ]
    assert gpu.mine


def test_unified_memory_has_no_figure_and_what_is_unsupported_is_asked_once(fake_nvml, tmp_path):
    log = tmp_path / "calls"
    samples = samples_of(fake_nvml("unified-memory", log=log, TARGET_PID=str(MY_PID)), reads=12, pause=0.0)
    gpu = samples[-1].devices[0]
    assert (gpu.memory_total, gpu.memory_used) == (None, None)
    assert (gpu.power_limit, gpu.pcie_received, gpu.ecc_uncorrected, gpu.mig, gpu.nvlinks_active) == (None,) * 5
    assert gpu.busy == 0.93
    assert gpu.processes[0].memory is None
    made = calls(log)
    assert made["nvmlDeviceGetUtilizationRates", 0, 0] == 12
    refused = {function: n for (function, _, code), n in made.items() if code == 0 and "Pcie" in function}
    assert refused["nvmlDeviceGetPcieThroughput"] == 2  # two directions
    assert made["nvmlDeviceGetMemoryInfo_v2", 0, 0] == made["nvmlDeviceGetMemoryInfo", 0, 0] == 1
    assert made["nvmlDeviceGetCurrPcieLinkWidth", 0, 0] == made["nvmlDeviceGetMigMode", 0, 0] == 1


def test_an_old_driver_gives_what_it_has(fake_nvml):
    (gpu,) = last_devices(fake_nvml("old-driver", TARGET_PID=str(MY_PID)))
    assert (gpu.memory_total, gpu.memory_used) == (32510 << 20, (20 << 30) + (300 << 20))
    assert gpu.processes[0].memory == 95 << 30
    assert gpu.throttle == ()
    assert gpu.gpm is None
    assert gpu.pcie_received == 1.2e9


def test_garbage_becomes_none(fake_nvml):
    (gpu,) = last_devices(fake_nvml("garbage", TARGET_PID=str(MY_PID)))
    assert gpu.name == "NVIDIA·[31m H200·  ·"  # what no terminal may get is seen to have been there
    assert gpu.uuid is None
    for field in (
        *("busy", "memory_busy", "memory_used", "power", "power_limit", "temperature"),
        *("sm_clock", "sm_clock_max", "memory_clock", "throttle", "pcie_generation", "pcie_width"),
        "fan",
    ):
        assert getattr(gpu, field) is None, field
    assert (gpu.gpm.sm_active, gpu.gpm.sm_occupancy, gpu.gpm.tensor_active) == (None, None, None)
    assert gpu.gpm.dram_active == 0.47
    assert [(p.pid, p.memory, p.sm) for p in gpu.processes] == [(MY_PID, 95 << 30, None)]
    assert gpu.memory_total == 143771 << 20


def test_a_lost_gpu_is_told_with_its_xid_and_the_other_goes_on(fake_nvml, tmp_path):
    log = tmp_path / "calls"
    text = """
        include two-gpus.txt
        gpu 1 xid 79 0.8
        gpu 1 lost 1.1
    """
    samples = samples_of(fake_nvml(text, log=log, TARGET_PID=str(MY_PID)), reads=9, pause=0.2)
    assert samples[0].devices[1].xid == ()
    first, second = samples[-1].devices
    assert (second.lost, second.xid, second.busy, second.name) == (True, (79,), None, "NVIDIA H200")
    assert (first.lost, first.busy, first.xid) == (False, 0.99, ())
    asked_in_vain = sum(n for (_, device, code), n in calls(log).items() if device == 1 and code == 15)
    assert asked_in_vain == 1  # a lost device is left alone


def test_a_gpu_that_was_lost_before_we_came_is_told(fake_nvml):
    text = """
        include two-gpus.txt
        gpu 0 lost 0
    """
    first, second = last_devices(fake_nvml(text))
    assert (first.index, first.lost, second.index, second.lost) == (0, True, 1, False)


def test_a_passing_error_costs_one_figure_of_one_tick(fake_nvml):
    text = """
        include h200-busy.txt
        return nvmlDeviceGetPowerUsage 999 0 0.9
    """
    samples = samples_of(fake_nvml(text), reads=7, pause=0.2)
    assert samples[0].devices[0].power is None
    assert samples[0].devices[0].busy == 0.99
    assert samples[-1].devices[0].power is not None


def test_a_driver_that_stops_answering_fails_the_source_and_comes_back(fake_nvml):
    text = """
        include h200-busy.txt
        return * 999 0.6 1.2
    """
    lines = lines_of(fake_nvml(text), reads=9, pause=0.2)
    assert lines[0].startswith("{")
    failures = [line for line in lines if line.startswith("! failed | NVML no longer answers: nvmlDevice")]
    assert failures
    assert lines[-1].startswith("{")


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("no-gpu", "! absent | the NVIDIA driver is here, but no GPU | "),
        ("not-permitted", "! denied | the NVIDIA driver does not let this user in | "),
        ("devices 1\ninit 9\n", "! absent | the NVIDIA kernel driver is not loaded | "),
        ("devices 1\ninit 18\n", "! failed | the NVIDIA driver was updated while the old one is still loaded | "),
        ("devices 1\ninit 999\n", "! failed | NVML does not start: Unknown Error | None"),
        ("devices 2\ngpu * return nvmlDeviceGetHandleByIndex_v2 4\n", "! denied | the NVIDIA driver does not let"),
    ],
)
def test_why_there_is_nothing_is_said_in_words(fake_nvml, scenario, words):
    (line,) = lines_of(fake_nvml(scenario), reads=1, pause=0)
    assert line.startswith(words)


def test_no_driver_at_all_is_absent(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")  # hides the real one of a machine that has it
    (line,) = lines_of({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, reads=1, pause=0)
    remedy = "install the NVIDIA driver" if count_cards() else None
    assert line.startswith(f"! absent | {without_driver(count_cards()).reason} | {remedy}")
