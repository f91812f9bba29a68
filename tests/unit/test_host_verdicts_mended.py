"""What the verdicts around the host once got wrong on whole runs, each reduced to a snapshot."""

from __future__ import annotations

import msgspec
import pytest
from snapshot_builder import RANK, WORKER, constant, host, line, snapshot, step, steps

from aitop.diagnosis import between_steps, gil, input_bound
from aitop.diagnosis.composition import composed
from aitop.diagnosis.rule import Finding
from aitop.model.snapshot import Phases, ThreadShare
from aitop.model.verdict import Verdict, Where


def fired(judgement):
    assert isinstance(judgement, Finding), judgement
    return judgement.verdict


def level(judgement):
    return judgement.level if isinstance(judgement, Finding) else 0.0


# results sent away, below the model -------------------------------------------------------------------------------

MODEL = line("main", 0.2, phase="forward", activity="compute", number=80, text="scores = net(ids)")


def sending(text, number=83, function="tell"):
    above = (("main", number, text),)
    return line(function, 0.7, activity="io-network", number=70, text="urlopen(url, data=body)", via=above)


@pytest.mark.parametrize(
    "known", [{"records": steps(seconds=0.1, forward=0.02)}, {"phases": Phases(forward=0.2, outside=0.8)}]
)
def test_sending_results_is_no_input_of_an_inference_loop(known):
    seen = snapshot(lines=[sending("tell(url, data=told)"), MODEL], kind="inference", **known)
    assert level(input_bound.judge(seen)) < input_bound.RULE.band.leave
    assert fired(between_steps.host_io(seen)).where[0].line == 70


def test_fetching_the_next_input_below_the_model_feeds_it():
    seen = snapshot(
        steps(seconds=0.1, forward=0.02),
        lines=[sending("batch = fetch(url)", function="fetch"), MODEL],
        kind="inference",
    )
    assert fired(input_bound.judge(seen)).subtype == "storage"


def test_a_server_that_waits_for_a_request_touches_no_service():
    listening = line("serve", 0.7, activity="io-network", number=70, text="message = connection.recv(4096)")
    seen = snapshot(steps(seconds=0.1, forward=0.02), lines=[listening, MODEL], kind="inference")
    assert between_steps.host_io(seen) is None
    training = msgspec.structs.replace(seen, kind="training")
    assert fired(between_steps.host_io(training)).where[0].line == 70


# predictions ------------------------------------------------------------------------------------------------------


def respawning():
    records = [step(i, 0.1, data_wait=0.001, loader_start=0.07 if i % 5 == 0 else 0.0, cpu=0.05) for i in range(40)]
    return snapshot(records)


def test_the_gain_of_keeping_workers_is_not_sure():
    verdict = fired(input_bound.judge(respawning()))
    assert verdict.subtype == "respawn" and verdict.confidence <= 0.5
    assert any("the gain may be larger" in one for one in verdict.evidence)


def test_one_who_computes_batches_by_hand_is_surer_than_one_who_waits_for_them():
    loop = (("main", 80, "for x in batches():"), ("batches", 40, "yield load(path)"))
    model = line("main", 0.2, phase="forward", activity="compute")
    waits = line("load", 0.7, activity="io-file", number=31, via=loop)
    computes = line("load", 0.7, number=31, via=loop)
    slept = fired(input_bound.judge(snapshot(steps(forward=0.02, cpu=0.03), lines=[waits, model])))
    worked = fired(input_bound.judge(snapshot(steps(forward=0.02, cpu=0.1), lines=[computes, model])))
    assert (slept.subtype, worked.subtype) == ("storage", "transform")
    assert slept.confidence <= 0.5 < worked.confidence


@pytest.mark.parametrize(("busy", "most", "sure"), [((1.0, 1.0), 4.0, False), ((0.2, 0.2), 5.1, True)])
def test_cores_busy_with_others_carry_no_more_workers(busy, most, sure):
    waits = line("get", 0.9, pid=WORKER, activity="io-network")
    crowd = host(2, worker_cpu=0.1, main_cpu=0.2, busy=busy)
    records = steps(data_wait=0.08, forward=0.02, cpu=0.02, queue_ready=0)
    verdict = fired(
        input_bound.judge(snapshot(records, lines=[waits], host=crowd, series={"workers_cpu": constant(0.2)}))
    )
    fix = next(fix for fix in verdict.fixes if fix.text.startswith("num_workers 2 → "))
    assert most - 1.5 < fix.speedup < most and (verdict.confidence > 0.5) is sure


# collating --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [(0.2, 0.2), (1.0, 1.0)])
def test_work_below_a_collator_stays_collate_however_many_cores_idle(busy):
    pieces = line("Letters.pieces", 0.4, phase="data_wait", via=(("LetterCollator.__call__", 44, "self.pieces(t)"),))
    seen = snapshot(steps(data_wait=0.04, forward=0.05, cpu=0.1), lines=[pieces], host=host(0, busy=busy))
    assert fired(input_bound.judge(seen)).subtype == "collate"


# several at once --------------------------------------------------------------------------------------------------


def said(id_, share, *, sure=0.8, at=1):
    where = (Where(pid=RANK, file="/x/train.py", line=at, function="f"),) if at else ()
    return Verdict(id=id_, severity="warning", title="t", confidence=sure, share=share, speedup=1.5, where=where)


def together(*verdicts):
    return [one.id for one in composed(verdicts, snapshot(phases=Phases(forward=0.5, data_wait=0.5)))]


def test_the_collector_that_compiling_sets_off_is_not_told_beside_it():
    assert together(said("recompile", 0.6), said("gc-stall", 0.1, at=0)) == ["recompile"]
    assert together(said("recompile", 0.6), said("gc-stall", 0.1, at=7)) == ["recompile", "gc-stall"]
    assert together(said("eval-stall", 0.6), said("gc-stall", 0.1, at=0)) == ["eval-stall", "gc-stall"]


def test_suspected_python_leaves_beside_a_larger_wait_for_data():
    loading = said("input-bound", 0.5)
    assert together(loading, said("python-overhead", 0.2, sure=0.5, at=7)) == ["input-bound"]
    assert len(together(loading, said("python-overhead", 0.2, sure=0.7, at=7))) == 2
    assert len(together(said("input-bound", 0.1), said("python-overhead", 0.2, sure=0.5, at=7))) == 2


def test_too_small_a_batch_has_no_next_limit():
    found = composed([said("underbatched", 0.8), said("optimizer-bound", 0.3, at=7)], snapshot(steps()))
    assert not any("next limit" in words for one in found for words in one.evidence)


# the interpreter's lock -------------------------------------------------------------------------------------------


def test_a_thread_that_hardly_holds_the_lock_is_not_blamed_for_a_crowded_machine():
    threads = tuple(
        ThreadShare(pid=RANK, thread=name, samples=100, active=1.0, gil=held)
        for name, held in (("MainThread", 0.9), ("decoder", 0.07))
    )
    seen = snapshot(steps(forward=0.1, cpu=0.02), series={"run_delay": constant(0.8)}, host=host(0, busy=(1.0, 0.0)))
    seen = msgspec.structs.replace(seen, stacks=msgspec.structs.replace(seen.stacks, threads=threads))
    judged = gil.judge(seen)
    assert level(judged) <= 0.07 and level(judged) < gil.RULE.band.enter
