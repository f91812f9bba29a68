"""What runs in unusual shapes look like: updates without an optimizer, optimizers without number, naps, copies."""

from __future__ import annotations

import msgspec
import pytest
from judgements import fired
from snapshot_builder import RANK, line, snapshot, step, steps
from stack_maker import stack, window

from aitop.diagnosis.causes import between_steps
from aitop.diagnosis.evidence import main_lines, within_first
from aitop.engine.core import Engine
from aitop.model.snapshot import Phases, Target, Tick
from aitop.model.steps import HookSample


@pytest.mark.parametrize(("below", "kind"), [("torch/autograd/__init__.py grad", "training"), (None, "inference")])
def test_gradients_asked_for_by_hand_are_training_though_only_forwards_are_counted(below, kind):
    records = tuple(step(index, 0.1, kind="infer", forward=0.02) for index in range(10))
    made = stack("user/fit.py:8 main | state = update(state, x)", *([below] if below else []))
    model = stack("user/fit.py:8 main | state = update(state, x)", "torch/nn/modules/module.py _call_impl")
    seen = window(1001.0, (RANK, "MainThread", True, made, 8), (RANK, "MainThread", True, model, 8), seconds=1.0)
    engine = Engine(Target(pid=RANK, command="python fit.py"))
    events = [HookSample(time=1001.0, pid=RANK, steps=records), seen, Tick(time=1001.1, wall=1e9)]
    assert [shot for shot in map(engine.handle, events) if shot is not None][-1].kind == kind


def test_a_run_so_fast_that_few_seconds_of_its_steps_are_kept_still_has_its_stacks():
    engine, shots = Engine(Target(pid=RANK, command="python serve.py")), []
    model = stack("user/serve.py:9 main | y = model(x)", "torch/nn/modules/module.py _call_impl")
    for second in range(1, 9):
        made = [step(second * 1000 + index, 0.001, kind="infer", forward=0.0005) for index in range(1000)]
        made = [msgspec.structs.replace(one, end=second - 1 + (index + 1) / 1000) for index, one in enumerate(made)]
        seen = [window(float(second), (RANK, "MainThread", True, model, 40), seconds=2.0)] if second % 2 == 0 else []
        for event in (
            HookSample(time=float(second), pid=RANK, steps=tuple(made)),
            *seen,
            Tick(time=float(second), wall=1e9),
        ):
            shots.append(engine.handle(event))
    stacks = shots[-1].stacks
    assert stacks is not None and stacks.processes[0].samples == 160


def test_an_evaluation_is_named_by_the_line_that_calls_the_model():
    inside = line("net", 0.3, number=17, phase="evaluation", activity="native", via=[("score", 31, "net(part)")])
    train = line("net", 0.2, number=17, phase="forward", activity="native", via=[("fit", 39, "loss = net(x)")])
    records = steps(seconds=0.1, evaluation=0.03, forward=0.03)
    finding = between_steps.evaluation(snapshot(records, lines=[inside, train]))
    [first] = fired(finding).where
    assert (first.function, first.line, first.text) == ("score", 31, "net(part)")
    assert [entry.line for entry in finding.claims] == [17], "what it claims is what was sampled"
    [alone] = fired(between_steps.evaluation(snapshot(records, lines=[inside]))).where
    assert (alone.function, alone.line) == ("net", 17), "a function of its own"


def test_a_comprehension_is_a_part_of_the_function_that_has_it():
    row = line("batch.<locals>.<listcomp>", 0.4, number=19, via=[("batch", 19, None)])
    rest = line("batch", 0.3, number=18, via=[("fit", 12, None)])
    other = line("fit", 0.4, number=12)

    def made_by(*lines):
        return main_lines(snapshot(phases=Phases(forward=0.3), lines=lines), lambda entry: entry.where is not None)

    assert within_first(made_by(row, rest)) == 1.0
    assert within_first(made_by(row, other)) == pytest.approx(0.5)
