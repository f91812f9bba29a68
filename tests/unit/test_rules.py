"""Every rule three ways: it fires, it does not, it abstains for want of evidence."""

from __future__ import annotations

import msgspec
import pytest
from judgements import fired, level
from snapshot_builder import WORKER, constant, host, line, loaders, snapshot, step, steps

from aitop.diagnosis import op_cost
from aitop.diagnosis.causes import between_steps, computing, optimizer, python_overhead
from aitop.diagnosis.causes import input_bound as input_bound
from aitop.diagnosis.conditions import memory
from aitop.diagnosis.rule import Finding
from aitop.model.snapshot import Phases
from aitop.model.steps import HookFacts
from aitop.model.verdict import Abstention, Setting

FEW = snapshot(steps(3), main_samples=0)


@pytest.mark.parametrize(
    "judge",
    [
        input_bound.judge,
        between_steps.checkpoint,
        between_steps.evaluation,
        between_steps.host_io,
        computing.compute_bound,
        python_overhead.judge,
        optimizer.judge,
        memory.leak,
    ],
)
def test_too_little_evidence_is_said(judge):
    told = judge(FEW)
    assert isinstance(told, Abstention) and told.reason


# input-bound ------------------------------------------------------------------------------------------------------


WAITS = line("main", 0.7, phase="data_wait", activity="wait-queue", number=40)


def slow_workers(worker_cpu, busy=(0.5, 0.5), activity="python", work=None, **fields):
    return snapshot(
        steps(seconds=0.1, data_wait=0.08, forward=0.01, backward=0.01, queue_ready=0, cpu=0.02),
        lines=[
            WAITS,
            line("__getitem__", 0.9, pid=WORKER, activity=activity, work=work),
            line("__getitem__", 0.9, pid=WORKER + 1, activity=activity, work=work),
        ],
        workers=2,
        host=host(2, worker_cpu=worker_cpu, busy=busy, **fields),
        series={"workers_cpu": constant(2 * worker_cpu)},
        facts=loaders(2),
    )


def test_sleeping_workers_are_too_few():
    verdict = fired(input_bound.judge(slow_workers(0.02)))
    assert (verdict.subtype, verdict.severity) == ("workers", "critical")
    assert verdict.share == pytest.approx(0.8, abs=0.01)
    assert verdict.speedup == pytest.approx(5.0, rel=0.02)
    assert (verdict.where[0].function, verdict.where[0].line) == ("__getitem__", 10)
    assert verdict.fixes[0].text == "num_workers 2 → 12"
    assert verdict.fixes[0].setting == Setting(name="num_workers", to=12, current=2)


def test_computing_workers_without_a_free_core_need_a_cheaper_transform():
    verdict = fired(input_bound.judge(slow_workers(0.95, busy=(1.0, 0.98))))
    assert verdict.subtype == "transform"
    assert not any(fix.text.startswith("num_workers") for fix in verdict.fixes)


def test_computing_workers_with_free_cores_are_too_few():
    verdict = fired(input_bound.judge(slow_workers(0.95, busy=(0.9, 0.9) + (0.05,) * 14)))
    assert verdict.subtype == "workers"


def test_workers_that_read_files_wait_for_storage():
    assert fired(input_bound.judge(slow_workers(0.05, activity="wait-disk", work="file"))).subtype == "storage"


def test_workers_that_collate():
    assert (
        fired(input_bound.judge(slow_workers(0.95, busy=(1.0, 1.0), activity="python", work="collate"))).subtype
        == "collate"
    )


def test_waits_at_loader_starts_are_respawning():
    records = [
        step(index, 0.05, data_wait=0.03, loader_start=0.3) if index % 10 == 0 else step(index, 0.05, data_wait=0.001)
        for index in range(40)
    ]
    records = [
        step(r.index, r.seconds + r.loader_start, data_wait=r.data_wait, loader_start=r.loader_start) for r in records
    ]
    verdict = fired(
        input_bound.judge(snapshot(records, lines=[line("main", 0.3, phase="data_wait", activity="spawn")]))
    )
    assert verdict.subtype == "respawn"
    assert "persistent_workers=True" in verdict.fixes[0].text


def test_a_loop_without_a_loader_is_input_bound_at_its_own_line():
    loop = [
        line("parse", 0.8, number=31, position="before", via=(("main", 80, None), ("batches", 40, None))),
        line("main", 0.2, phase="forward", activity="native"),
    ]
    verdict = fired(input_bound.judge(snapshot(steps(seconds=0.1, forward=0.01, backward=0.01, cpu=0.1), lines=loop)))
    assert verdict.subtype == "transform"
    assert verdict.where[0].line == 31
    assert verdict.speedup == pytest.approx(5.0, rel=0.05)


