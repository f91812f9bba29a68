"""The program that runs all benches leaves nothing running of one that takes too long."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from all import run_to_end

BENCH = """
import subprocess, sys, time
job = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
try:
    open(sys.argv[1], "w").write(str(job.pid))
    time.sleep(60)
finally:
    job.kill()
    job.wait()
"""


def test_a_bench_that_takes_too_long_ends_what_it_has_started(tmp_path):
    note = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        run_to_end([sys.executable, "-S", "-c", BENCH, str(note)], 2.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_a_bench_that_fails_is_told_with_its_last_words():
    assert run_to_end([sys.executable, "-S", "-c", "raise SystemExit('no torch')"], None) == (1, "no torch\n")
