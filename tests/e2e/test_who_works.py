"""Programs whose work is not done by the main thread of the process that was asked for."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from aitop.sources.ring.reader import find_ring

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROGRAMS = Path(__file__).parent / "programs"
SERVERS = Path(__file__).parent / "servers"
LIFE_SECONDS = 300
# Long enough for what must not be said to be said.
LEAST_SECONDS = 4.0


def below(pid):
    """Every process below this one."""
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def roles(report):
    return {member["pid"]: member["role"] for member in report["target"]["processes"]}


def mains(report):
    """The places of the entries that stand for the leading threads of the processes that work."""
    return [entry["where"] for entry in report["ledger"] if entry["lane"] == "main" and entry["where"]]


def check_nothing_stays(process):
    """The program runs on, and nothing of ours is in it."""
    assert process.alive()
    assert [pid for pid in {process.pid, *below(process.pid)} if find_ring(pid)] == []


@pytest.mark.parametrize(("method", "flags"), [("spawn", ()), ("fork", ("--no-hook",))])
def test_trainers_that_another_process_started_and_joins(method, flags, training, watched):
    process = training(PROGRAMS / "hogwild.py", method, 2, LIFE_SECONDS).wait_steps(1)

    def check(report):
        parts = roles(report)
        trainers = {pid for pid, role in parts.items() if role == "rank"}
        assert parts[process.pid] == "launcher" and trainers and trainers <= below(process.pid), parts
        assert report["target"]["kind"] == "training"
        places = mains(report)
        assert places and {place["pid"] for place in places} <= trainers
        assert {Path(place["file"]).name for place in places} == {"hogwild.py"}
        accused = {pid for verdict in report["verdicts"] for pid in verdict["processes"]}
        assert process.pid not in accused, report["verdicts"]
        wrong = [verdict for verdict in report["verdicts"] if verdict["id"] in ("straggler", "input-bound")]
        assert not wrong, "they form no group"
        assert flags or report["step"]["count"], "the hook counts the steps of a trainer"

    report = watched(process.pid, check, *flags, least=LEAST_SECONDS)
    if not flags:
        trainer = next(pid for pid, role in roles(report).items() if role == "rank")
        whoever_asks_for_a_worker_gets_that_worker(trainer, watched)
    check_nothing_stays(process)


def whoever_asks_for_a_worker_gets_that_worker(asked, watched):
    def check(report):
        assert report["target"]["working"][0]["pid"] == asked, report["target"]
        assert asked in {place["pid"] for place in mains(report)}

    watched(asked, check, "--no-hook")


def test_a_server_whose_model_runs_in_a_worker(training, watched):
    process = training(SERVERS / "worker_server.py", LIFE_SECONDS).wait_steps(1)

    def check(report):
        workers = {pid for pid, role in roles(report).items() if role == "rank"}
        assert len(workers) == 1 and workers <= below(process.pid), roles(report)
        assert report["target"]["kind"] == "inference"
        places = mains(report)
        assert {place["pid"] for place in places} == workers
        assert "predict" in {place["function"] for place in places}
        assert all(workers <= set(verdict["processes"]) for verdict in report["verdicts"]), report["verdicts"]

    def check_steps(report):
        check(report)
        assert report["step"]["count"]

    watched(process.pid, check, "--no-hook", least=LEAST_SECONDS)
    watched(process.pid, check_steps, least=LEAST_SECONDS)
    check_nothing_stays(process)


@pytest.mark.parametrize("kind", ["pool", "http", "asyncio"])
def test_a_model_in_another_thread_than_the_main_one(kind, training, watched):
    process = training(SERVERS / "thread_server.py", kind, LIFE_SECONDS).wait_steps(1)

    def check(report):
        assert report["target"]["kind"] == "inference"
        forwards = [entry for entry in report["ledger"] if entry["lane"] == "main" and entry["phase"] == "forward"]
        assert forwards and forwards[0]["where"]["function"] == "predict", report["ledger"]

    watched(process.pid, check, "--no-hook")


@pytest.mark.parametrize(("kind", "method"), [("pool", "fork"), ("executor", "spawn")])
def test_a_pool_of_processes_that_prepares_while_the_main_one_waits(kind, method, training, watched):
    process = training(PROGRAMS / "pool.py", kind, method, LIFE_SECONDS).wait_steps(1)

    def check(report):
        places = mains(report)
        assert places and {place["pid"] for place in places} <= below(process.pid)
        assert places[0]["function"] == "prepare"
        verdict = report["verdicts"][0]
        assert verdict["where"][0]["function"] == "prepare", report["verdicts"]
        assert set(verdict["processes"]) <= below(process.pid), "the one that waits in map() loses nothing"

    watched(process.pid, check, least=LEAST_SECONDS)
    check_nothing_stays(process)


def test_a_script_below_a_script_below_a_shell(training, watched):
    process = training(PROGRAMS / "wrapped.py", LIFE_SECONDS).wait_steps(1)

    def check(report):
        parts = roles(report)
        (child,) = below(process.pid)
        assert (parts[process.pid], parts[child]) == ("launcher", "rank")
        assert [member["pid"] for member in report["target"]["working"]] == [child]

    watched(process.pid, check, "--no-hook")