def test_idle_workers_that_were_just_started_are_respawning_without_the_hook_too():
    seen = snapshot(
        phases=Phases(data_wait=0.6, forward=0.2, backward=0.2),
        lines=[line("main", 0.6, phase="data_wait", activity="spawn"), line("__getitem__", 0.04, pid=WORKER)],
        workers=1,
    )
    assert fired(input_bound.judge(seen)).subtype == "respawn"


LOOP = (
    line("main", 0.1, phase="forward", activity="native", number=54, text="out = net(x)"),
    line("main", 0.1, phase="optimizer", activity="native", number=57, text="opt.step()"),
)


@pytest.mark.parametrize(("position", "feeds"), [("before", True), ("after", False), ("within", False)])
def test_what_stands_before_the_model_feeds_it(position, feeds):
    rows = line("main", 0.7, number=51, position=position)
    seen = snapshot(steps(seconds=0.1, forward=0.01, optimizer=0.01, cpu=0.1), lines=[rows, *LOOP])
    if feeds:
        verdict = fired(input_bound.judge(seen))
        assert verdict.subtype == "transform" and verdict.where[0].line == 51
    else:
        assert level(input_bound.judge(seen)) < input_bound.judge.band.leave


def test_python_after_the_update_is_python_between_the_phases():
    after = line("spread", 0.8, number=12, position="after", via=(("main", 59, None),))
    verdict = fired(python_overhead.judge(snapshot(steps(seconds=0.1, forward=0.02, cpu=0.1), lines=[after, *LOOP])))
    assert verdict.where[0].line == 12 and "less often" in verdict.fixes[0].text


def test_a_fed_step_is_not_input_bound():
    judged = input_bound.judge(
        snapshot(steps(seconds=0.1, data_wait=0.002, forward=0.05, backward=0.04, queue_ready=2))
    )
    assert not isinstance(judged, Finding) or judged.level < input_bound.judge.band.leave


@pytest.mark.parametrize("measured", [True, False])
def test_taking_ready_batches_from_idle_workers_is_no_wait_that_workers_could_end(measured):
    fields = {"workers": 1, "lines": [line("__getitem__", 0.04, pid=WORKER)], "host": host(1, worker_cpu=0.04)}
    if measured:
        seen = snapshot(steps(seconds=0.1, data_wait=0.03, forward=0.05, queue_ready=2), **fields)
    else:
        fields["lines"] += [line("main", 0.3, phase="data_wait", activity="wait-queue")]
        seen = snapshot(phases=Phases(data_wait=0.3, forward=0.5, backward=0.2), **fields)
    finding = fired(input_bound.judge(seen))
    assert (finding.severity, finding.subtype) == ("info", "workers")
    assert finding.fixes[0].setting == Setting(name="num_workers", to=0, current=1)
    assert 1.05 < finding.fixes[0].speedup < 1 / 0.7, "making a batch takes time without workers, too"


def test_batches_that_are_dear_to_make_are_worth_their_workers():
    """Workers that rest for 60 % of the time make in the rest more than the step waits for."""
    fields = {"workers": 1, "lines": [line("__getitem__", 0.4, pid=WORKER)], "host": host(1, worker_cpu=0.4)}
    judged = input_bound.judge(snapshot(steps(seconds=0.1, data_wait=0.03, forward=0.05, queue_ready=2), **fields))
    assert not isinstance(judged, Finding) or judged.level < input_bound.judge.band.leave


def test_without_the_hook_stacks_are_enough():
    seen = snapshot(
        phases=Phases(data_wait=0.7, forward=0.1, backward=0.2, optimizer=0.0, outside=0.0),
        lines=[WAITS, line("__getitem__", 0.9, pid=WORKER)],
        workers=1,
        host=host(1, worker_cpu=0.95, busy=(1.0, 1.0)),
        series={"workers_cpu": constant(0.95)},
    )
    verdict = fired(input_bound.judge(seen))
    assert verdict.subtype == "transform" and verdict.share == pytest.approx(0.7)


# between steps ----------------------------------------------------------------------------------------------------


def test_checkpoints_are_seen_as_bursts():
    records = [step(index, 0.5, save=0.4) if index % 10 == 0 else step(index, 0.1) for index in range(40)]
    saving = line("save_checkpoint", 0.3, phase="save", activity="native", work="save", number=52)
    verdict = fired(between_steps.checkpoint(snapshot(records, lines=[saving])))
    assert verdict.share == pytest.approx(4 * 0.4 / (4 * 0.5 + 36 * 0.1), rel=1e-3)
    assert verdict.where[0].line == 52
    assert "4 times in 40 steps (every 10)" in verdict.evidence[0]


