"""Events to Snapshots: windows, lead process, staleness, bounded history, and replay equal to live."""

from __future__ import annotations

import msgspec
import pytest
from run_events import TARGET, at, play, session
from snapshot_builder import RANK, WORKER, host, process, step, steps
from stack_maker import stack, window

from aitop.engine.core import Engine
from aitop.engine.history import KEEP_SECONDS, KEEP_STEPS, History
from aitop.engine.snapshot.aggregate import aggregate, lead_pid
from aitop.engine.snapshot.steps import steps_view
from aitop.model.host import HostSample, MachineSample
from aitop.model.snapshot import Target, Tick
from aitop.model.source import SourceStatus
from aitop.model.steps import AllocatorSample, HookFacts, HookSample, StepRecord


def test_steps_are_summed_over_the_window():
    last = play(session(data_wait=0.06, forward=0.02, backward=0.01, samples=16))[-1]
    assert last.steps is not None and last.steps.basis == "hook"
    assert last.steps.count == 200
    assert last.steps.p50 == pytest.approx(0.1)
    assert last.steps.samples_per_second == pytest.approx(160)
    assert last.steps.phases.data_wait == pytest.approx(0.6)
    assert last.steps.phases.outside == pytest.approx(0.1)
    assert last.steps.phases.transfer is None
    assert last.kind == "training"
    assert last.cost.hook_us_per_step == 5.0
    assert last.cost.target_slowdown == pytest.approx(5e-5)
    assert last.cost.monitor_cpu == pytest.approx(0.02)


@pytest.mark.parametrize(("forwards", "kind"), [(0, "unknown"), (4, "unknown"), (5, "inference")])
def test_the_absence_of_backward_passes_takes_samples_to_notice(forwards, kind):
    model = stack("user/serve.py:9 main | y = model(x)", "torch/nn/modules/module.py:1773 _wrapped_call_impl")
    text = stack("user/serve.py:8 main | x = clean(words)", "user/text.py:3 clean | out = []")
    samples = [(RANK, "MainThread", True, model, forwards), (RANK, "MainThread", True, text, 20)]
    seen = window(1.0, *[one for one in samples if one[-1]], seconds=1.0)
    assert play([at(1.0, host()), seen, Tick(time=1.1, wall=1e9)])[-1].kind == kind


def test_p50_and_p95_tell_a_bursty_step():
    view = steps_view(RANK, [*steps(18, 0.1), step(18, 1.0), step(19, 1.0)], 20)
    assert (view.p50, view.p95) == (pytest.approx(0.1), pytest.approx(1.0))


def test_the_device_clock_decides_what_is_lost():
    records = steps(
        20, 0.1, data_wait=0.09, device_forward=0.03, device_backward=0.05, device_optimizer=0.01, device_idle=0.01
    )
    view = steps_view(RANK, records, 20)
    assert view.phases.data_wait == pytest.approx(0.1), "the host waited 90 %, the device only 10 %"
    assert view.phases.forward == pytest.approx(0.3)


def test_steps_that_were_timed_on_the_device_stand_for_those_that_were_not():
    timed = steps(10, 0.01, device_forward=0.003, device_backward=0.005, device_optimizer=0.001, device_idle=0.001)
    untimed = [step(index, 0.01) for index in range(10, 40)]
    epoch = [step(40, 0.1, data_wait=0.095)]
    view = steps_view(RANK, [*timed, *untimed, *epoch], 41)
    assert view.phases.forward == pytest.approx(41 * 0.003 / 0.5)
    assert view.phases.data_wait == pytest.approx(0.091 / 0.5), "the start of the epoch is not missed"


def test_phases_share_the_time_where_the_steps_that_were_timed_on_the_device_are_longer():
    timed = steps(10, 0.005, device_forward=0.002, device_backward=0.002, device_optimizer=0.0, device_idle=0.001)
    phases = steps_view(RANK, [*timed, *(step(index, 0.003) for index in range(10, 200))], 200).phases
    assert (phases.forward, phases.backward, phases.outside) == pytest.approx((0.4, 0.4, 0.2))


def test_copies_are_a_phase_of_steps_that_are_timed_on_the_device_as_well():
    records = steps(20, 0.1, device_forward=0.05, device_idle=0.05, transfer=0.04, transfer_apart=0.04)
    phases = steps_view(RANK, records, 20).phases
    assert (phases.forward, phases.transfer, phases.outside) == pytest.approx((0.5, 0.4, 0.1))


def test_phases_are_shares_of_the_steps_in_which_copies_were_timed():
    timed = steps(20, 0.1, forward=0.05, transfer=0.04, transfer_apart=0.04)
    phases = steps_view(RANK, [*steps(20, 0.1, forward=0.05), *timed], 40).phases
    assert (phases.forward, phases.transfer, phases.outside) == pytest.approx((0.5, 0.4, 0.1))


