"""The list of jobs to choose from, of small real process trees."""

from __future__ import annotations

import mmap
import os
import sys

import pytest
from process_trees import FORK_TWO, SLEEP

from aitop.sources.host import discovery
from aitop.sources.host.discovery import candidates

pytestmark = pytest.mark.e2e


def maps_library(folder, name: str) -> str:
    """Code of a process that has a library of that name in its memory map, as one with the framework has."""
    path = folder / name
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    opened = f"import mmap; file = open({str(path)!r}, 'rb')\n"
    return opened + "held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"


def test_jobs_are_found_and_folded(start, tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "CPU_WINDOW", 0.5)
    torch = start(maps_library(tmp_path, "libtorch_cpu.so") + FORK_TWO)
    jax = start(maps_library(tmp_path, "libjax_common.so") + SLEEP)
    plain = start(SLEEP)
    sleeper = start(["sleep", "60"], wait=False)
    rows = {row.pid: row for row in candidates({jax.pid: ((1, 0), 5 << 30), sleeper.pid: ((0,), None)})}
    assert plain.pid not in rows and os.getpid() not in rows
    row = rows[torch.pid]
    assert (row.framework, row.ranks, row.workers, row.gpus, row.gpu_memory) == ("torch", 1, 2, (), None)
    assert row.cpu > 0 and row.mine and 0 <= row.age < 60 and row.rss > 1 << 20
    row = rows[jax.pid]
    assert (row.framework, row.ranks, row.workers, row.gpus, row.gpu_memory) == ("jax", 1, 0, (0, 1), 5 << 30)
    assert (rows[sleeper.pid].framework, rows[sleeper.pid].gpus) == (None, (0,))
    order = [pid for pid in rows if pid in (torch.pid, jax.pid, sleeper.pid)]
    assert order == [jax.pid, sleeper.pid, torch.pid]


@pytest.mark.parametrize("name", ["torchrun", "start.py"])
def test_whatever_started_the_ranks_is_their_row(start, script, tmp_path, name):
    rank = script(maps_library(tmp_path, "libtorch.so.2") + SLEEP)
    launcher = script(
        "import os, subprocess, sys\nchildren = [subprocess.Popen(\n"
        f"    [sys.executable, {rank!r}], stdout=subprocess.PIPE,\n"
        "    env=dict(os.environ, RANK=str(number), WORLD_SIZE='2'),\n"
        ") for number in range(2)]\n[child.stdout.readline() for child in children]\n"
        "print('ready', flush=True)\nchildren[0].wait()\n",
        name,
    )
    process = start([sys.executable, launcher])
    rows = [row for row in candidates({}) if str(tmp_path) in row.command]
    assert [(row.pid, row.framework, row.ranks) for row in rows] == [(process.pid, "torch", 2)]


def test_a_process_that_ends_while_being_looked_at(start, tmp_path, monkeypatch):
    process = start(maps_library(tmp_path, "libtorch_cpu.so") + SLEEP)

    def end_it(seconds):
        process.kill()
        process.wait()

    monkeypatch.setattr(discovery.time, "sleep", end_it)
    assert process.pid not in {row.pid for row in candidates({})}
