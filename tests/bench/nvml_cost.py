"""What one read of the GPU source costs on the fake NVML: our own part, without the driver's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fakes" / "nvml"))

import fake_nvml

READS = 30

MEASURE = """
import os, statistics, sys, time
from aitop.sources.nvml import NvmlSource
source = NvmlSource(lambda: frozenset({os.getpid()}))
before = time.perf_counter()
source.open()
opened = time.perf_counter() - before
source.read()
times, cpu = [], time.process_time()
for _ in range(int(sys.argv[1])):
    before = time.perf_counter()
    devices = len(source.read()[0].devices)
    times.append(time.perf_counter() - before)
    time.sleep(0.12)  # performance monitoring wants 0.11 s between two samples
cpu = (time.process_time() - cpu) / len(times)
source.close()
print(f"{devices} devices: open {opened * 1e3:.1f} ms, read {statistics.median(times) * 1e3:.2f} ms median, "
      f"{max(times) * 1e3:.2f} ms worst, {cpu * 1e3:.2f} ms CPU")
"""


def main() -> None:
    for scenario in ("h200-busy", "two-gpus", "eight-gpus"):
        environment = fake_nvml.environment(scenario)
        subprocess.run([sys.executable, "-c", MEASURE, str(READS)], env=environment, check=True)


if __name__ == "__main__":
    main()
