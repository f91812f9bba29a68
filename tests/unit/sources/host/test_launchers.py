"""The processes that launchers make, as /proc shows them: from any of them the same job is found, with its ranks."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

import pytest

from aitop.sources import procfs
from aitop.sources.host.job import look_at, meeting_of, ray_class, whole_jobs
from aitop.sources.host.tree import ProcessTree, places_of

SPAWNED = "python -c from_multiprocessing.spawn_import_spawn_main;spawn_main() --multiprocessing-fork"
TRACKER = "python -c from|multiprocessing.resource_tracker|import|main;main(5)"
COMPILER = "python /v/lib/python3.11/site-packages/torch/_inductor/compile_worker/__main__.py"


@dataclass
class Made:
    """One process. `|` in its command stands for a space within a word; `stack` is its parent's where it was forked."""

    pid: int
    ppid: int
    command: str
    comm: str = ""
    stack: int = 0
    threads: tuple[str, ...] = ()
    environment: dict[str, object] = field(default_factory=dict)

    def write(self, proc) -> None:
        folder = proc / str(self.pid)
        words = [word.replace("|", " ") for word in self.command.split()]
        name = self.comm or words[0].rpartition("/")[2]
        rest = ["S", self.ppid, *[0] * 15, 1 + len(self.threads), 0, self.pid, 0, 0, 0, 0, 0, self.stack or self.pid]
        folder.mkdir()
        (folder / "stat").write_text(f"{self.pid} ({name[:15]}) {' '.join(map(str, rest))} " + "0 " * 25)
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))
        (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in self.environment.items()))
        if words[0].endswith("python"):
            (folder / "exe").symlink_to("/usr/bin/python3.11")
        for number, thread in enumerate((name, *self.threads)):
            task = folder / "task" / str(self.pid + 10_000 * number)
            task.mkdir(parents=True)
            (task / "comm").write_text(f"{thread}\n")


def elastic(rank, world=2, local=None, here=None):
    return {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank if local is None else local,
            "LOCAL_WORLD_SIZE": here or world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}  # fmt: skip


def two_ranks(parent, command="python -u train.py", **more):
    return [Made(20 + rank, parent, command, environment=elastic(rank, **more)) for rank in (0, 1)]


SHELL = Made(5, 1, "-bash")
TORCHRUN = "python /v/bin/torchrun --nproc-per-node 2 train.py"
BESIDE = [
    Made(40, 20, "python -u train.py", comm="pt_data_worker", stack=20, environment=elastic(0)),
    Made(41, 20, "/v/bin/wandb-core --port-filename x", environment=elastic(0)),
    Made(42, 21, "python -m tensorboard.main --logdir x", environment=elastic(1)),
    Made(43, 21, COMPILER, environment=elastic(1)),
]
GROUP = ("pt_gloo_runloop",)

# By name: the processes, the tops of the job, and the rank of each that is one. Whoever is in neither is no part of it.
TREES = {
    "torchrun": ([SHELL, Made(10, 5, TORCHRUN), *two_ranks(10), *BESIDE], {10}, {20: 0, 21: 1}),
    "in a container": ([Made(1, 0, TORCHRUN), *two_ranks(1)], {1}, {20: 0, 21: 1}),
    "launch": (
        [SHELL, Made(10, 5, "python -m torch.distributed.launch train.py"), *two_ranks(10)],
        {10}, {20: 0, 21: 1},
    ),
    "second of two machines": (
        [SHELL, Made(10, 5, TORCHRUN),
         *(Made(20 + local, 10, "python train.py", environment=elastic(2 + local, 4, local, 2)) for local in (0, 1))],
        {10}, {20: 2, 21: 3},
    ),
    "spawn": (
        [SHELL, Made(10, 5, "python train.py"), Made(11, 10, TRACKER),
         *(Made(20 + rank, 10, SPAWNED, threads=GROUP) for rank in (0, 1))],
        {10}, {20: 0, 21: 1},
    ),
    "accelerate": (
        [SHELL, Made(10, 5, "python /v/bin/accelerate launch train.py"), *two_ranks(10)],
        {10}, {20: 0, 21: 1},
    ),
    "deepspeed": (
        [SHELL, Made(10, 5, "python /v/bin/deepspeed --num_gpus 2 train.py"),
         Made(11, 10, "python -u -m deepspeed.launcher.launch --world_info=e30= train.py"),
         *two_ranks(11, "python -u train.py --local_rank=0")],
        {10}, {20: 0, 21: 1},
    ),
    "mpirun": (
        [SHELL, Made(10, 5, "mpirun -n 2 python train.py"),
         *(Made(20 + rank, 10, "python train.py",
                environment={"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2,
                             "OMPI_COMM_WORLD_LOCAL_RANK": rank}) for rank in (0, 1))],
        {10}, {20: 0, 21: 1},
    ),
    "slurm": (
        [Made(10, 1, "slurmstepd:|[12.0]"),
         *(Made(20 + rank, 10, "python train.py",
                environment={"SLURM_STEP_ID": 0, "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": 2})
           for rank in (0, 1))],
        {10}, {20: 0, 21: 1},
    ),
    "ray": (
        [Made(9, 1, "/v/bin/raylet --port 1"), Made(30, 9, "ray::IDLE"),
         *(Made(20 + rank, 9, f"ray::RayTrainWorker._RayTrainWorker__execute.{name}")
           for rank, name in enumerate(("step", "get_next")))],
        {20, 21}, None,
    ),
    "a script of somebody's own that numbers its children": (
        [SHELL, Made(10, 5, "python start.py"), *two_ranks(10)], {10}, {20: 0, 21: 1},
    ),
    "a script that gives its only child a number": (
        [SHELL, Made(10, 5, "python sweep.py"), Made(20, 10, "python train.py", environment=elastic(0, 1))], {20}, None,
    ),
    "a shell below mpirun": (
        [SHELL, Made(10, 5, "mpirun -n 2 run.sh"), Made(11, 10, "/bin/bash run.sh"),
         Made(20, 11, "python train.py", environment={"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": 2})],
        {10}, None,
    ),
    "a shell of a Slurm job": (
        [Made(10, 1, "slurmstepd:|[7.0]"), Made(11, 10, "bash"), Made(20, 11, "python train.py")], {20}, None,
    ),
    "ranks in windows of their own": ([SHELL, Made(6, 1, "-zsh"), *[
        Made(20 + rank, 5 + rank, "python train.py", environment=elastic(rank)) for rank in (0, 1)]],
        {20, 21}, {20: 0, 21: 1}),
}  # fmt: skip


