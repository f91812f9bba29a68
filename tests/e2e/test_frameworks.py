"""A hook that comes and goes in real training programs: the framework's own steps, true phases, the same losses."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import watch
from waiting import line_of
from watch import PHASES, Script, check_losses, check_nothing_stays, check_steps

pytestmark = [pytest.mark.e2e, pytest.mark.early]


@pytest.fixture
def script(tmp_path):
    """`script(name, *kinds)` starts a script of tests/e2e/frameworks."""
    started = []

    def start(name, *kinds):
        started.append(Script(name, tmp_path, kinds))
        return started[-1]

    yield start
    for process in started:
        process.end()


def needs(module):
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed (it is in the extra dev)")


def shapes(seen):
    """What the steps were made of: (forwards, backwards, samples)."""
    return {(record.forwards, record.backwards, record.samples) for record in seen.records[2:]}


LOOPS = {
    "plain": (1, 1, 4),
    "bound": (1, 1, 4),
    "accumulate": (3, 3, 12),
    "amp": (1, 1, 4),
    "gan": (4, 2, 8),
    "loaders": (1, 1, 12),
}


COMPILED = ("compiled", "compiled_optimizer", "compiled_step")


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    """One process that trains in plain loops of all shapes, and then in compiled ones."""
    process = Script("loops.py", tmp_path_factory.mktemp("loops"), (*LOOPS, *COMPILED))
    yield process
    process.end()


@pytest.mark.slow
def test_plain_loops_of_all_shapes(loops):
    for kind, shape in LOOPS.items():
        seen = loops.finish(kind, loops.watch(kind))
        check_losses(seen)
        check_nothing_stays(seen)
        # Of a forward that was saved before the hook came, only the modules that it calls are seen.
        check_steps(seen, ("data_wait", "backward", "optimizer") if kind == "bound" else PHASES)
        assert shapes(seen) == {shape}, kind
        assert 4 in {info.batch_size for info in seen.facts.loaders}
    workers = [(loader.workers, loader.prefetch, loader.persistent) for loader in seen.facts.loaders]
    assert sorted(workers, key=str) == [(0, None, False), (1, 3, True)]


@pytest.mark.slow
def test_torch_compile_does_not_notice(loops):
    for kind in LOOPS:
        # Those that no test has watched end at once.
        (loops.folder / f"{kind}.stop").touch()
    for kind in COMPILED:
        seen = loops.finish(kind, loops.watch(kind))
        check_losses(seen)
        check_nothing_stays(seen)
        counters = [step["dynamo"] for step in seen.steps]
        assert counters[seen.before - 1]["graphs"] > 0
        # From before the hook came until after it left.
        for count in ("graphs", "breaks", "recompiles", "compilations"):
            assert counters[seen.before - 1][count] == counters[seen.left][count] == counters[-1][count], (kind, count)
        assert {count["frames_of_the_hook"] for count in counters} == {0}
        # The injected line is looked at where it comes in while compiled code has just called something.
        assert counters[-1]["frames"] - counters[seen.before - 1]["frames"] < 20
        # Without an optimizer to be seen in compiled code, steps are told from backward passes.
        assert {record.backwards for record in seen.records} == {1}
        assert all(record.samples == 4 for record in seen.records if kind != "compiled_step")


@pytest.mark.slow
@needs("transformers")
@needs("accelerate")
def test_hugging_face_trainer_and_accelerate(script):
    process = script("hf.py", "trainer", "accelerated")
    for kind in ("trainer", "accelerated"):
        seen = process.finish(kind, process.watch(kind))
        check_losses(seen)
        check_nothing_stays(seen)
        check_steps(seen)
        assert shapes(seen) == {(2, 2, 4)}
        assert seen.facts.root == "GPT2LMHeadModel"
        assert seen.facts.loaders[0].batch_size == 2


@pytest.mark.slow
@needs("lightning")
def test_lightning(script):
    process = script("pl.py", "automatic", "accumulated", "manual")
    for kind, shape in {"automatic": (1, 1, 4), "accumulated": (2, 2, 8), "manual": (2, 2, 8)}.items():
        seen = process.finish(kind, process.watch(kind))
        check_losses(seen)
        check_nothing_stays(seen)
        check_steps(seen)
        assert shapes(seen) == {shape}, kind


@pytest.mark.slow
def test_two_ranks_with_ddp_and_fsdp(script, tmp_path):
    process = script("ranks.py", "replicated", "sharded")
    process.until(lambda: (tmp_path / "pid1").exists(), "ranks")
    first, second = (int((tmp_path / f"pid{rank}").read_text()) for rank in range(2))
    for kind in ("replicated", "sharded"):
        seen = process.watch(kind, first, "0", shows_collectives if kind == "sharded" else shows_ddp)
        other = process.watch(kind, second, "1", shows_collectives)
        for rank, of_rank in enumerate((seen, other)):
            process.finish(kind, of_rank, str(rank))
            check_losses(of_rank)
            check_nothing_stays(of_rank)
            check_steps(of_rank)
            assert shapes(of_rank) == {(1, 1, 4)}
            assert (of_rank.facts.rank, of_rank.facts.world_size) == (rank, 2)
        check_collectives(seen, kind)


# What the script itself calls, by the function in which it does.
OWN = {("broadcast", "over"), ("all_reduce", "train")}


def counted(records):
    """The steps whose collectives were all counted: what counts them comes some steps late, in the middle of one."""
    return [record for record in records if record.collectives is not None][1:]


def sites_of(facts):
    return {(site.name, site.function): site for site in facts.calls if site.kind == "collective"}


def shows_collectives(facts, records):
    # Facts are written now and then: the first ones may know of only a part of a step.
    return sites_of(facts).keys() >= OWN and len(counted(records)) > 3


def shows_ddp(facts, records):
    return facts.ddp and shows_collectives(facts, records)


def check_collectives(seen, kind):
    """Two of the script's own in each step; those of FSDP lie within forward and backward."""
    records = counted(seen.records)
    assert "collective" in seen.facts.watches
    if kind == "replicated":
        assert {record.collectives for record in records} == {2}
        assert all(record.communication_apart == record.communication > 0 for record in records)
        ddp = seen.facts.ddp
        assert (ddp.backend, ddp.gradient_bytes) == ("gloo", 780)
        assert ddp.backward > 0.0 < ddp.communication
    else:
        assert all(record.collectives > 2 for record in records)
        assert all(0 < record.communication_apart < record.communication for record in records)
    for name in OWN:
        site = sites_of(seen.facts)[name]
        assert Path(site.file).name == "ranks.py"
        assert site.bytes == 4 * site.calls


LEASE = 1.0


def test_a_monitor_that_is_killed_leaves_nothing(script, tmp_path):
    process = script("loops.py", "plain")
    process.until(lambda: len(process.notes("plain.steps")) > 3, "steps")
    for _ in range(3):
        # The second and the third come while the hook of the one before is still there.
        monitor = lone_monitor(process.process.pid)
        try:
            assert line_of(monitor)
        finally:
            monitor.kill()
            monitor.wait()
    process.until(lambda: not process.notes("plain.steps")[-1]["changed"], "end of the hook")
    (tmp_path / "plain.stop").touch()
    process.until((tmp_path / "plain.done").exists, "end")
    steps, again = process.notes("plain.steps"), process.notes("plain.again")
    assert [step["losses"] for step in steps] == [step["losses"] for step in again]
    assert any(step["changed"] for step in steps)


def lone_monitor(pid):
    command = [sys.executable, str(Path(watch.__file__).with_name("lone_monitor.py")), str(pid), str(LEASE)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
