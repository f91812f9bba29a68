"""What the host source says of small real process trees."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from process_trees import FORK_TWO, SLEEP, SPAWN_TWO
from waiting import until

from aitop.model.host import HostSample
from aitop.sources import procfs
from aitop.sources.host.source import HostSource
from aitop.sources.host.target import look
from aitop.sources.servers.engines import ENGINES
from aitop.sources.servers.recognition import Server
from aitop.sources.source import SourceError

pytestmark = pytest.mark.e2e

BIND_MAIN = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
WAIT = "print('ready', flush=True); threading.Event().wait(60)"


def read(source: HostSource) -> HostSample:
    if source._first is not None:
        # What was read on opening has no rates.
        source.read()
        time.sleep(source.interval)
    (sample,) = source.read()
    return sample


def roles(sample: HostSample) -> list[str]:
    return sorted(process.role for process in sample.processes)


def state(pid: int) -> str | None:
    stat = procfs.stat(pid)
    return None if stat is None else stat.state


def test_figures_come_at_once_and_rates_soon(start):
    process = start(FORK_TWO)
    source = HostSource([process.pid], interval=1.0)
    source.open()
    (first,) = source.read()
    assert len(first.processes) == 3
    assert first.processes[0].rss > 1 << 20 and first.machine.memory_total > first.machine.memory_available > 0
    assert first.processes[0].cpu is None and first.machine.core_busy is None and source.interval < 0.5
    time.sleep(source.interval)
    (second,) = source.read()
    assert second.processes[0].cpu is not None and second.machine.core_busy and source.interval == 1.0


def test_a_busy_process_and_its_forked_workers(start):
    process = start(FORK_TWO)
    source = HostSource([process.pid])
    source.open()
    sample = read(source)
    source.close()
    assert roles(sample) == ["loader-worker", "loader-worker", "rank"]
    rank = sample.processes[0]
    assert (rank.pid, rank.rank, rank.ppid, rank.threads) == (process.pid, 0, os.getpid(), 1)
    assert rank.cpu is not None and 0.02 < rank.cpu < 1.5
    assert abs(rank.started - time.time()) < 60
    assert rank.rss > 1 << 20 and rank.voluntary_switches is not None and rank.run_delay is not None
    for worker in sample.processes[1:]:
        assert (worker.ppid, worker.rank, worker.state) == (process.pid, 0, "S")
        assert worker.cpu < 0.1 and worker.read_bytes == 0
    assert source.seen.ranks == (process.pid,)
    assert source.seen.pids == {member.pid for member in sample.processes}
    machine = sample.machine
    assert machine.cores == len(machine.core_busy) == os.cpu_count()
    assert all(0 <= share <= 1 for share in (*machine.core_busy, machine.iowait))
    assert 0 < machine.memory_available < machine.memory_total
    assert 0 < sample.usable_cores <= machine.cores


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_the_cores_of_a_process_are_those_of_all_its_threads(start):
    """The main thread is bound to one core, as OpenMP binds those that compute."""
    bound = f"import os, threading\nthreading.Thread(target=threading.Event().wait).start()\n{BIND_MAIN}\n{WAIT}"
    source = HostSource([start([sys.executable, "-c", bound]).pid])
    source.open()
    assert read(source).usable_cores == len(os.sched_getaffinity(0))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_the_places_of_the_cores_that_a_process_may_use(start):
    core = max(os.sched_getaffinity(0))
    source = HostSource(
        [start([sys.executable, "-c", f"import os, threading\nos.sched_setaffinity(0, [{core}])\n{WAIT}"]).pid]
    )
    source.open()
    until(lambda: read(source).usable_cores == 1.0)
    assert read(source).places == (core,)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_the_cores_of_a_server_are_those_of_all_its_parts(start):
    """vLLM binds its workers, and the processes around them run anywhere."""
    child = f"import os, threading\n{BIND_MAIN}\n{WAIT}"
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    above = f"import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], env=os.environ | {rank})"
    process = start([sys.executable, "-c", above])

    def recognised(members):
        return Server(ENGINES[0], None, {member.stat.pid: ENGINES[0].parts[0] for member in members}, ())

    source = HostSource([process.pid], recognise=recognised)
    source.open()
    assert read(source).usable_cores == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_started_by_multiprocessing(start, script, method):
    process = start([sys.executable, script(SPAWN_TWO.replace("METHOD", method))])
    source = HostSource([process.pid])
    source.open()
    helpers = ["helper"] * (1 if method == "spawn" else 2)
    assert roles(read(source)) == [*helpers, "loader-worker", "loader-worker", "rank"]


def test_a_launcher_and_its_ranks(start, script):
    rank = script(SLEEP)
    launcher = script(
        "import os, subprocess, sys\n"
        "for rank in '01':\n"
        f"    child = subprocess.Popen([sys.executable, {rank!r}], stdout=subprocess.PIPE,"
        " env=dict(os.environ, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE='2'))\n"
        "    child.stdout.readline()\n"
        "print('ready', flush=True)\nchild.wait()\n",
        "torchrun",
    )
    process = start([sys.executable, launcher])
    source = HostSource([process.pid])
    source.open()
    sample = read(source)
    assert [(member.role, member.rank, member.world_size) for member in sample.processes] == [
        ("launcher", None, None),
        ("rank", 0, 2),
        ("rank", 1, 2),
    ]
    second = source.seen.ranks[1]
    only = HostSource([second])
    only.open()
    assert [(process.pid, process.role, process.rank) for process in read(only).processes] == [(second, "rank", 1)]
    assert look(process.pid).script == rank


def test_processes_that_come_and_go(start):
    process = start(
        "import os, sys, time\nprint('ready', flush=True)\n"
        "while True:\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: time.sleep(0.003)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    source = HostSource([process.pid])
    source.open()
    for _ in range(40):
        sample = read(source)
        assert process.pid in source.seen.pids
        assert sample.processes[0].pid == process.pid and sample.processes[0].role == "rank"


def test_workers_outlive_their_parent_and_the_end_is_told(start):
    process = start(FORK_TWO)
    source = HostSource([process.pid])
    source.open()
    workers = source.seen.pids - {process.pid}
    process.kill()
    process.wait()
    sample = read(source)
    assert {member.pid for member in sample.processes} == workers and roles(sample) == ["loader-worker"] * 2
    assert source.seen.ranks == ()
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    until(lambda: all(state(worker) in (None, "Z") for worker in workers))
    with pytest.raises(SourceError, match=f"process {process.pid} has ended") as caught:
        source.read()
    assert caught.value.state == "absent" and source.seen.pids == frozenset()


def test_opening_again_does_not_take_a_pid_that_changed_hands(start):
    process = start(SLEEP)
    source = HostSource([process.pid])
    source.open()
    source._starts = dict.fromkeys(source._starts, 1)  # as if the process first seen had started at boot
    with pytest.raises(SourceError):
        source.open()
