"""`aitop diagnose` on training runs that know nothing of aitop."""

from __future__ import annotations

from pathlib import Path

import pytest
from expected import BY_NAME

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LEAST_SECONDS = 4.0
# Beside other tests the computing takes several times as long, and is to stay small beside the planted wait.
NARROW = 128
NOT_ENOUGH_EVIDENCE = 5


def check(report, name):
    """The primary verdict is the planted fault, at the guilty line."""
    scenario = BY_NAME[name]
    primary = report["verdicts"][0]
    assert primary["id"] == scenario.verdict, primary
    if scenario.subtypes:
        assert primary["subtype"] in scenario.subtypes, primary
    if scenario.guilty:
        where = primary["where"][0]
        assert where["file"] == str(scenario.script)
        assert where["line"] in scenario.guilty_lines(), where
    return primary


def check_waits(report, name):
    """It is certain that it waits for its data, and why and where."""
    primary = check(report, name)
    assert primary["severity"] == "critical"
    assert primary["share"] > 0.3
    assert primary["speedup"] > 1.2
    assert primary["fixes"]


def test_a_run_that_waits_for_its_workers_is_told_why_and_where(training, watched):
    process = training("tutorial_loader", "--width", NARROW).wait_steps(10)

    def check_all(report):
        check_waits(report, "tutorial_loader")
        check_contract(report, process.pid)

    watched(process.pid, check_all, least=LEAST_SECONDS)
    assert process.alive()


def test_a_run_that_waits_for_a_request_at_each_sample_is_told_why_and_where(training, watched):
    process = training("tutorial_latency", "--width", NARROW).wait_steps(10)

    watched(process.pid, lambda report: check_waits(report, "tutorial_latency"))

    assert process.alive()


def check_contract(report, pid):
    """What scripts rely on, in the report of a training run with two workers."""
    assert report["schema"] == 1
    assert report["target"]["pid"] == pid
    assert report["target"]["kind"] == "training"
    roles = [member["role"] for member in report["target"]["processes"]]
    assert roles.count("rank") == 1
    assert roles.count("loader-worker") == 2
    assert report["sources"]["hook"]["state"] == "ok"
    assert report["sources"]["stacks"]["state"] == "ok"
    assert report["step"]["count"] > 10
    assert sum(share or 0.0 for share in report["step"]["phases"].values()) == pytest.approx(1.0, abs=0.1)


def test_a_healthy_run_is_compute_bound_and_not_warned(training, watched):
    process = training("healthy_mlp").wait_steps(10)

    def check_healthy(report):
        check(report, "healthy_mlp")
        assert [verdict["id"] for verdict in report["verdicts"] if verdict["severity"] != "info"] == []

    watched(process.pid, check_healthy, least=LEAST_SECONDS)


def test_losses_are_the_same_bit_for_bit_with_aitop_coming_and_going(training, diagnose, tmp_path: Path):
    alone_file, watched_file = tmp_path / "alone", tmp_path / "watched"
    alone = training("tutorial_loader", "--fixed", "--seed", 3, "--losses", alone_file)
    watched = training("tutorial_loader", "--fixed", "--seed", 3, "--losses", watched_file)
    watched.wait_steps(1)

    for _ in range(2):
        report = diagnose(watched.pid, 6, allowed=(0, NOT_ENOUGH_EVIDENCE))
        assert report["sources"]["hook"]["state"] == "ok", report["sources"]["hook"]
        assert report["step"]["count"] > 0

    watched.stop()
    with_aitop = watched_file.read_text().split()
    alone.wait_losses(alone_file, len(with_aitop))
    assert len(set(with_aitop)) > 20
    assert with_aitop == alone_file.read_text().split()[: len(with_aitop)]
