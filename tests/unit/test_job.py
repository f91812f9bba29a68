"""The job is found from any process of it."""

from aitop.sources.host.job import JobFacts, meeting_of, ray_class, top_of
from aitop.sources.procfs import Stat

SPAWNED = "python -c from_multiprocessing.spawn --multiprocessing-fork"


def known(pid, argv, *, stack=None, **environment):
    stat = Stat(pid, "x", "S", pid - 1, 0, 0, 0, 1, pid, 0, 0, stack if stack is not None else pid)
    return JobFacts(stat, tuple(argv.split()), {name: str(value) for name, value in environment.items()})


def top(*chain):
    """The pid of the top; the chain is given from the top down."""
    return top_of(list(reversed(chain))).stat.pid


SHELL, TORCHRUN = known(2, "bash"), known(3, "/x/bin/python /x/bin/torchrun train.py")
RANK = known(4, "python train.py", RANK=1, WORLD_SIZE=2)


def test_a_rank_and_its_worker_lead_to_the_launcher():
    worker = known(5, "python train.py", stack=4, RANK=1, WORLD_SIZE=2)
    assert top(SHELL, TORCHRUN, RANK) == 3
    assert top(SHELL, TORCHRUN, RANK, worker) == 3
    assert top(SHELL, TORCHRUN) == 3


def test_spawned_ranks_lead_to_the_script_that_spawned_them():
    assert top(SHELL, known(3, "python train.py"), known(4, SPAWNED)) == 3


def test_a_script_of_somebodys_own_is_a_launcher_where_it_numbers_its_children():
    assert top(SHELL, known(3, "python start.py"), RANK) == 3
    assert top(SHELL, known(3, "python sweep.py"), known(4, "python train.py")) == 4
    assert top(SHELL, known(3, "python start.py"), known(4, "python train.py", RANK=0, WORLD_SIZE=1)) == 4


def test_ranks_behind_shells():
    mpi = known(4, "python train.py", OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2)
    assert top(known(1, "bash"), known(2, "mpirun -n 2 run.sh"), known(3, "/bin/bash run.sh"), mpi) == 2
    step = known(2, "slurmstepd: [7.0]")
    assert top(step, known(3, "bash"), known(4, "python train.py")) == 4


def test_what_meets_at_one_address_is_one_job():
    one = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert meeting_of(one) == meeting_of({**one, "RANK": "1"})
    assert meeting_of(one) != meeting_of({**one, "MASTER_PORT": "2"})
    assert meeting_of({**one, "WORLD_SIZE": "1"}) is None
    assert meeting_of({"MASTER_PORT": "1"}) is None


def test_workers_of_ray_by_their_class():
    assert ray_class("ray::RayTrainWorker._RayTrainWorker__execute.get_next") == "RayTrainWorker"
    assert ray_class("ray::IDLE") is None
    assert ray_class("python") is None