def test_one_checkpoint_does_not_tell_how_often_it_comes():
    records = [step(0, 6.0, save=5.9), *steps(20)]
    saving = line("save_checkpoint", 0.7, phase="save", activity="native", work="save")
    verdict = fired(between_steps.checkpoint(snapshot(records, lines=[saving])))
    assert (verdict.severity, verdict.confidence <= 0.5) == ("info", True)
    assert verdict.evidence[0].startswith("once in 21 steps so far, 5.90 s")


def test_no_checkpoints_no_stall():
    assert between_steps.checkpoint(snapshot(steps())) is None


def test_evaluation_is_seen_only_in_training():
    records = [step(index, 1.0, evaluation=0.8) if index % 5 == 0 else step(index, 0.1) for index in range(40)]
    seen = snapshot(records, lines=[line("evaluate", 0.5, phase="evaluation", activity="native")])
    assert fired(between_steps.evaluation(seen)).where[0].function == "evaluate"
    assert between_steps.evaluation(snapshot(records, kind="inference")) is None
    assert between_steps.evaluation(snapshot(steps())) is None


def test_io_in_the_loop():
    writing = line("log_metrics", 0.4, activity="wait-network", work="database", text="db.execute(sql)", number=70)
    verdict = fired(between_steps.host_io(snapshot(steps(forward=0.06), lines=[writing])))
    assert verdict.where[0].line == 70 and verdict.speedup == pytest.approx(1 / 0.6, rel=0.02)
    assert between_steps.host_io(snapshot(steps(), lines=[line("train", 0.9, phase="forward")])) is None


# computing --------------------------------------------------------------------------------------------------------


def test_a_computing_step():
    verdict = fired(computing.compute_bound(snapshot(steps(seconds=0.1, forward=0.04, backward=0.05, optimizer=0.005))))
    assert verdict.severity == "info" and verdict.share == pytest.approx(0.95)


def test_what_a_computing_step_achieves_is_told_where_it_is_known():
    seen = snapshot(steps(seconds=0.1, forward=0.04, backward=0.05))
    assert not any("FLOP" in told for told in fired(computing.compute_bound(seen)).evidence)
    achieving = msgspec.structs.replace(
        seen,
        steps=msgspec.structs.replace(seen.steps, flops_per_second=41e9, mfu=0.43),
        facts=HookFacts(way="attach", python="3.11", torch="2", flops_dtype="bfloat16"),
    )
    verdict = fired(computing.compute_bound(achieving))
    assert verdict.evidence[-1] == "41 GFLOP/s achieved in bfloat16: 43 % of what the GPU can do (MFU)"
    assert verdict.fixes == ()


TINY = (
    line("forward", 0.1, phase="forward", number=22),
    line("forward", 0.3, phase="forward", activity="native", number=22),
    line("main", 0.5, phase="backward", activity="native", number=40),
    line("main", 0.1, activity="native", number=41),
)


GRU = (("python", 0.025), ("native", 0.275))


def test_a_loop_of_tiny_operations():
    facts = HookFacts(way="attach", python="3.11", torch="2", ops=4000)
    verdict = fired(
        python_overhead.judge(snapshot(steps(seconds=0.1, forward=0.04, backward=0.05), lines=TINY, facts=facts))
    )
    assert verdict.where[0].line == 22
    calls = op_cost.WHOLE_CALL * 0.1 / 0.4
    assert verdict.share == pytest.approx(0.9 * calls, abs=0.01), "what holds the lock, and what torch does around it"
    assert "around tiny operations" in verdict.title and any("may be larger" in told for told in verdict.evidence)


def test_many_operations_in_one_native_call_are_no_python():
    """An nn.GRU makes as many nodes of the graph as a loop does, and hardly ever holds the lock."""
    native = [
        msgspec.structs.replace(one, share=share) for one, share in zip(TINY, (0.015, 0.385, 0.5, 0.1), strict=True)
    ]
    facts = HookFacts(way="attach", python="3.11", torch="2", ops=4000)
    seen = snapshot(steps(seconds=0.1, forward=0.04, backward=0.05), lines=native, facts=facts)
    assert python_overhead.judge(seen) is None


def test_python_beside_a_native_loop_makes_no_loop_of_it():
    """What clears the gradients holds the lock, which tells nothing of the operations of the forward pass."""
    gru = [
        line("forward", share, phase="forward", activity=does, number=22)
        for does, share in (("python", 0.01), ("native", 0.29))
    ]
    clears = line("main", 0.03, number=41, position="within", work="tensor")
    facts = HookFacts(way="attach", python="3.11", torch="2", ops=4000)
    seen = snapshot(steps(seconds=0.1, forward=0.03, backward=0.06), lines=[*gru, clears, TINY[2]], facts=facts)
    assert fired(python_overhead.judge(seen)).share < python_overhead.judge.band.leave


