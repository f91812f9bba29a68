"""Every script of the suite of scenarios runs to its end with its fault mended."""

from __future__ import annotations

import subprocess
import sys

import pytest
from expected import BY_NAME, SCENARIO_DIR, SCENARIOS

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

# These take long to import or to begin, and are run elsewhere.
SLOW = {"tutorial_latency", "sentences_compiled"}


@pytest.mark.slow
def test_every_fixed_script_runs_to_its_end() -> None:
    names = [s.name for s in SCENARIOS if s.fixed and not s.needs and s.name not in SLOW]

    done = subprocess.run(
        [sys.executable, "-c", RUN_THEM, *names], cwd=SCENARIO_DIR, capture_output=True, text=True, timeout=900
    )

    told = dict(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("== "))
    failed = [name for name in names if told.get(name) != "0"]
    for name in failed:
        scenario = BY_NAME[name]
        command = [sys.executable, str(scenario.script), *scenario.args, *scenario.fix, "--steps", "2"]
        afresh = subprocess.run(command, cwd=SCENARIO_DIR, capture_output=True, text=True, timeout=120)
        assert afresh.returncode == 0, f"{name}: {afresh.stderr[-3000:]}\n{done.stderr[-3000:]}"
    assert len(failed) <= 1, done.stderr[-6000:]
    assert done.stdout.count("done: 2 steps") >= len(names) - 4 - len(
        failed
    )  # those of `aitop demo` end without a word