@pytest.fixture
def proc(tmp_path, monkeypatch):
    def make(processes):
        for process in processes:
            process.write(tmp_path)

    monkeypatch.setattr(procfs, "PROC", str(tmp_path))
    return make


@pytest.mark.parametrize("name", TREES)
def test_from_any_process_of_a_job_all_of_it_is_found(proc, name):
    processes, tops, ranks = TREES[name]
    proc(processes)
    outside = {"-bash", "-zsh", "/v/bin/raylet --port 1", "ray::IDLE", "bash", "python sweep.py", "slurmstepd:|[7.0]"}
    for process in processes:
        if process.command not in outside:
            assert set(whole_jobs([process.pid])) == tops, process
    tree = ProcessTree([(pid, None) for pid in sorted(tops)])
    places = places_of(tree.update())
    if ranks is not None:
        rank_of = {pid: place.numbers.rank for pid, place in places.items() if place.role == "rank"}
        assert rank_of == ranks


def test_what_ranks_have_beside_them_is_known_by_its_part(proc):
    processes, tops, _ = TREES["torchrun"]
    proc(processes)
    places = places_of(ProcessTree([(pid, None) for pid in tops]).update())
    assert {pid: places[pid].role for pid in (10, 40, 41, 42, 43)} == {
        10: "launcher", 40: "loader-worker", 41: "helper", 42: "helper", 43: "helper"
    }  # fmt: skip
    assert places[40].numbers.rank == 0


def test_ranks_on_other_machines_are_counted(proc):
    processes, tops, _ = TREES["second of two machines"]
    proc(processes)
    numbers = places_of(ProcessTree([(pid, None) for pid in tops]).update())[20].numbers
    assert (numbers.world_size, numbers.local_world) == (4, 2)


def test_what_meets_at_one_address_is_one_job(proc):
    one = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "a", "MASTER_PORT": 1}
    two, other = {**one, "RANK": 1}, {**one, "MASTER_PORT": 2}
    environments = {20: one, 21: two, 22: other, 23: {**one, "WORLD_SIZE": 1}, 24: {"MASTER_PORT": 1}}
    proc([Made(pid, 1, "python train.py", environment=each) for pid, each in environments.items()])
    meetings = {pid: meeting_of(look_at(pid)) for pid in environments}
    assert meetings[20] == meetings[21] != meetings[22]
    assert meetings[23] is meetings[24] is None


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1"])
def test_ranks_that_meet_at_the_loopback_of_two_networks_are_two_jobs(start, in_another_network, address):
    script = "import time; print('up', flush=True); time.sleep(60)"

    def rank(number, *before):
        environment = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": "23456"}
        return start([*before, sys.executable, "-c", script], env={**os.environ, **environment}).pid

    ours, other, theirs = rank(0), rank(1), rank(0, *in_another_network)
    assert set(whole_jobs([ours])) == {ours, other}
    assert whole_jobs([theirs]) == (theirs,)


def test_workers_of_ray_are_known_by_their_class():
    assert ray_class("ray::RayTrainWorker._RayTrainWorker__execute.get_next") == "RayTrainWorker"
    assert ray_class("ray::IDLE") is ray_class("python") is None