def test_the_line_named_runs_python_though_a_native_loop_takes_longer():
    """Of an nn.GRU a small part holds the lock; the Python after it takes more in all, on a line with less time."""
    gru = [line("forward", share, phase="forward", activity=does, number=22) for does, share in GRU]
    own = line("distance", 0.25, number=31, position="after")
    facts = HookFacts(way="attach", python="3.11", torch="2", ops=4000)
    seen = snapshot(steps(seconds=0.1, forward=0.03, backward=0.03), lines=[*gru, own, TINY[2]], facts=facts)
    verdict = fired(python_overhead.judge(seen))
    assert verdict.where[0].line == 31 and "between its phases" in verdict.title


def test_tiny_operations_without_gradients_have_no_backward_pass():
    """Of few nodes of the graph each takes long: what is tiny is not among them."""
    facts = HookFacts(way="attach", python="3.11", torch="2", ops=20)
    lines = [line("forward", 0.2, phase="forward", number=22), *TINY[1:]]
    seen = snapshot(steps(seconds=0.1, forward=0.05, backward=0.04), lines=lines, facts=facts)
    assert fired(python_overhead.judge(seen)).share == pytest.approx(0.5 * python_overhead.BATCHED_AWAY, abs=0.01)


def test_tiny_operations_show_without_the_hook_by_who_holds_the_lock():
    shares = Phases(forward=0.4, backward=0.5, outside=0.1)
    verdict = fired(python_overhead.judge(snapshot(phases=shares, lines=TINY)))
    assert verdict.where[0].line == 22 and verdict.share == pytest.approx(0.9 * op_cost.WHOLE_CALL * 0.25, abs=0.01)
    native = [msgspec.structs.replace(one, activity="native") for one in TINY]
    assert python_overhead.judge(snapshot(phases=shares, lines=native)) is None, "large operations let go of the lock"


def test_few_large_operations_are_no_overhead():
    facts = HookFacts(way="attach", python="3.11", torch="2", ops=200)
    seen = snapshot(
        steps(seconds=0.1, forward=0.04, backward=0.05),
        lines=[line("forward", 0.4, phase="forward", activity="native", text="return self.net(x)")],
        facts=facts,
    )
    assert python_overhead.judge(seen) is None


@pytest.mark.parametrize(("activity", "severity"), [("wait-network", "critical"), ("native", "warning")])
def test_sampled_io_is_critical_only_where_the_kernel_says_that_it_waits(activity, severity):
    writing = line("log_metrics", 0.4, activity=activity, work="database")
    seen = snapshot(phases=Phases(forward=0.3, backward=0.3, outside=0.4), lines=[writing])
    assert fired(between_steps.host_io(seen)).severity == severity


# statements that would be silly -----------------------------------------------------------------------------------


def test_a_factor_that_rests_on_next_to_nothing_has_a_wide_range():
    waiting = steps(seconds=0.1, data_wait=0.0985, queue_ready=0)
    lines = [WAITS, line("__getitem__", 0.95, pid=WORKER)]
    seen = snapshot(waiting, lines=lines, workers=1, host=host(1, worker_cpu=0.02), facts=loaders(1))
    finding = input_bound.judge(seen)
    low, high = finding.verdict.speedup_range
    assert high > 10 * low


def test_one_worker_is_told_as_one():
    lines = [line("__getitem__", 0.9, pid=WORKER)]
    series = {"workers_cpu": constant(0.02)}
    waiting = steps(seconds=0.1, data_wait=0.05, queue_ready=0)
    seen = snapshot(waiting, lines=lines, workers=1, host=host(1, worker_cpu=0.02), facts=loaders(1), series=series)
    told = "1 worker at 2 % of a core, 90 % of its samples at work: it is waiting for something other than the CPU"
    assert told in fired(input_bound.judge(seen)).evidence


def test_workers_without_a_core_to_run_on_are_no_fix():
    loading = line("__getitem__", 0.8, phase="data_wait", text="value = decode(raw)")
    waiting = steps(seconds=0.1, data_wait=0.08, forward=0.02, cpu=0.1)
    verdict = fired(input_bound.judge(snapshot(waiting, lines=[loading], host=host(busy=(1.0, 1.0)))))
    assert verdict.subtype == "transform"
    assert [fix.text.split()[0] for fix in verdict.fixes] == ["make"]
