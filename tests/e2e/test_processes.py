"""The host source, targets and discovery on small real process trees."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import time

import msgspec
import pytest
from waiting import until

from aitop.errors import NoTargetError, NotPermittedError
from aitop.model.host import HostSample
from aitop.sources import procfs
from aitop.sources.access import read_confinement
from aitop.sources.host import discovery
from aitop.sources.host.discovery import candidates
from aitop.sources.host.source import HostSource
from aitop.sources.host.target import look, still_there
from aitop.sources.servers.engines import ENGINES
from aitop.sources.servers.recognition import Server
from aitop.sources.source import SourceError

pytestmark = pytest.mark.e2e

# Stands for a loader worker: torch gives its workers this name.
NAME_WORKER = "open('/proc/self/comm', 'w').write('pt_data_worker')"
BIND_MAIN = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
WAIT = "print('ready', flush=True); threading.Event().wait(60)"
FORK_TWO = f"""import os, time
for _ in range(2):
    if os.fork() == 0:
        {NAME_WORKER}
        time.sleep(60)
        os._exit(0)
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    sum(range(10000))
"""
SPAWN_TWO = f"""
import multiprocessing as mp, os, time
def work(queue):
    {NAME_WORKER}
    queue.put(1)
    time.sleep(60)
if __name__ == "__main__":
    context = mp.get_context("METHOD")
    queue = context.Queue()
    for _ in range(2):
        context.Process(target=work, args=(queue,), daemon=True).start()
    queue.get(), queue.get()
    print("ready", flush=True)
    time.sleep(60)
"""
SLEEP = "import time; print('ready', flush=True); time.sleep(60)"


@pytest.fixture
def script(tmp_path):
    """`script(text)` writes a file and gives its path."""

    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


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


def test_a_target(start, script, tmp_path):
    path = script(SLEEP)
    process = start([sys.executable, "-u", "train.py", "--lr", "1"], cwd=tmp_path)
    target = look(process.pid)
    assert target.command == f"{sys.executable} -u train.py --lr 1"
    assert target.script == path
    assert target.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert still_there(target) is None
    process.kill()
    process.wait()
    assert still_there(target) == f"process {process.pid} has ended"


def test_a_module_and_code_as_target(start, script, tmp_path):
    package = tmp_path / "training"
    package.mkdir()
    (package / "__main__.py").write_text(SLEEP)
    module = start([sys.executable, "-m", "training"], cwd=tmp_path)
    assert look(module.pid).script == str(package / "__main__.py")
    assert look(start(SLEEP).pid).script is None


def test_a_shell_around_a_python_is_a_target(start, script):
    path = script(SLEEP)
    process = start(["sh", "-c", f"'{sys.executable}' '{path}'; true"])
    target = look(process.pid)
    assert (target.pid, target.script) == (process.pid, path)


def test_a_pid_that_changed_hands(start):
    target = look(start(SLEEP).pid)
    earlier = msgspec.structs.replace(target, started=target.started - 100)
    assert "now belongs to another process" in still_there(earlier)


def refusal(pid: int) -> str:
    with pytest.raises(NoTargetError) as caught:
        look(pid)
    return str(caught.value)


def test_what_cannot_be_watched(start):
    assert "no process with pid 999999999" in refusal(999999999)
    assert "no process with pid 0" in refusal(0) and "no process with pid -5" in refusal(-5)
    assert "aitop itself" in refusal(os.getpid())
    sleeper = start(["sleep", "60"], wait=False)
    until(lambda: os.readlink(f"/proc/{sleeper.pid}/exe").endswith(("sleep", "coreutils", "busybox")))
    assert f"process {sleeper.pid} (sleep) is not a Python process" in refusal(sleeper.pid)


def test_a_zombie(start):
    process = start(SLEEP)
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: state(process.pid) == "Z")
    assert "zombie" in refusal(process.pid)


def test_a_stopped_process_says_how_to_continue_and_stays_stopped(start):
    process = start(SLEEP)
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: state(process.pid) == "T")
    assert f"kill -CONT {process.pid}" in refusal(process.pid)
    assert state(process.pid) == "T"
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: state(process.pid) == "S")
    assert look(process.pid).pid == process.pid


def test_a_thread_names_its_process(start):
    process = start(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    thread = next(int(task) for task in os.listdir(f"/proc/{process.pid}/task") if int(task) != process.pid)
    assert f"use --pid {process.pid}" in refusal(thread)


def test_a_thread_of_the_kernel():
    if not os.path.exists("/proc/2/stat") or _readable("/proc/2/exe"):
        pytest.skip("no kernel threads visible here")
    assert "thread of the kernel" in refusal(2)


def _readable(link: str) -> bool:
    try:
        return bool(os.readlink(link))
    except OSError:
        return False


def test_another_users_process(start, monkeypatch):
    process = start(SLEEP)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    ours = msgspec.structs.replace(read_confinement(), uid=12345, capabilities=0)
    monkeypatch.setattr("aitop.sources.access.read_confinement", lambda: ours)
    monkeypatch.setattr("aitop.sources.procfs.environ", lambda pid: None)
    with pytest.raises(NotPermittedError, match="aitop runs as 12345: run aitop as "):
        look(process.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process_for_real(start):
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv")
    process = start(SLEEP)
    code = (
        f"from aitop.sources.host.target import look\ntry: look({process.pid})\n"
        "except Exception as e: print(type(e).__name__, e)"
    )
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    if "Permission denied" in done.stderr or "No module" in done.stderr:
        pytest.skip("another user cannot run this interpreter")
    assert done.stdout.startswith("NotPermittedError"), done.stdout + done.stderr


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
    found = {row.pid: row for row in candidates({jax.pid: ((1, 0), 5 << 30), sleeper.pid: ((0,), None)})}
    assert plain.pid not in found and os.getpid() not in found
    row = found[torch.pid]
    assert (row.framework, row.ranks, row.workers, row.gpus, row.gpu_memory) == ("torch", 1, 2, (), None)
    assert row.cpu > 0 and row.mine and 0 <= row.age < 60 and row.rss > 1 << 20
    row = found[jax.pid]
    assert (row.framework, row.ranks, row.workers, row.gpus, row.gpu_memory) == ("jax", 1, 0, (0, 1), 5 << 30)
    assert (found[sleeper.pid].framework, found[sleeper.pid].gpus) == (None, (0,))
    order = [pid for pid in found if pid in (torch.pid, jax.pid, sleeper.pid)]
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
