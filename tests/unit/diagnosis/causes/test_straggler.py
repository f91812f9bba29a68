"""straggler: which rank the others wait for, and why it is late."""

import msgspec
import pytest
from judgements import fired
from ranks_maker import (
    LATE_BY_INPUT,
    PIDS,
    model,
    of_both,
    past_of_ranks,
    ranks_host,
    seen,
    with_calls,
    without_hook,
)
from snapshot_builder import line, process, snapshot

from aitop.diagnosis.causes.comm_bound import comm_bound
from aitop.diagnosis.causes.straggler import straggler
from aitop.diagnosis.conditions.hang import hang
from aitop.diagnosis.judge import Judge
from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample
from aitop.model.host import HostSample, MachineSample
from aitop.model.steps import HookSample
from aitop.model.verdict import Abstention


def test_the_rank_that_waits_least_is_late_and_its_data_are_why():
    lines = [line("read", 0.6, pid=101, phase="data_wait", number=7), line("x", 0.6, pid=100, phase="data_wait")]
    finding = straggler(
        seen(past_of_ranks(*LATE_BY_INPUT), stacks=of_both(lines), working=PIDS, host=ranks_host(1000.0))
    )
    verdict = finding.verdict
    assert (verdict.subtype, verdict.ranks, verdict.where[0].line) == ("input", (1,), 7)
    assert verdict.share == pytest.approx(0.05 / 0.08)
    assert verdict.severity == "critical"


def test_a_rank_that_computes_longer_or_waits_for_a_core():
    past = past_of_ranks((0.0, 0.05, 0.06), (0.0, 0.02, 0.06))
    verdict = straggler(seen(past, lines=[])).verdict
    assert (verdict.subtype, verdict.ranks) == ("compute", (1,))
    crowded = [process(100, rank=0, run_delay=0.05), process(101, rank=1, run_delay=0.4)]
    past.add(HostSample(time=1000.0, processes=tuple(crowded), machine=MachineSample(cores=2)))
    assert straggler(seen(past)).verdict.subtype == "contention"
    assert straggler(seen(past_of_ranks((0.0, 0.021, 0.04), (0.0, 0.021, 0.04)))).level < 0.06, "equal ranks"


def test_the_line_of_a_rank_that_computes_longer_is_the_one_that_the_others_have_less_of():
    """A line has an entry for each of its activities."""
    model = [
        line("model", 0.36, pid=pid, phase="forward", number=40, parts=(("native", 0.84), ("python", 0.16)))
        for pid in PIDS
    ]
    augments = line("augment", 0.12, pid=101, number=60)
    both = of_both([*model, augments])
    picture = seen(past_of_ranks((0.0, 0.05, 0.06), (0.0, 0.02, 0.06)), stacks=both, working=PIDS)
    assert {entry.pid for ledger in picture.ledgers for entry in ledger.entries} == {*PIDS}
    assert [place.line for place in straggler(picture).verdict.where] == [60]


@pytest.mark.parametrize(
    ("gflop", "cause"), [((0.8, 5.9), "batches"), ((5.9, 5.9), "compute"), ((None, 5.9), "compute")]
)
def test_a_rank_with_longer_sequences_computes_more_operations(gflop, cause):
    past = past_of_ranks((0.0, 0.07, 0.08), (0.0, 0.02, 0.08))
    for pid, each in zip(PIDS, gflop, strict=True):
        facts = msgspec.structs.replace(past.hooks[pid].facts, flops_per_backward=each and 1e9 * each)
        past.add(HookSample(time=1000.0, pid=pid, facts=facts))
    verdict = straggler(seen(past)).verdict
    assert (verdict.subtype, verdict.ranks) == (cause, (1,))
    assert any("5.9 GFLOP, of the others 0.8" in sentence for sentence in verdict.evidence) is (cause == "batches")


def test_a_rank_without_a_core_in_its_waits_is_the_one_that_all_wait_for_and_no_exchange():
    past = past_of_ranks((0.0, 0.06, 0.08), (0.0, 0.06, 0.08))
    crowded = [process(100, rank=0, run_delay=0.02, waited=0.1), process(101, rank=1, run_delay=0.52, waited=0.9)]
    past.add(HostSample(time=1000.0, processes=tuple(crowded), machine=MachineSample(cores=2)))
    picture = seen(past)
    assert (picture.ranks.held, picture.ranks.held_by) == (pytest.approx(0.0384), 101)
    verdict = straggler(picture).verdict
    assert (verdict.subtype, verdict.ranks, verdict.share) == ("contention", (1,), pytest.approx(0.48))
    assert "comes back late from each exchange" in verdict.title
    assert any("for 42 ms of a step, the others 1.6 ms" in sentence for sentence in verdict.evidence)
    assert comm_bound(picture).level < 0.12
    alike = past_of_ranks((0.0, 0.06, 0.08), (0.0, 0.06, 0.08))
    assert straggler(seen(alike)).level < 0.06 < comm_bound(seen(alike)).level


