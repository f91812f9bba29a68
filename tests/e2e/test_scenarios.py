"""Every script of the suite of scenarios runs to its end with its fault mended."""

from __future__ import annotations

import subprocess
import sys

import pytest
from expected import BY_NAME, SCENARIO_DIR, SCENARIOS, WORKLOAD_DIR

pytestmark = pytest.mark.e2e

# Forks of a process that has imported everything already: starting each script afresh takes seconds. Such a fork may
# inherit a lock that a library's thread held: one that stands still says where, and its script is started afresh.
RUN_THEM = """
import faulthandler, multiprocessing.util, os, runpy, sys, traceback
import numpy, torch, torch._dynamo, torch.utils.data
from expected import BY_NAME

def run(scenario):
    faulthandler.dump_traceback_later(60, exit=True)
    sys.argv = [str(scenario.script), *scenario.args, *scenario.fix, "--steps", "2"]
    try:
        runpy.run_path(str(scenario.script), run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    multiprocessing.util._exit_function()
    return 0

for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        status = run(BY_NAME[name])
        sys.stdout.flush()
        os._exit(status)
    _, status = os.waitpid(child, 0)
    print("==", name, status, flush=True)
"""

# These take long to import or to begin, and would not fork well: they are started afresh.
ALONE = {"tutorial_latency", "sentences_compiled"}


def afresh(name: str) -> subprocess.CompletedProcess[str]:
    scenario = BY_NAME[name]
    command = [sys.executable, str(scenario.script), *scenario.args, *scenario.fix, "--steps", "2"]
    return subprocess.run(command, cwd=SCENARIO_DIR, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_every_fixed_script_runs_to_its_end() -> None:
    fixed = [scenario for scenario in SCENARIOS if scenario.fixed and not scenario.needs]
    forked = [scenario.name for scenario in fixed if scenario.name not in ALONE]

    done = subprocess.run(
        [sys.executable, "-c", RUN_THEM, *forked], cwd=SCENARIO_DIR, capture_output=True, text=True, timeout=900
    )

    statuses = dict(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("== "))
    failed = [name for name in forked if statuses.get(name) != "0"]
    again = {name: afresh(name) for name in [*failed, *sorted(ALONE)]}
    for name, run in again.items():
        assert run.returncode == 0, f"{name}: {run.stderr[-3000:]}\n{done.stderr[-3000:]}"
    assert len(failed) <= 1, done.stderr[-6000:]
    # Those of `aitop demo` end without a word.
    last_words = done.stdout.count("done: 2 steps") + sum(run.stdout.count("done: 2 steps") for run in again.values())
    assert last_words >= len([scenario for scenario in fixed if scenario.script.parent != WORKLOAD_DIR])


@pytest.mark.slow
def test_the_demos_server_ends_by_itself_after_so_many_requests() -> None:
    command = [sys.executable, str(WORKLOAD_DIR / "serve.py"), "--steps", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("request 1: p50 ")
