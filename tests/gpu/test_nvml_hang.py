"""A driver that hangs: the source turns stale, its thread is left alone, and nobody else waits for it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.e2e

# The source under the engine's own watchdog, with little patience, for `argv[1]` seconds. It may take `argv[2]` to end.
WATCHED = """
import sys, time
from aitop.engine.runner import SourceRunner
from aitop.model.source import SourceStatus
from aitop.sources.nvml.source import NvmlSource
source = NvmlSource()
source.interval, source.patience = 0.05, 0.6
def show(event):
    print(f"{event.state}: {event.reason}" if isinstance(event, SourceStatus) else "sample", flush=True)
runner = SourceRunner(source, show)
runner.start()
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    runner.check(time.monotonic())
    time.sleep(0.02)
runner.ask_to_stop()
print("ended" if runner.join(float(sys.argv[2])) else "left behind")
"""

USERS = """
import sys, time
from aitop.sources.nvml.processes import gpu_users
from aitop.sources.nvml.source import NvmlSource
from aitop.sources.source import SourceError
before = time.monotonic()
print(gpu_users(timeout=float(sys.argv[1])), time.monotonic() - before < 5)
if sys.argv[2:]:
    from aitop.sources.nvml import source
    source.WAIT_FOR_TURN_SECONDS = 0.1
    try:
        NvmlSource().open()
    except SourceError as error:
        print(error.state, error.reason)
"""


def test_a_hang_for_good_is_stale_and_the_program_ends_all_the_same(fake_nvml, printed):
    text = """
        include h200-busy.txt
        hang nvmlDeviceGetUtilizationRates 1
    """
    lines = printed(fake_nvml(text), WATCHED, 2.2, 0.3)
    assert lines[:2] == ["sample", "ok: None"]
    assert lines[-2].startswith("stale: no answer for")
    assert lines[-1] == "left behind"


def test_a_hang_that_passes_is_stale_and_then_well_again(fake_nvml, printed):
    text = """
        include h200-busy.txt
        hang nvmlDeviceGetUtilizationRates 1 1.3
    """
    lines = printed(fake_nvml(text), WATCHED, 3.2, 30)
    states = [line.split(":")[0] for line in lines if line != "sample"]
    assert states == ["ok", "stale", "ok", "ended"]


def test_gpu_users_folds_devices(fake_nvml, printed):
    text = """
        include two-gpus.txt
        gpu 1 process $TARGET_PID 5G 0 0
        gpu 1 process 77 - 0 0
    """
    (line,) = printed(fake_nvml(text, TARGET_PID="4242"), USERS, 4)
    assert line == f"{{4242: ((0, 1), {100 << 30}), 77: ((1,), None)}} True"


def test_gpu_users_of_a_hanging_driver_is_empty_and_the_source_says_why_it_waits(fake_nvml, printed):
    text = """
        include h200-busy.txt
        hang nvmlDeviceGetComputeRunningProcesses_v3 0
    """
    lines = printed(fake_nvml(text), USERS, 0.3, "and-open")
    assert lines == ["{} True", "stale an earlier call into the NVIDIA driver has not come back"]


def test_gpu_users_without_a_driver_is_empty(tmp_path, fake_nvml, printed):
    assert printed(fake_nvml("no-gpu"), USERS, 4) == ["{} True"]


def test_nvml_is_called_from_one_thread_at_a_time(fake_nvml, tmp_path, printed):
    """Two threads want it all the time; in the log their calls never lie inside one another's turn."""
    log = tmp_path / "calls"
    script = """
import threading
from aitop.sources.nvml.processes import gpu_users
from aitop.sources.nvml.source import NvmlSource
source = NvmlSource()
source.open()
looker = threading.Thread(target=lambda: [gpu_users(5.0) for _ in range(20)])
looker.start()
while looker.is_alive():
    source.read()
source.close()
"""
    printed(fake_nvml("two-gpus", log=log), script)
    threads = [line.split()[1:3] for line in log.read_text().splitlines()]
    looks = [thread for thread, function in threads if function == "nvmlShutdown"]
    assert len(set(looks)) == 21
    main = looks[-1]
    others = [thread for thread, _ in threads if thread != main]
    # Each look of another thread is one unbroken run of calls.
    runs = [
        thread
        for before, (thread, _) in zip([None, *[t for t, _ in threads]], threads, strict=False)
        if thread != before
    ]
    assert len([thread for thread in runs if thread != main]) == len(set(others)) == 20