def test_verdicts_come_with_the_snapshot():
    last = play(session(data_wait=0.08, forward=0.01, backward=0.01))[-1]
    assert last.diagnosis.primary is not None and last.diagnosis.primary.id == "input-bound"


def test_an_old_source_is_stale_and_says_so():
    events = [*session(5), *(Tick(time=5.0 + second, wall=0.0) for second in range(1, 20))]
    status = play(events)[-1].sources["hook"]
    assert status.state == "stale" and status.age == pytest.approx(19.0)


def test_what_the_hook_told_last_is_not_told_on_when_it_is_out():
    history = History(Target(pid=RANK, command="python train.py"))
    records = tuple(StepRecord(index=number, end=90.0 + number / 10, seconds=0.1) for number in range(100))
    facts, held = (
        HookFacts(way="attach", python="3.11", torch="2.13", cost_us=9.0),
        AllocatorSample(device=0, allocated=1, reserved=2),
    )
    for event in (
        HostSample(time=99.0, processes=host().processes, machine=MachineSample(cores=2)),
        SourceStatus(time=80.0, source="hook", state="ok"),
        HookSample(time=100.0, pid=RANK, steps=records, facts=facts, allocators=(held,)),
        Tick(time=100.0, wall=0.0),
    ):
        history.add(event)
    there = aggregate(history, Tick(time=100.0, wall=0.0))
    assert (there.cost.hook_us_per_step, len(there.allocators), there.steps.basis) == (9.0, 1, "hook")
    history.add(SourceStatus(time=101.0, source="hook", state="absent", reason="detached on request"))
    gone = aggregate(history, Tick(time=140.0, wall=0.0))
    assert (gone.cost.hook_us_per_step, gone.allocators, gone.steps) == (None, (), None)


def test_nothing_seen_is_none_and_not_zero():
    only = play([Tick(time=1.0, wall=0.0)])[0]
    assert only.steps is None and only.host is None and only.gpu is None and only.stacks is None
    assert only.cost.monitor_cpu is None and only.series == {}
    assert only.diagnosis.verdicts == () and only.diagnosis.abstained


def test_a_source_that_worked_to_the_end_did_not_fail():
    events = session(5)
    events.append(SourceStatus(time=5.2, source="hook", state="failed", reason="process has ended"))
    events.append(msgspec.structs.replace(TARGET, ended="process 100 ended", time=5.5))
    events.append(Tick(time=5.5, wall=0.0))
    last = play(events)[-1]
    assert last.sources["hook"].state == "ok" and last.target.ended == "process 100 ended"


def test_history_is_bounded():
    history = History(TARGET)
    for event in session(int(KEEP_SECONDS) + 200, step_seconds=0.02):
        history.add(event)
    assert len(history.hosts) <= KEEP_SECONDS + 1
    assert len(history.hooks[RANK].steps) == KEEP_STEPS
    assert history.hooks[RANK].count == 50 * (int(KEEP_SECONDS) + 200)


def test_rank_zero_leads():
    history = History(TARGET)
    machine = MachineSample(cores=2)
    ranks = tuple(process(pid, rank=rank) for pid, rank in ((RANK + 1, 1), (RANK + 2, 0)))
    history.add(HostSample(time=1.0, processes=ranks, machine=machine))
    for pid in (RANK + 1, RANK + 2):
        history.add(HookSample(time=1.0, pid=pid, steps=tuple(steps(3))))
    assert lead_pid(history, 1.0) == RANK + 2


def test_a_child_of_multiprocessing_works_for_a_loader_only_if_its_stacks_say_so():
    loads = stack("user/train.py:9 main", "torch/utils/data/_utils/worker.py _worker_loop")
    asks = stack("user/service.py:9 main | answer(queue.get())")
    children = tuple(process(pid, "loader-worker", rank=0) for pid in (WORKER, WORKER + 1, WORKER + 2))
    seen = [(WORKER, "MainThread", True, loads, 40), (WORKER + 1, "MainThread", True, asks, 40)]
    machine = MachineSample(cores=2)
    events = [HostSample(time=1000.0, processes=children, machine=machine), window(1001.0, *seen, seconds=1.0)]
    last = play([*events, Tick(time=1001.1, wall=1e9)])[-1]
    roles = [(process.role, process.rank) for process in last.processes]
    assert roles == [("loader-worker", 0), ("other", None), ("loader-worker", 0)], "the last was not looked at"


