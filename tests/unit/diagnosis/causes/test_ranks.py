"""Several ranks: who is late and why, what the exchange costs, and who keeps all of them waiting."""

import msgspec
import pytest
from judgements import fired
from snapshot_builder import line, process, snapshot, stacks
from stack_maker import window

from aitop.diagnosis.causes.comm_bound import comm_bound
from aitop.diagnosis.causes.straggler import straggler
from aitop.diagnosis.conditions.hang import hang, odd_one
from aitop.diagnosis.judge import Judge
from aitop.engine.history import History
from aitop.engine.snapshot.aggregate import aggregate
from aitop.engine.snapshot.ranks import OnCores, apart, held, on_cores, own_part, ranks_view
from aitop.engine.snapshot.standstill import standing_for, standstill, waiting_for, wants_look
from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample
from aitop.model.host import HostSample, MachineSample
from aitop.model.ranks import ExchangeNotes, Standing, Standstill
from aitop.model.snapshot import CallNode, Phases, Target, Tick
from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.model.steps import CallSite, DdpInfo, HookFacts, HookSample, StepRecord
from aitop.model.verdict import Abstention

PIDS = (100, 101)
BACKWARD = Frame("_engine_run_backward", "/lib/python3.11/site-packages/torch/autograd/graph.py", 9)
BARRIER = Frame("barrier", "/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9)


def user(number, guarded=None):
    return Frame("train", "/x/train.py", number, True, None, guarded)


def host(time, **fields):
    fields = {"voluntary_switches": 0.0, "main_cpu": 0.0, "state": "S", "channel": "futex_do_wait"} | fields
    ranks = tuple(process(pid, rank=rank, local_rank=rank, world_size=2, local_world_size=2, **fields)
                  for rank, pid in enumerate(PIDS))  # fmt: skip
    return HostSample(time=time, processes=ranks, machine=MachineSample(cores=2))


def history(*rank_steps, until=1000.0, ddp=None):
    """Ranks with steps of (data_wait, backward, seconds), all ending at the same moments."""
    past = History(Target(pid=PIDS[0], command="x"))
    past.add(host(until, voluntary_switches=50.0))
    for pid, (data, backward, seconds) in zip(PIDS, rank_steps, strict=False):
        records = tuple(
            StepRecord(index=number, end=until - (40 - number) * seconds, seconds=seconds, data_wait=data, forward=0.01,
                       backward=backward, backwards=1, communication=0.0, communication_apart=0.0)
            for number in range(40)
        )  # fmt: skip
        facts = HookFacts(way="attach", python="3", torch="2", world_size=2, ddp=ddp or DdpInfo(backward=0.02))
        past.add(HookSample(time=until, pid=pid, steps=records, facts=facts))
    return past


def seen(past, **fields):
    return snapshot(ranks=ranks_view(past, 1000.0), **fields)


def of_both(lines):
    """The stacks of both ranks, with these lines."""
    made = stacks(lines)
    return msgspec.structs.replace(
        made, processes=tuple(msgspec.structs.replace(made.processes[0], pid=pid) for pid in PIDS)
    )


LATE_BY_INPUT = ((0.0, 0.07, 0.08), (0.05, 0.02, 0.08))


def test_the_rank_that_waits_least_is_late_and_its_data_are_why():
    lines = [line("read", 0.6, pid=101, phase="data_wait", number=7), line("x", 0.6, pid=100, phase="data_wait")]
    finding = straggler(seen(history(*LATE_BY_INPUT), stacks=of_both(lines), working=PIDS, host=host(1000.0)))
    verdict = finding.verdict
    assert (verdict.subtype, verdict.ranks, verdict.where[0].line) == ("input", (1,), 7)
    assert verdict.share == pytest.approx(0.05 / 0.08)
    assert verdict.severity == "critical"


def test_a_rank_that_computes_longer_or_waits_for_a_core():
    past = history((0.0, 0.05, 0.06), (0.0, 0.02, 0.06))
    verdict = straggler(seen(past, lines=[])).verdict
    assert (verdict.subtype, verdict.ranks) == ("compute", (1,))
    crowded = [process(100, rank=0, run_delay=0.05), process(101, rank=1, run_delay=0.4)]
    past.add(HostSample(time=1000.0, processes=tuple(crowded), machine=MachineSample(cores=2)))
    assert straggler(seen(past)).verdict.subtype == "contention"
    assert straggler(seen(history((0.0, 0.021, 0.04), (0.0, 0.021, 0.04)))).level < 0.06, "equal ranks"


def test_the_line_of_a_rank_that_computes_longer_is_the_one_that_the_others_have_less_of():
    """A line has an entry for each of its activities."""
    model = [
        line("model", 0.36, pid=pid, phase="forward", number=40, parts=(("native", 0.84), ("python", 0.16)))
        for pid in PIDS
    ]
    augments = line("augment", 0.12, pid=101, number=60)
    both = of_both([*model, augments])
    picture = seen(history((0.0, 0.05, 0.06), (0.0, 0.02, 0.06)), stacks=both, working=PIDS)
    assert {entry.pid for ledger in picture.ledgers for entry in ledger.entries} == {*PIDS}
    assert [place.line for place in straggler(picture).verdict.where] == [60]


@pytest.mark.parametrize(
    ("gflop", "cause"), [((0.8, 5.9), "batches"), ((5.9, 5.9), "compute"), ((None, 5.9), "compute")]
)
def test_a_rank_with_longer_sequences_computes_more_operations(gflop, cause):
    past = history((0.0, 0.07, 0.08), (0.0, 0.02, 0.08))
    for pid, each in zip(PIDS, gflop, strict=True):
        facts = msgspec.structs.replace(past.hooks[pid].facts, flops_per_backward=each and 1e9 * each)
        past.add(HookSample(time=1000.0, pid=pid, facts=facts))
    verdict = straggler(seen(past)).verdict
    assert (verdict.subtype, verdict.ranks) == (cause, (1,))
    assert any("5.9 GFLOP, of the others 0.8" in sentence for sentence in verdict.evidence) is (cause == "batches")


def test_a_rank_without_a_core_in_its_waits_is_the_one_that_all_wait_for_and_no_exchange():
    past = history((0.0, 0.06, 0.08), (0.0, 0.06, 0.08))
    crowded = [process(100, rank=0, run_delay=0.02, waited=0.1), process(101, rank=1, run_delay=0.52, waited=0.9)]
    past.add(HostSample(time=1000.0, processes=tuple(crowded), machine=MachineSample(cores=2)))
    picture = seen(past)
    assert (picture.ranks.held, picture.ranks.held_by) == (pytest.approx(0.0384), 101)
    verdict = straggler(picture).verdict
    assert (verdict.subtype, verdict.ranks, verdict.share) == ("contention", (1,), pytest.approx(0.48))
    assert "comes back late from each exchange" in verdict.title
    assert any("for 42 ms of a step, the others 1.6 ms" in sentence for sentence in verdict.evidence)
    assert comm_bound(picture).level < 0.12
    alike = history((0.0, 0.06, 0.08), (0.0, 0.06, 0.08))
    assert straggler(seen(alike)).level < 0.06 < comm_bound(seen(alike)).level


def test_on_a_gpu_the_device_tells_how_long_a_backward_pass_waits_for_the_exchange():
    """The host launches it in 20 ms, and waits for all of it where it reads the loss."""
    past = history((0.0, 0.02, 0.55), (0.0, 0.02, 0.55), ddp=DdpInfo(backward=0.2))
    for hook in past.hooks.values():
        timed = [msgspec.structs.replace(record, device_backward=0.45) for record in hook.steps]
        hook.steps.clear()
        hook.steps.extend(timed)
    picture = seen(past)
    verdict = comm_bound(picture).verdict
    assert (verdict.id, verdict.share) == ("comm-bound", pytest.approx(0.25 / 0.55, abs=0.01))
    phases = picture.ranks.ranks[0].phases
    assert (phases.backward, phases.wait) == (pytest.approx(0.2), pytest.approx(0.25))
    assert sum(filter(None, msgspec.structs.astuple(phases))) == pytest.approx(0.55, abs=0.01)
    # Where the device timed some steps only, they are not compared with the others.
    first = past.hooks[PIDS[0]]
    first.steps[-1] = msgspec.structs.replace(first.steps[-1], device_backward=None)
    assert comm_bound(seen(past)).level < 0.12


def test_a_rank_whose_gpu_is_throttled():
    past = history((0.0, 0.05, 0.06), (0.0, 0.02, 0.06))
    devices = [GpuDevice(index=at, sm_clock=clock, processes=(GpuProcess(pid=100 + at),))
               for at, clock in enumerate((1980, 1200))]  # fmt: skip
    past.add(GpuSample(time=1000.0, devices=tuple(devices)))
    verdict = straggler(seen(past)).verdict
    assert (verdict.subtype, verdict.ranks) == ("throttled", (1,))


def test_who_comes_last_to_each_collective():
    picture = seen(with_calls((0.04, 0.001), (0.001, 0.011))).ranks.collectives
    told = [(one.place, one.last, round(one.waited, 4), one.often) for one in picture]
    assert told == [(1, 1, 0.039, 1.0), (2, 0, 0.01, 1.0)]
    late = history((0.0, 0.07, 0.08), (0.05, 0.02, 0.08))
    assert straggler(seen(late)).verdict.evidence[-1].startswith("scaling"), "no collective was seen"


def test_the_share_of_their_time_in_which_ranks_work_is_told():
    picture = seen(history(*LATE_BY_INPUT))
    assert picture.ranks.efficiency == pytest.approx((0.03 + 0.08) / 0.16)
    assert any("scaling efficiency 69 %" in sentence for sentence in straggler(picture).verdict.evidence)


def spawned(*pids):
    """Ranks that nobody numbers but the order of their start, each with a worker."""
    ranks = [process(pid, rank=rank) for rank, pid in enumerate(pids)]
    workers = [process(pid + 50, "loader-worker", rank=rank) for rank, pid in enumerate(pids)]
    return HostSample(time=1000.0, processes=(*ranks, *workers), machine=MachineSample(cores=2))


def test_ranks_and_their_workers_have_the_number_that_the_rank_gives_itself():
    past = History(Target(pid=100, command="x"))
    past.add(spawned(*PIDS))
    for pid in PIDS:
        facts = HookFacts(way="attach", python="3", torch="2", world_size=16, rank=pid - 92)
        past.add(HookSample(time=1000.0, pid=pid, steps=(), facts=facts))
    seen = aggregate(past, Tick(time=1000.0, wall=0.0))
    assert {process.pid: process.rank for process in seen.processes} == {100: 8, 101: 9, 150: 8, 151: 9}
    assert {view.pid: view.rank for view in seen.ranks.ranks} == {100: 8, 101: 9}


def test_ranks_and_their_workers_keep_their_number_when_another_rank_ends():
    past = History(Target(pid=1, command="x"))
    past.add(spawned(11, 12, 13, 14))
    past.add(spawned(11, 13, 14))
    seen = aggregate(past, Tick(time=1000.0, wall=0.0))
    assert {process.pid: process.rank for process in seen.processes} == {11: 0, 13: 2, 14: 3, 61: 0, 63: 2, 64: 3}
    assert {view.pid: view.rank for view in seen.ranks.ranks} == {11: 0, 13: 2, 14: 3}


DDP = "/lib/python3.11/site-packages/torch/nn/parallel/distributed.py"


def without_hook(*used, lines, delay=0.0, library=DDP, **fields):
    """Ranks whose main threads use so much of a core, looked at from outside. `library` is on their stacks."""
    past = History(Target(pid=PIDS[0], command="x"))
    ranks = [
        process(pid, rank=rank, local_rank=rank, world_size=2, local_world_size=2, main_cpu=cpu, run_delay=delay)
        for rank, (pid, cpu) in enumerate(zip(PIDS, used, strict=True))
    ]
    sample = HostSample(time=1000.0, processes=tuple(ranks), machine=MachineSample(cores=2))
    past.add(sample)
    below = CallNode(function="forward", file=library, line=9, samples=50)
    tree = CallNode(function="main", file="/x/train.py", line=40, samples=100, user=True, children=(below,))
    sampled = of_both(lines)
    processes = tuple(msgspec.structs.replace(each, tree=tree) for each in sampled.processes)
    sampled = msgspec.structs.replace(sampled, processes=processes)
    return seen(past, stacks=sampled, working=PIDS, phases=Phases(), host=sample, **fields)


def model(*shares):
    return [
        line("model", share, pid=pid, phase="forward", activity="native", number=40)
        for pid, share in zip(PIDS, shares, strict=True)
    ]


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


def test_without_the_hook_exchange_is_what_even_the_rank_that_rests_least_rests():
    verdict = fired(comm_bound(without_hook(0.5, 0.4, lines=model(1.0, 1.0))))
    assert (verdict.share, verdict.severity) == (pytest.approx(0.5), "warning")
    assert verdict.confidence < 0.5, "a rank that is late now and then looks the same"
    assert comm_bound(without_hook(0.9, 0.9, lines=model(1.0, 1.0))).level < 0.12
    alone = without_hook(
        0.5, 0.4, lines=model(1.0, 1.0), library="/lib/python3.11/site-packages/torch/nn/functional.py"
    )
    assert isinstance(comm_bound(alone), Abstention), "two runs side by side"


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
    assert isinstance(straggler(seen(history())), Abstention)
    assert isinstance(comm_bound(seen(history())), Abstention)
    assert straggler(snapshot([])) is None and comm_bound(snapshot([])) is None and hang(snapshot([])) is None


def test_the_exchange_is_what_even_the_last_rank_waits():
    ddp = DdpInfo(backward=0.02, backend="gloo", gradient_bytes=10**8, communication=0.05, overlap=0.01)
    facts = HookFacts(way="attach", python="3", torch="2", ddp=ddp)
    finding = comm_bound(seen(history((0.0, 0.06, 0.08), (0.0, 0.06, 0.08), ddp=ddp), facts=facts))
    assert (finding.verdict.subtype, finding.verdict.share) == ("volume", pytest.approx(0.5))
    assert finding.verdict.fixes[0].speedup == pytest.approx(1 / (1 - 0.375), abs=0.01)
    assert any(
        "overlaps with the backward" in sentence and sentence.startswith("20") for sentence in finding.verdict.evidence
    )
    late = history(*LATE_BY_INPUT)
    assert comm_bound(seen(late)).level < 0.02, "waiting for a late rank is no exchange"


def test_phases_and_single_steps_say_the_same_of_what_a_rank_waits_for_in_its_backward_pass():
    ddp = DdpInfo(backward=0.02, backend="gloo", gradient_bytes=10**8, communication=0.05, overlap=0.01)
    seen = aggregate(history((0.0, 0.06, 0.08), (0.0, 0.06, 0.08), ddp=ddp), Tick(time=1000.0, wall=0.0))
    phases, records = seen.steps.phases, seen.steps.recent
    total = sum(step.seconds for step in records)
    assert 0.0 < phases.backward < 0.5 < phases.communication + phases.backward
    assert sum(step.backward for step in records) / total == pytest.approx(phases.backward)
    assert sum(step.communication_apart for step in records) / total == pytest.approx(phases.communication)


def test_a_rank_whose_others_are_all_elsewhere_waits_for_them_or_for_the_exchange():
    alone = msgspec.structs.replace(host(1000.0), processes=host(1000.0).processes[:1])

    def seen(*steps):
        past = history(steps)
        past.add(alone)
        return aggregate(past, Tick(time=1000.0, wall=0.0))

    waits = seen(0.0, 0.07, 0.08)
    assert waits.steps.phases.communication == pytest.approx(0.05 / 0.08)
    verdict = comm_bound(waits).verdict
    assert (verdict.subtype, verdict.severity, verdict.share) == ("elsewhere", "warning", pytest.approx(0.625))
    assert "1 of 2 ranks are on other machines" in verdict.evidence[0]
    assert isinstance(straggler(waits), Abstention)
    assert comm_bound(seen(0.05, 0.02, 0.08)).level < 0.05


def with_calls(*rank_calls, estimated=False):
    """Ranks whose steps of 0.1 s have collectives of these lengths, and no other waits."""
    past = history((0.0, 0.02, 0.1), (0.0, 0.02, 0.1))
    for pid, calls in zip(PIDS, rank_calls, strict=True):
        steps = [
            msgspec.structs.replace(step, communication=sum(calls), communication_apart=sum(calls),
                                    collective_calls=calls, collectives=len(calls), estimated=estimated)
            for step in past.hooks[pid].steps
        ]  # fmt: skip
        past.hooks[pid].steps.clear()
        past.hooks[pid].steps.extend(steps)
    return past


def test_now_one_rank_is_the_last_and_now_another_within_a_step():
    picture = seen(with_calls((0.04, 0.001), (0.001, 0.04)))
    assert picture.ranks.exchange == pytest.approx(0.002)
    assert comm_bound(picture).level < 0.06


def test_many_small_exchanges_name_their_lines():
    site = CallSite(kind="collective", name="barrier", file="/x/train.py", line=88, function="train", calls=40,
                    seconds=0.9, bytes=0)  # fmt: skip
    facts = HookFacts(way="attach", python="3", torch="2", ddp=DdpInfo(gradient_bytes=10**6), calls=(site,))
    past = with_calls((0.02, 0.03), (0.02, 0.03))
    verdict = comm_bound(seen(past, facts=facts, records=list(past.hooks[PIDS[0]].steps))).verdict
    assert (verdict.subtype, verdict.where[0].line) == ("latency", 88)
    assert "barrier at train.py:88" in verdict.fixes[0].text


def test_waiting_for_a_core_is_no_exchange():
    busy = with_calls((0.02,), (0.02,))
    for second in range(3):
        busy.add(host(1000.0 + second, run_delay=0.15))
    assert seen(busy).ranks.exchange == pytest.approx(0.005)


def test_cores_that_exchanging_takes_from_computing_are_part_of_what_it_costs():
    busy = with_calls((0.04,), (0.04,))
    for second in range(3):
        sample = host(1000.0 + second, run_delay=0.2, main_cpu=0.5, cpu=0.9)
        busy.add(msgspec.structs.replace(sample, machine=MachineSample(cores=2, core_busy=(0.9, 0.9))))
    picture = seen(busy)
    assert (picture.ranks.exchange, picture.ranks.apart) == (pytest.approx(0.04), pytest.approx(0.04))
    verdict = comm_bound(picture).verdict
    assert (verdict.share, verdict.speedup) == (pytest.approx(0.4), pytest.approx(2.5))
    assert any("without any exchange a step would take 40 ms" in sentence for sentence in verdict.evidence)


def test_steps_that_were_only_counted_are_not_compared():
    assert seen(with_calls((0.02,), (0.02,), estimated=True)).ranks.steps == 0


def still(*frames, steps=False, seconds=8, dumped=999.0, **fields):
    past = history((0.0, 0.02, 0.05), (0.0, 0.02, 0.05), until=990.0) if steps else History(Target(pid=1, command="x"))
    for second in range(seconds):
        past.add(host(1000.0 - seconds + 1 + second, **fields))
    table = tuple(dict.fromkeys(frame for stack in frames for frame in stack))
    threads = tuple(
        ThreadStack(pid=pid, thread="MainThread", main=True, frames=tuple(table.index(frame) for frame in stack))
        for pid, stack in zip(PIDS, frames, strict=False)
    )
    if threads:
        past.add(StackDump(time=dumped, frames=table, threads=threads))
    return past


def test_a_rank_in_a_lock_is_the_odd_one():
    stand = standstill(still((user(9), BACKWARD), (user(5),)), 1000.0)
    odd = odd_one(stand)
    assert (odd.subtype, odd.ranks) == ("rank-blocked", (1,))
    assert hang(snapshot([], standstill=stand)).verdict.where[0].line == 5


@pytest.mark.parametrize(
    ("first", "second", "subtype"),
    [
        ((user(12, "if log:"), BARRIER), (user(9), BACKWARD), "skipped-collective"),
        ((user(12, "if a:"), BARRIER), (user(14, "else of if a:"), BACKWARD), "mismatched-collectives"),
    ],
)
def test_ranks_under_conditions(first, second, subtype):
    odd = odd_one(standstill(still(first, second), 1000.0))
    assert odd.subtype == subtype and (subtype != "skipped-collective" or odd.ranks == (1,))


@pytest.mark.parametrize(
    ("channel", "cpu", "stands"),
    [
        ("do_wait", 0.9, False),
        ("do_wait", 0.0, True),
        ("futex_wait", 0.9, True),
        # A loader's worker that imports before it reads what it is to do.
        ("anon_pipe_write", 0.9, False),
        ("anon_pipe_write", 0.0, True),
    ],
)
def test_a_run_that_waits_for_a_child_at_work_does_not_stand(channel, cpu, stands):
    past = History(Target(pid=1, command="x"))
    for second in range(10):
        sample = host(991.0 + second, channel=channel)
        child = process(77, "other", cpu=cpu)
        child = msgspec.structs.replace(child, ppid=sample.processes[0].pid)
        past.add(msgspec.structs.replace(sample, processes=(*sample.processes, child)))
    assert (standing_for(past, 1000.0) > 5.0) is stands


def test_while_a_run_stands_no_other_rule_claims_its_time():
    stand = standstill(still((user(9), BACKWARD), (user(5),)), 1000.0)
    lines = [line("train", 0.9, activity="sleep", number=5)]
    judged = hang(snapshot([], standstill=stand, lines=lines))
    assert sum(entry.share for entry in judged.claims) == pytest.approx(1.0)


def test_the_condition_may_stand_further_out_but_not_above_all_ranks():
    main = Frame("<module>", "/x/train.py", 99, True, None, "if __name__ == '__main__':")
    save = Frame("save", "/x/train.py", 3, True)
    odd = odd_one(
        standstill(still((main, user(12, "if rank == 0:"), save, BARRIER), (main, user(9), BACKWARD)), 1000.0)
    )
    assert (odd.subtype, odd.ranks) == ("skipped-collective", (1,))
    verdict = hang(
        snapshot([], standstill=standstill(still((user(12, "if rank == 0:"), save, BARRIER)), 1000.0))
    ).verdict
    assert "under `if rank == 0:`" in " ".join(verdict.evidence)
    assert odd_one(standstill(still((main, user(12), save, BARRIER), (main, user(9), BACKWARD)), 1000.0)).ranks == (1,)


def test_a_rank_that_is_gone_is_missed_by_what_the_launcher_said():
    sample = host(1000.0)
    alone = HostSample(time=1000.0, processes=sample.processes[:1], machine=sample.machine)
    past = still((user(9), BARRIER))
    past.hosts.append(alone)
    stand = standstill(past, 1000.0)
    assert stand.gone == (1,)
    assert (odd_one(stand).subtype, odd_one(stand).ranks) == ("rank-gone", (1,))


def test_ranks_of_a_job_that_has_ended_are_not_missed_in_the_next_one():
    """A script starts one job after the other below the same launcher."""
    past = still((user(9), BARRIER), (user(9), BARRIER))
    assert past.rank_numbers == {100: 0, 101: 1}
    for second in range(8):
        later = process(200, rank=0, world_size=1, voluntary_switches=0.0, main_cpu=0.0, state="S")
        past.add(HostSample(time=1001.0 + second, processes=(later,), machine=MachineSample(cores=2)))
    assert past.rank_numbers == {200: 0}
    assert standstill(past, 1008.0) is None or not standstill(past, 1008.0).gone


def test_a_rank_that_had_ended_before_anybody_looked_is_missed_where_nobody_collected_it():
    known = process(100, rank=0, world_size=2, voluntary_switches=0.0, main_cpu=0.0, state="S")
    zombie = process(101, role="other", state="Z")
    for processes, gone in (((known, zombie), (1,)), ((known,), ())):
        past = History(Target(pid=1, command="x"))
        past.add(still((user(9), BARRIER)).dump)
        for second in range(8):
            past.add(HostSample(time=993.0 + second, processes=processes, machine=MachineSample(cores=2)))
        stand = standstill(past, 1000.0)
        assert (stand.gone, stand.elsewhere) == (gone, 1 - len(gone))


def test_a_rank_that_nobody_saw_is_gone_where_all_ranks_meet_on_this_machine():
    past = History(Target(pid=100, command="x"))
    for second in range(7):
        alone = process(100, rank=0, world_size=2, voluntary_switches=0.0, main_cpu=0.0, state="S")
        past.add(HostSample(time=993.0 + second, processes=(alone,), machine=MachineSample(cores=2)))
    threads = (ThreadStack(pid=100, thread="MainThread", main=True, frames=(0, 1)),)
    past.add(StackDump(time=999.0, frames=(user(9), BARRIER), threads=threads))
    assert odd_one(standstill(past, 1000.0)).subtype == "rank-elsewhere"
    past.add(ExchangeNotes(time=999.0, local=True))
    assert standstill(past, 1000.0).elsewhere == 0
    odd = odd_one(standstill(past, 1000.0))
    assert (odd.subtype, odd.ranks) == ("rank-gone", (1,))
    assert odd.title.startswith("rank 1 has ended")
    meets = Standing(pid=100, rank=0, role="rank", doing="collective", call="init_process_group")
    assert "has not come, or has ended" in odd_one(Standstill(seconds=9.0, ranks=(meets,), gone=(1,))).title
    title = odd_one(Standstill(seconds=9.0, ranks=(meets,), gone=(1, 2))).title
    assert title.startswith("ranks 1 and 2 have not come, or have ended, and the others wait for them")


def test_several_ranks_that_stand_elsewhere_stand():
    waits = Standing(pid=100, rank=0, role="rank", doing="collective", call="all_reduce", where=user(9))
    one, other = (Standing(pid=100 + rank, rank=rank, role="rank", doing="own", where=user(4)) for rank in (1, 2))
    assert odd_one(Standstill(seconds=9.0, ranks=(waits, one))).title.startswith("rank 1 stands in its own code at")
    both = odd_one(Standstill(seconds=9.0, ranks=(waits, one, other))).title
    assert both.startswith("ranks 1 and 2 stand in their own code at")
    assert odd_one(Standstill(seconds=9.0, ranks=(waits,), elsewhere=3)).title.startswith("rank 0 waits in all_reduce")


def test_the_only_rank_that_is_left_of_nobody_knows_how_many():
    waits = Standing(pid=100, rank=0, role="rank", doing="collective", call="new_group", where=user(9))
    odd = odd_one(Standstill(seconds=9.0, ranks=(waits,)))
    assert (odd.subtype, odd.ranks) == ("rank-elsewhere", ())
    alone = msgspec.structs.replace(waits, call="synchronize")
    assert odd_one(Standstill(seconds=9.0, ranks=(alone,))).subtype == "rank-blocked"


def test_a_loader_worker_in_a_lock():
    loading = Standing(pid=100, rank=0, role="rank", doing="loading", call="DataLoader")
    worker = Standing(pid=200, rank=0, role="loader-worker", doing="fetching", where=user(65), frames=(user(65),))
    odd = odd_one(Standstill(seconds=9.0, ranks=(loading,), workers=(worker,)))
    assert (odd.subtype, odd.ranks, odd.standing) == ("loader-worker", (0,), (worker,))


@pytest.mark.parametrize(
    ("ranks", "whose"),
    [((0, 0), " of rank 0"), ((0, 1), " of ranks 0 and 1"), ((None, None), "")],
)
def test_the_ranks_of_all_loader_workers_in_a_lock_are_named(ranks, whose):
    loading = [Standing(pid=100 + at, rank=number, role="rank", doing="loading") for at, number in enumerate(ranks)]
    workers = [
        Standing(pid=200 + at, rank=number, role="loader-worker", doing="fetching", where=user(65), frames=(user(65),))
        for at, number in enumerate(ranks)
    ]
    stand = Standstill(seconds=9.0, ranks=tuple(loading), workers=tuple(workers))
    verdict = fired(hang(snapshot([], standstill=stand)))
    assert verdict.title == f"2 loader workers{whose} do not come back at train.py:65"
    assert any(sentence.startswith(f"loader workers 200 and 201{whose}: in ") for sentence in verdict.evidence)


def test_a_job_that_moves_or_stands_only_briefly_does_not_hang():
    stacks_of_both = (user(9), BACKWARD), (user(5),)
    for found in (
        still(*stacks_of_both, seconds=3),
        still(*stacks_of_both, voluntary_switches=20.0),
        still(*stacks_of_both, main_cpu=0.9),
        # As on a kernel without schedstat.
        still(*stacks_of_both, main_cpu=None, cpu=0.9),
        still(*stacks_of_both, read_bytes=1e6),
        still(*stacks_of_both, channel="hrtimer_nanosleep"),
    ):
        assert standstill(found, 1000.0) is None


@pytest.mark.parametrize(("kind", "stands"), [("infer", False), ("generate", False), ("train", True)])
def test_what_answers_requests_and_gets_none_does_not_stand(kind, stands):
    past = still((user(9),), (user(5),), seconds=20)
    made = tuple(StepRecord(index=at, end=970.0 + at / 10, seconds=0.1, kind=kind) for at in range(40))
    past.add(HookSample(time=974.0, pid=PIDS[0], steps=made))
    assert (standstill(past, 1000.0) is not None) is stands


def test_a_run_that_was_never_seen_to_update_stands_if_it_waits_for_its_loader():
    loading = Frame("_try_get_data", "/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 9)
    found = still((user(9), loading), (user(5), loading), seconds=20)
    found.stepped[PIDS[0]] = 980.0
    assert {rank.doing for rank in standstill(found, 1000.0).ranks} == {"loading"}


@pytest.mark.parametrize(("frames", "stands"), [((user(9),), False), ((user(9), BARRIER), True)])
def test_a_worker_of_a_server_that_went_is_missed_only_where_others_meet_it(frames, stands):
    past = still(frames, frames, seconds=20)
    sample = past.hosts.last
    past.add(msgspec.structs.replace(sample, processes=sample.processes[:1], engine="torchserve 0.12"))
    assert (standstill(past, 1000.0) is not None) is stands


def test_a_server_without_requests_does_not_stand_though_its_ranks_wait_in_a_collective():
    past = still((BARRIER,), (BARRIER,), seconds=20)
    assert standstill(past, 1000.0) is not None
    last = past.hosts.last
    past.add(msgspec.structs.replace(last, engine="sglang 0.5"))
    assert standstill(past, 1000.0) is None


def test_a_sample_tells_of_the_time_since_the_one_before_it():
    past = History(Target(pid=PIDS[0], command="x"))
    for second, switches in enumerate((50.0, 50.0, 0.0, 0.0)):
        past.add(host(1000.0 + second, voluntary_switches=switches))
    assert standing_for(past, 1003.0) == 2.0
    assert standing_for(History(Target(pid=1, command="x")), 1.0) == 0.0


def test_looks_are_asked_for_only_while_nothing_moves():
    assert wants_look(still(), 1000.0, 900.0)
    assert not wants_look(still(voluntary_switches=20.0), 1000.0, 900.0)
    assert not wants_look(still((user(9), BACKWARD)), 1000.0, 900.0), "there is one of this standstill"


@pytest.mark.parametrize(("frames", "looks"), [((), range(3, 9)), ((user(9), BACKWARD), range(16, 30))])
def test_looks_that_cannot_read_any_stack_become_rare(frames, looks):
    past, looked, begun = History(Target(pid=1, command="x")), 0.0, 0
    for second in range(200):
        now = 1000.0 + second
        past.add(host(now))
        if wants_look(past, now, looked):
            looked, begun = now, begun + 1
            thread = ThreadStack(pid=PIDS[0], thread="MainThread", main=True, frames=tuple(range(len(frames))))
            for dump in (StackDump(time=now + 0.1, frames=frames, threads=(thread,)),) if frames else ():
                past.add(dump)
    assert begun in looks


def test_a_standstill_is_not_explained_by_stacks_from_before_it():
    past = still((user(12, "if log:"), BARRIER), (user(9), BACKWARD), dumped=900.0, seconds=6)
    assert standstill(past, 1000.0) is None, "without stacks it may still be a pause"
    past.add(host(1003.0))
    assert {rank.doing for rank in standstill(past, 1003.0).ranks} == {None}


def test_without_the_hook_a_run_that_stepped_and_stands_in_its_own_code_for_a_minute_hangs():
    def stands(seconds, *before):
        past = History(Target(pid=PIDS[0], command="x"))
        for frames in before:
            past.add(window(900.0, (PIDS[0], "MainThread", True, frames, 40)))
        for second in range(seconds):
            sample = host(1001.0 - seconds + second)
            only = msgspec.structs.replace(sample.processes[0], world_size=1, local_world_size=1)
            past.add(msgspec.structs.replace(sample, processes=(only,)))
        thread = ThreadStack(pid=PIDS[0], thread="MainThread", main=True, frames=(0,))
        past.add(StackDump(time=999.0, frames=(user(5),), threads=(thread,)))
        return standstill(past, 1000.0)

    stepping, reading = [user(9), BACKWARD], [user(3)]
    verdict = hang(snapshot([], standstill=stands(70, stepping))).verdict
    assert (verdict.subtype, verdict.where[0].line, verdict.confidence) == ("rank-blocked", 5, 0.6)
    assert stands(30, stepping) is None, "a pause that it may make on its own"
    assert stands(70, reading) is stands(70) is None, "nothing shows that it has anything to do"


def test_a_pause_that_is_usual_for_the_run_is_no_hang():
    past = still((user(9), BACKWARD), (user(5),), steps=True)
    assert standstill(past, 1000.0) is not None
    slow = StepRecord(index=41, end=992.0, seconds=30.0)
    past.add(HookSample(time=992.0, pid=PIDS[0], steps=(slow,)))
    assert standing_for(past, 1000.0) > 4 and standstill(past, 1000.0) is None


def test_what_a_stack_waits_for():
    loader = Frame("_try_get_data", "/site-packages/torch/utils/data/dataloader.py", 3)
    worker = Frame("_worker_loop", "/site-packages/torch/utils/data/_utils/worker.py", 3)
    queue = Frame("Queue.get", "/lib/python3.11/multiprocessing/queues.py", 3)
    poll = Frame("Connection._poll", "/lib/python3.11/multiprocessing/connection.py", 3)
    assert waiting_for([user(1), loader, queue]) == ("loading", "DataLoader")
    assert waiting_for([worker, queue, poll])[0] == "unused"
    assert waiting_for([worker, user(3)])[0] == "fetching"
    assert waiting_for([user(3), queue]) == ("own", "Queue.get")


@pytest.mark.parametrize(
    ("function", "file"), [("call", "/home/ada/grpc/rows.py"), ("backward", "/home/ada/lightning_1/x.py")]
)
def test_no_file_of_the_users_says_what_a_stack_waits_for(function, file):
    assert waiting_for([Frame(function, file, 3, True)]) == ("own", None)


ALONE = OnCores(ran=0.1, delay=0.0, wanted=0.1, waited=0.0)


def saved(late, *others, work=0.02, other_work=0.02):
    found = {100: late} | {101 + at: one for at, one in enumerate(others)}
    return held(found, {pid: work if pid == 100 else other_work for pid in found}, 0.1)


def test_waits_of_threads_that_the_main_thread_sleeps_for_count_too():
    assert saved(OnCores(ran=0.1, delay=0.4), ALONE) == (100, pytest.approx(0.04))
    assert saved(OnCores(ran=0.1, delay=0.4, wanted=0.8, waited=0.6), ALONE) == (100, pytest.approx(0.06))
    pool = OnCores(ran=0.1, delay=0.4, wanted=4.0, waited=3.5)
    assert saved(pool, ALONE, other_work=0.0) == (100, pytest.approx(0.09)), "no longer than the sleep"
    assert saved(pool, ALONE, work=0.06, other_work=0.0) == (100, pytest.approx(0.08))
    same = OnCores(ran=0.2, delay=0.3, wanted=0.5, waited=0.3)
    assert saved(same, same, same)[1] == 0, "ranks that share too few cores are not told from each other"
    assert 0 < saved(OnCores(ran=0.2, delay=0.33, wanted=0.53, waited=0.33), same)[1] < 0.1 * 0.1


def test_a_step_gets_no_shorter_than_the_others_need():
    late = OnCores(ran=0.1, delay=0.6, wanted=0.7, waited=0.6)
    assert saved(late, ALONE, OnCores(ran=0.1, delay=0.1, wanted=0.75, waited=0.1))[1] == pytest.approx(0.015)
    own_threads = OnCores(ran=0.1, delay=0.0, wanted=0.6, waited=0.4)
    assert saved(late, ALONE, own_threads)[1] == pytest.approx(0.06), "they wait for each other"
    asleep = saved(late, ALONE, other_work=0.07)
    assert asleep[1] == pytest.approx(0.03), "asleep in its own work, as for a device"


def test_without_an_exchange_its_threads_take_no_cores():
    slow = OnCores(ran=0.3, delay=0.2, wanted=0.9, waited=0.4)
    work = {100: 0.06, 101: 0.05}
    assert apart({100: slow, 101: slow}, work, 0.1, own=1.0, at_hand=2.0) == pytest.approx(0.04)
    assert apart({100: slow, 101: slow}, work, 0.1, own=0.5, at_hand=2.0) == pytest.approx(0.05)
    assert apart({100: slow, 101: slow}, work, 0.1, own=1.0, at_hand=0.5) == pytest.approx(0.12), "half a core"
    assert apart({}, work, 0.1, own=1.0, at_hand=2.0) == 0.06, "the kernel tells nothing"


def test_the_part_of_the_cores_that_the_job_uses_itself():
    past = History(Target(pid=100, command="x"))
    assert own_part(past) == 0
    for busy in ((1.0, 0.6), None, (0.1, 0.1)):
        machine = MachineSample(cores=2, core_busy=busy)
        past.add(HostSample(time=1.0, processes=(process(100, cpu=0.4), process(101, cpu=0.4)), machine=machine))
    assert own_part(past) == pytest.approx(1.6 / 2.4), "what is read of a process may be more than of all cores"


def test_ranks_without_figures_of_the_kernel_are_not_compared():
    assert held({100: ALONE}, {100: 0.1, 101: 0.1}, 0.1) == (None, 0.0)
    past = History(Target(pid=100, command="x"))
    ranks = (process(100, rank=0, main_cpu=0.2, run_delay=0.1), process(101, rank=1, main_cpu=0.2), process(9, "other"))
    past.add(HostSample(time=1.0, processes=ranks, machine=MachineSample(cores=2)))
    assert on_cores(past) == {100: OnCores(ran=0.2, delay=0.1)}


def rank(number, state="S"):
    return Standing(pid=100 + number, rank=number, role="rank", state=state)


def worker(pid, state="S"):
    return Standing(pid=pid, rank=0, role="loader-worker", state=state)


@pytest.mark.parametrize(
    ("ranks", "workers", "title", "pids"),
    [
        ([rank(0, "T")], [worker(7, "T")], "rank 0 is stopped by a signal or a debugger", "100 7"),
        ([rank(0), rank(1, "T")], [], "rank 1 is stopped by a signal or a debugger: all others wait for it", "101"),
        ([rank(0, "t"), rank(1, "t")], [], "ranks 0 and 1 are stopped by a signal or a debugger", "100 101"),
        (
            [rank(0)],
            [worker(7, "T")],
            "loader worker 7 is stopped by a signal or a debugger: all others wait for it",
            "7",
        ),
    ],
)
def test_who_is_stopped_and_who_waits(ranks, workers, title, pids):
    odd = odd_one(Standstill(seconds=9.0, ranks=tuple(ranks), workers=tuple(workers)))
    assert (odd.subtype, odd.title, odd.fix) == ("stopped", title, f"let it go on: kill -CONT {pids}")
