"""Who is who in process trees that people run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitop.sources.host.command_lines import RankNumbers
from aitop.sources.host.roles import Facts, assign

TRACKER = ("python", "-c", "from multiprocessing.resource_tracker import main;main(5)")
FORKSERVER = ("python", "-c", "from multiprocessing.forkserver import main; main(8, 9, [])")
SPAWNED = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork")
TRAIN = ("python", "train.py")


class Known:
    """Evidence given in advance."""

    def __init__(self, trains=(), frameworks=(), steps=()):
        self._trains, self._frameworks, self._steps = trains, frameworks, steps

    def trains(self, pid):
        return pid in self._trains

    def has_framework(self, pid):
        return pid in self._frameworks

    def steps(self, pid):
        return pid in self._steps


def process(pid, ppid, argv=TRAIN, *, comm="python", forked=False, rank=None, local=None, world=None, python=None):
    if isinstance(argv, str):
        argv = tuple(argv.split())
    is_python = "python" in argv[0] if python is None else python
    return Facts(pid, ppid, pid, comm, argv, is_python, forked, RankNumbers(rank, local, world))


def worker(pid, ppid, argv=TRAIN, forked=True, **more):
    return process(pid, ppid, argv, comm="pt_data_worker", forked=forked, **more)


def roles(*processes, **known):
    return {pid: (place.role, place.numbers.rank) for pid, place in assign(processes, Known(**known)).items()}


@pytest.mark.parametrize(
    "workers",
    [(worker(11, 10), worker(12, 10)), (process(11, 10, forked=True), process(12, 10, SPAWNED))],
    ids=["named", "of a torch that does not name them"],
)
def test_a_single_process_with_workers(workers):
    assert roles(process(10, 1), *workers) == {10: ("rank", 0), 11: ("loader-worker", 0), 12: ("loader-worker", 0)}
    forked = roles(process(10, 1), worker(11, 10), process(12, 10, forked=True))
    assert forked[12] == ("other", None), "a fork beside named workers is not one of them"


def test_spawned_and_fork_server_workers():
    spawned = roles(process(10, 1), process(11, 10, TRACKER), worker(12, 10, SPAWNED, forked=False))
    assert spawned == {10: ("rank", 0), 11: ("helper", None), 12: ("loader-worker", 0)}
    served = roles(process(10, 1), process(11, 10, FORKSERVER), worker(12, 11, FORKSERVER))
    assert served == {10: ("rank", 0), 11: ("helper", None), 12: ("loader-worker", 0)}


def test_numbers_that_were_only_inherited_do_not_count():
    tree = [process(10, 1, rank=0, world=1)]
    tree += [process(pid, 10, SPAWNED, rank=0, world=1) for pid in (11, 12)]
    assert roles(*tree, trains={11, 12}) == {10: ("launcher", None), 11: ("rank", 0), 12: ("rank", 1)}


def test_a_trainer_that_starts_its_peers_is_rank_0():
    places = roles(process(10, 1), process(11, 10, rank=1, local=1, world=2), worker(12, 10), frameworks=(10,))
    assert places == {10: ("rank", 0), 11: ("rank", 1), 12: ("loader-worker", 0)}


def test_a_python_that_starts_a_training_script_is_a_launcher():
    tree = [process(10, 1, "python sweep.py"), process(11, 10)]
    assert roles(*tree, frameworks={11}) == {10: ("launcher", None), 11: ("rank", 0)}
    assert roles(*tree, frameworks={10, 11}) == {10: ("rank", 0), 11: ("other", None)}


def test_trainers_that_were_seen_to_step_below_a_process_that_joins_them():
    tree = [process(10, 1), process(11, 10, TRACKER), process(12, 10, SPAWNED), process(13, 10, SPAWNED)]
    joined = roles(*tree, process(14, 13, SPAWNED), steps={12, 13})
    assert joined == {
        10: ("launcher", None),
        11: ("helper", None),
        12: ("rank", None),
        13: ("rank", None),
        14: ("loader-worker", None),
    }, "without a group they have no numbers"
    served = roles(*tree, steps={12})
    assert served[12] == ("rank", None) and served[13][0] == "loader-worker", "a sibling may do anything else"


def test_a_trainer_whose_child_steps_too_is_no_launcher():
    places = roles(process(10, 1), process(12, 10, SPAWNED), steps={10, 12})
    assert places == {10: ("rank", 0), 12: ("rank", None)}


def test_a_script_that_was_seen_to_step_below_one_that_has_loaded_torch_as_well():
    tree = [process(9, 1, "bash run.sh"), process(10, 9), process(11, 10, "python train.py --child")]
    assert roles(*tree, frameworks={10, 11}, steps={11}) == {
        9: ("launcher", None),
        10: ("launcher", None),
        11: ("rank", None),
    }


def test_what_a_rank_starts_on_the_side():
    places = roles(
        process(10, 1),
        process(11, 10, "wandb-core --port 1", python=False),
        process(12, 10, "sh -c nvidia-smi"),
        process(13, 12, "nvidia-smi"),
        process(14, 10, "python prepare.py"),
        process(15, 12, "python prepare.py"),
    )
    known = {10: "rank", 11: "helper", 12: "other", 13: "helper", 14: "other", 15: "other"}
    assert {pid: role for pid, (role, _) in places.items()} == known


def test_processes_without_their_parent():
    assert roles(worker(11, 10, forked=False)) == {11: ("loader-worker", None)}
    assert roles(process(12, 10, SPAWNED)) == {12: ("rank", None)}
    assert roles(process(10, 1), process(11, 99, forked=True))[11] == ("other", None), "its parent died"
    newer = process(12, 1)
    assert roles(newer, process(11, 12, forked=True))[11] == ("other", None), "its parent's pid was taken"


COMMANDS = [TRAIN, TRACKER, FORKSERVER, SPAWNED, ("bash",), ("mpirun",), ("python", "/bin/torchrun"), ()]


@given(
    st.lists(
        st.builds(
            Facts,
            pid=st.integers(1, 12),
            ppid=st.integers(0, 12),
            start=st.integers(0, 3),
            comm=st.sampled_from(["python", "pt_data_worker", "x"]),
            argv=st.sampled_from(COMMANDS),
            python=st.booleans(),
            forked=st.booleans(),
            numbers=st.builds(RankNumbers, st.none() | st.integers(0, 3), st.none() | st.integers(0, 3), st.none()),
        ),
        max_size=12,
    ),
    st.sets(st.integers(1, 12)),
)
def test_any_tree_gets_known_roles(processes, trains):
    places = assign(processes, Known(trains=trains, frameworks=trains))
    assert set(places) <= {facts.pid for facts in processes}
    for place in places.values():
        assert place.role in ("launcher", "rank", "loader-worker", "helper", "other")
        assert place.numbers.rank is None or place.role in ("rank", "loader-worker")


def test_a_script_that_starts_ranks_stays_a_launcher_when_the_first_of_them_dies():
    assert roles(process(10, 1), process(11, 10, rank=1, local=1, world=2)) == {10: ("launcher", None), 11: ("rank", 1)}