def test_a_rank_whose_gpu_is_throttled():
    past = past_of_ranks((0.0, 0.05, 0.06), (0.0, 0.02, 0.06))
    devices = [GpuDevice(index=at, sm_clock=clock, processes=(GpuProcess(pid=100 + at),))
               for at, clock in enumerate((1980, 1200))]  # fmt: skip
    past.add(GpuSample(time=1000.0, devices=tuple(devices)))
    verdict = straggler(seen(past)).verdict
    assert (verdict.subtype, verdict.ranks) == ("throttled", (1,))


def test_who_comes_last_to_each_collective():
    picture = seen(with_calls((0.04, 0.001), (0.001, 0.011))).ranks.collectives
    told = [(one.place, one.last, round(one.waited, 4), one.often) for one in picture]
    assert told == [(1, 1, 0.039, 1.0), (2, 0, 0.01, 1.0)]
    late = past_of_ranks((0.0, 0.07, 0.08), (0.05, 0.02, 0.08))
    assert straggler(seen(late)).verdict.evidence[-1].startswith("scaling"), "no collective was seen"


def test_the_share_of_their_time_in_which_ranks_work_is_told():
    picture = seen(past_of_ranks(*LATE_BY_INPUT))
    assert picture.ranks.efficiency == pytest.approx((0.03 + 0.08) / 0.16)
    assert any("scaling efficiency 69 %" in sentence for sentence in straggler(picture).verdict.evidence)


def test_without_the_hook_the_rank_whose_thread_rests_least_is_late():
    late = line("augment", 0.4, pid=101, phase="forward", activity="native", number=60)
    lines = [*model(1.0, 0.6), late]
    picture = without_hook(0.4, 0.9, lines=lines)
    verdict = fired(straggler(picture))
    assert (verdict.subtype, verdict.ranks, verdict.share) == ("compute", (1,), pytest.approx(0.5))
    assert [place.line for place in verdict.where] == [60]
    # The others may have half of the work, or it may be left out.
    assert verdict.speedup_range[1] == pytest.approx(2.0) and verdict.speedup_range[0] < 1.34
    assert straggler(without_hook(0.8, 0.82, lines=lines)) is None, "as long as the other"
    assert fired(straggler(without_hook(0.1, 0.4, lines=lines, delay=0.3))).share == pytest.approx(0.3)
    alone = without_hook(0.4, 0.9, lines=lines, library="/lib/python3.11/site-packages/torch/nn/functional.py")
    assert isinstance(straggler(alone), Abstention), "two runs side by side"
    assert comm_bound(picture).level < 0.12, "the late one hardly rests"


def test_without_the_hook_a_rank_that_waits_for_data_does_not_wait_for_the_others():
    data = line("read", 0.5, pid=101, phase="data_wait", activity="wait-disk", number=7)
    sleeps = line("read", 0.5, pid=101, phase="data_wait", activity="sleep", number=8)
    verdict = fired(straggler(without_hook(0.4, 0.4, lines=[*model(1.0, 0.5), sleeps])))
    assert (verdict.subtype, verdict.ranks, verdict.where[0].line) == ("input", (1,), 8)
    finding = straggler(without_hook(0.4, 0.45, lines=[*model(1.0, 0.5), data]))
    assert {entry.phase for entry in finding.claims} == {"data"}, "no other cause has to explain that it waits"


def test_what_a_late_rank_waits_for_alone_is_no_exchange():
    sleeps = line("read", 0.5, pid=101, phase="data_wait", activity="sleep", number=8)
    picture, judge = without_hook(0.4, 0.4, lines=[*model(1.0, 0.5), sleeps]), Judge()
    moments = (msgspec.structs.replace(picture, time=float(at)) for at in range(9))
    shown = [[verdict.id for verdict in judge.judge(moment).verdicts] for moment in moments]
    assert "straggler" in shown[-1] and not any("comm-bound" in ids for ids in shown)


def test_where_a_device_computes_a_host_that_rests_says_nothing_of_the_ranks():
    device = GpuDevice(index=0, mine=True, processes=tuple(GpuProcess(pid=pid) for pid in PIDS))
    gpu = GpuSample(time=1000.0, devices=(device,))
    assert isinstance(straggler(without_hook(0.4, 0.9, lines=model(1.0, 1.0), gpu=gpu)), Abstention)


def test_too_few_steps_or_one_rank():
    assert isinstance(straggler(seen(past_of_ranks())), Abstention)
    assert isinstance(comm_bound(seen(past_of_ranks())), Abstention)
    assert straggler(snapshot([])) is None and comm_bound(snapshot([])) is None and hang(snapshot([])) is None
