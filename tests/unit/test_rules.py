"""Every rule three ways: it fires, it does not, it abstains for want of evidence."""

from __future__ import annotations

import msgspec
import pytest
from judgements import fired, level
from snapshot_builder import WORKER, constant, host, line, loaders, snapshot, step, steps

from aitop.diagnosis import op_cost
from aitop.diagnosis.causes import between_steps, computing, python_overhead
from aitop.diagnosis.causes import input_bound as input_bound
from aitop.diagnosis.rule import Finding
from aitop.model.snapshot import Phases
from aitop.model.steps import HookFacts
from aitop.model.verdict import Setting

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


def test_computing_workers_with_free_cores_are_too_few():
    verdict = fired(input_bound.judge(slow_workers(0.95, busy=(0.9, 0.9) + (0.05,) * 14)))
    assert verdict.subtype == "workers"


def test_workers_that_read_files_wait_for_storage():
    assert fired(input_bound.judge(slow_workers(0.05, activity="wait-disk", work="file"))).subtype == "storage"


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


# between steps ----------------------------------------------------------------------------------------------------


def test_one_checkpoint_does_not_tell_how_often_it_comes():
    records = [step(0, 6.0, save=5.9), *steps(20)]
    saving = line("save_checkpoint", 0.7, phase="save", activity="native", work="save")
    verdict = fired(between_steps.checkpoint(snapshot(records, lines=[saving])))
    assert (verdict.severity, verdict.confidence <= 0.5) == ("info", True)
    assert verdict.evidence[0].startswith("once in 21 steps so far, 5.90 s")


def test_evaluation_is_seen_only_in_training():
    records = [step(index, 1.0, evaluation=0.8) if index % 5 == 0 else step(index, 0.1) for index in range(40)]
    seen = snapshot(records, lines=[line("evaluate", 0.5, phase="evaluation", activity="native")])
    assert fired(between_steps.evaluation(seen)).where[0].function == "evaluate"
    assert between_steps.evaluation(snapshot(records, kind="inference")) is None
    assert between_steps.evaluation(snapshot(steps())) is None


# computing --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("activity", "severity"), [("wait-network", "critical"), ("native", "warning")])
def test_sampled_io_is_critical_only_where_the_kernel_says_that_it_waits(activity, severity):
    writing = line("log_metrics", 0.4, activity=activity, work="database")
    seen = snapshot(phases=Phases(forward=0.3, backward=0.3, outside=0.4), lines=[writing])
    assert fired(between_steps.host_io(seen)).severity == severity


# statements that would be silly -----------------------------------------------------------------------------------


def test_workers_without_a_core_to_run_on_are_no_fix():
    loading = line("__getitem__", 0.8, phase="data_wait", text="value = decode(raw)")
    waiting = steps(seconds=0.1, data_wait=0.08, forward=0.02, cpu=0.1)
    verdict = fired(input_bound.judge(snapshot(waiting, lines=[loading], host=host(busy=(1.0, 1.0)))))
    assert verdict.subtype == "transform"
    assert [fix.text.split()[0] for fix in verdict.fixes] == ["make"]