def test_aitops_own_cost_is_weighted_by_the_length_of_its_ticks():
    engine = Engine(Target(pid=1, command="python train.py"))
    for end, cores in ((0.1, 0.9), (0.3, 0.6), (0.7, 0.5), (1.7, 0.05), (2.7, 0.05), (3.7, 0.05)):
        snapshot = engine.handle(Tick(time=end, wall=end, monitor_cpu=cores))
    assert snapshot.cost.monitor_cpu == pytest.approx((0.2 * 0.6 + 0.4 * 0.5 + 3 * 0.05) / 3.6)


def test_every_snapshot_has_its_ledgers_and_is_judged_by_them():
    waits = stack("user/train.py:9 main", "torch/utils/data/dataloader.py _BaseDataLoaderIter.__next__")
    model = stack("user/train.py:10 main", "torch/nn/modules/module.py:1773 _wrapped_call_impl")
    events = []
    for event in session(data_wait=0.06, forward=0.02, backward=0.01, optimizer=0.01):
        if isinstance(event, Tick):
            samples = [(RANK, "MainThread", True, frames, count) for frames, count in ((waits, 24), (model, 16))]
            events.append(window(event.time, *samples, seconds=1.0))
        events.append(event)
    last = play(events)[-1]
    entries = [entry for entry in last.ledgers[0].entries if entry.lane == "main"]
    assert (last.ledgers[0].pid, last.ledgers[0].unit) == (RANK, "step")
    assert sum(entry.share for entry in entries) == pytest.approx(1.0, abs=1e-6)
    assert sum(entry.share for entry in entries if entry.phase == "data") == pytest.approx(0.6)
    assert last.diagnosis.primary is not None and last.diagnosis.primary.id == "input-bound"
    assert last.diagnosis.primary.share == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize(("below", "kind"), [("torch/autograd/__init__.py grad", "training"), (None, "inference")])
def test_gradients_asked_for_by_hand_are_training_though_only_forwards_are_counted(below, kind):
    records = tuple(step(index, 0.1, kind="infer", forward=0.02) for index in range(10))
    made = stack("user/fit.py:8 main | state = update(state, x)", *([below] if below else []))
    model = stack("user/fit.py:8 main | state = update(state, x)", "torch/nn/modules/module.py _call_impl")
    seen = window(1001.0, (RANK, "MainThread", True, made, 8), (RANK, "MainThread", True, model, 8), seconds=1.0)
    events = [HookSample(time=1001.0, pid=RANK, steps=records), seen, Tick(time=1001.1, wall=1e9)]
    assert play(events)[-1].kind == kind


def test_a_run_so_fast_that_few_seconds_of_its_steps_are_kept_still_has_its_stacks():
    model, events = stack("user/serve.py:9 main | y = model(x)", "torch/nn/modules/module.py _call_impl"), []
    for event in session(8, step_seconds=0.001, kind="infer", forward=0.0005):
        events.append(event)
        if isinstance(event, HookSample) and event.time % 2 == 0:
            events.append(window(event.time, (RANK, "MainThread", True, model, 40)))
    assert play(events)[-1].stacks.processes[0].samples == 160


def test_the_callers_own_code_within_generate_is_no_forward_pass():
    """The hook times the whole call; stacks show what of it runs in a logits processor of the user's."""
    call = ("user/poems.py:9 main | model.generate(ids)", "transformers/generation/utils.py:2500 _sample")
    net = stack(*call, "torch/nn/modules/module.py:1773 _wrapped_call_impl")
    drawn, own = stack(*call), stack(*call, "user/poems.py:31 Rhymes.__call__")
    records = tuple(step(index, 0.1, kind="generate", forward=0.098) for index in range(10))
    samples = [(RANK, "MainThread", True, frames, count) for frames, count in ((net, 14), (drawn, 6), (own, 20))]
    events = [HookSample(time=1001.0, pid=RANK, steps=records), window(1001.0, *samples, seconds=1.0)]
    last = play([*events, Tick(time=1001.1, wall=1e9)])[-1]
    assert (last.phases.forward, last.phases.outside) == pytest.approx((0.5, 0.5))
    lines = [(entry.phase, entry.line, round(entry.share, 3)) for entry in last.ledgers[0].entries]
    assert lines == [("forward", 9, 0.5), ("host", 31, 0.5)]
    own_module = stack(*call, "torch/nn/modules/module.py:1773 _call_impl", "user/net.py:5 Net.forward")
    within = window(1001.0, *samples[:2], (RANK, "MainThread", True, own_module, 20), seconds=1.0)
    last = play([events[0], within, Tick(time=1001.1, wall=1e9)])[-1]
    assert last.phases.forward == pytest.approx(0.98), "a module of the user's is the model"
