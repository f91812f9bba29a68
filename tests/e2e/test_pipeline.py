"""A pipeline that compares a training run with a baseline: it passes on noise and fails on a planted regression."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SLOWED = Path(__file__).parents[1] / "bench" / "slowed_function.py"
# What a CI job would have in its script: start the run, watch it, end it, and leave with what aitop said.
PIPELINE = """
"$PYTHON" "$SCRIPT" "$MILLISECONDS" > "$LOG" & run=$!
trap "kill $run" EXIT
until grep -q "step 1:" "$LOG"; do kill -0 $run; sleep 0.2; done
code=0
"$PYTHON" -m aitop diagnose --pid $run --for "$WATCH" --no-history --format json -o "$REPORT" $OPTIONS || code=$?
exit $code
"""


def pipeline(folder: Path, name: str, milliseconds: float, options: str = "", watch: str = "30s") -> int:
    """The exit code of the pipeline; its report is NAME.json in the folder."""
    named = {"LOG": f"{folder}/{name}.log", "REPORT": f"{folder}/{name}.json", "OPTIONS": options, "WATCH": watch}
    known = {
        "PYTHON": sys.executable,
        "SCRIPT": str(SLOWED),
        "MILLISECONDS": str(milliseconds),
        "PATH": "/usr/bin:/bin",
    }
    # In a session of its own, so that whatever happens its run can be ended.
    shell = subprocess.Popen(["sh", "-eu", "-c", PIPELINE], env={**known, **named}, start_new_session=True)
    try:
        return shell.wait(600)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_a_pipeline_fails_on_a_planted_regression_and_passes_on_noise(tmp_path):
    # One pair of twenty of the same code is not called the same, and a machine may be slower from minute to minute.
    for attempt in range(3):
        assert pipeline(tmp_path, f"baseline-{attempt}", 4) == 0
        compared = f"--baseline {tmp_path}/baseline-{attempt}.json --fail-on regression"
        # A short look is noisier than a long one, and what is so much slower shows at once.
        code = pipeline(tmp_path, f"same-{attempt}", 4, compared, watch="10s")
        if code == 0:
            break
    assert code == 0
    assert pipeline(tmp_path, "slower", 30, compared, watch="10s") == 1
