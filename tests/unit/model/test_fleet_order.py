"""Which job and which rank come first, and what the command says."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aitop.model.fleet import Finding, FleetJob, FleetRank, by_lateness, by_waste, command_for, straggler_of, worst_of

JOB = FleetJob(job="j", nodes=("a",), ranks=8)


def names(jobs):
    return [job.job for job in by_waste(jobs)]


def test_stalled_first_then_by_waste_then_what_is_not_measured():
    jobs = [
        replace(JOB, job="little", wasted=0.1),
        replace(JOB, job="unmeasured", finding=Finding(verdict="x", severity="warning", share=0.1)),
        replace(JOB, job="a-little-less", finding=Finding(verdict="x", severity="warning", share=0.05)),
        replace(JOB, job="much", wasted=7.0),
        replace(JOB, job="stalled", wasted=0.0, stalled=1),
    ]
    wanted = ["stalled", "much", "little", "unmeasured", "a-little-less"]
    assert names(jobs) == names(jobs[::-1]) == wanted


def ranks(*waits):
    return [FleetRank(node=f"n{at // 2}", rank=at, pid=100 + at, wait=wait) for at, wait in enumerate(waits)]


@pytest.mark.parametrize(
    ("waits", "late"),
    [
        ((0.4, 0.4, 0.02, 0.4), 2),
        ((0.4, None, 0.02, 0.4), 2),
        ((0.10, 0.12, 0.05, 0.11), None),
        ((0.0, 0.15), 0),
        ((0.5,), None),
        ((None, None), None),
        ((), None),
    ],
)
def test_the_straggler_is_who_waits_least(waits, late):
    found = straggler_of(ranks(*waits))
    assert (found and found.rank) == late


def test_the_first_rank_is_the_one_to_look_at():
    job = ranks(0.4, 0.4, 0.02, 0.4)
    assert by_lateness(job)[0].rank == worst_of(job).rank == 2
    job[3] = replace(job[3], stalled=True)
    assert by_lateness(job)[0].rank == worst_of(job).rank == 3


def test_without_waits_the_most_serious_verdict_is_the_one_to_look_at():
    job = ranks(None, None, None)
    job[1] = replace(job[1], finding=Finding(verdict="input-bound", severity="critical"))
    assert worst_of(job).rank == 1
    assert worst_of([]) is None


RANK = FleetRank(node="gpu-17.example.org", rank=0, pid=4242)


def test_the_command():
    assert command_for(RANK) == "ssh -t gpu-17.example.org aitop --pid 4242"


@pytest.mark.parametrize("node", ["", "-oProxyCommand=x", "a;rm -rf ~", "a b", "$(x)", "a\n", "ü", "a" * 300, "'"])
def test_no_label_gets_into_a_shell(node):
    assert command_for(replace(RANK, node=node)) is None
    assert command_for(replace(RANK, pid=None)) is None


def test_a_verdict_of_severity_info_is_no_loss():
    computes = FleetJob(job="a", nodes=("n",), ranks=8, finding=Finding(verdict="compute-bound", share=0.99))
    waits = FleetJob(
        job="b", nodes=("n",), ranks=1, finding=Finding(verdict="input-bound", severity="warning", share=0.4)
    )
    assert [job.job for job in by_waste([computes, waits])] == ["b", "a"]
