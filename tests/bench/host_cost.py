"""What a read of the host source and a look for candidates cost, printed: python tests/bench/host_cost.py."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time

from aitop.sources.host import HostSource, discovery

TREE = """
import os, sys, time
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
print("ready", flush=True)
time.sleep(600)
"""


def measure(processes: int, reads: int = 40) -> tuple[float, float, float]:
    """CPU time of one read (median) and its wall time (median, longest), in milliseconds."""
    argv = [sys.executable, "-c", TREE, str(processes)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            source = HostSource([process.pid])
            source.open()
            source.read()
            cpu, wall = [], []
            for _ in range(reads):
                time.sleep(0.02)
                before = time.perf_counter(), time.process_time()
                source.read()
                wall.append(1e3 * (time.perf_counter() - before[0]))
                cpu.append(1e3 * (time.process_time() - before[1]))
            assert len(source.tree()) == processes
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    return statistics.median(cpu), statistics.median(wall), max(wall)


def main() -> None:
    for processes in (1, 10, 64):
        cpu, wall, longest = measure(processes)
        print(f"{processes:3} processes: {cpu:6.2f} ms CPU, {wall:6.2f} ms wall a read (longest {longest:.2f})")
    seen = sum(name.isdigit() for name in os.listdir("/proc"))
    discovery.CPU_WINDOW = 0.0
    before = time.perf_counter()
    discovery.candidates()
    print(
        f"candidates: {1e3 * (time.perf_counter() - before):.1f} ms besides the wait, {seen} processes on the machine"
    )


if __name__ == "__main__":
    main()
