"""Where host code stands in a step, and which forward passes evaluate: from what else runs in the same functions."""

import pytest
from stack_maker import stack

from aitop.model.steps import Caller
from aitop.sources.code.dataflow import functions
from aitop.stacks.libraries import Phase
from aitop.stacks.position import StepFunctions
from aitop.stacks.reading import read_stack

NEXT = "torch/utils/data/dataloader.py _BaseDataLoaderIter.__next__"
CALL = "torch/nn/modules/module.py Module._call_impl"
BACK = "torch/_tensor.py Tensor.backward"
STEP = "torch/optim/adamw.py AdamW.step"
ENV = "gymnasium/core.py Wrapper.step"
MODEL = "user/model.py:8 Net.forward"
TOP = "user/train.py:90 <module>"


def at(line, *below, function="main", file="user/train.py", above=(TOP,)):
    """A stack that stands in `line` of a function, and in `below` it."""
    return stack(*above, f"{file}:{line} {function}", *below)


# A loop in one function: data at 10, the model at 12, its gradients at 14, the update at 15.
LOOP = [(at(10, NEXT), 20), (at(12, CALL, MODEL), 30), (at(14, BACK), 30), (at(15, STEP), 10)]


def position(samples, frames):
    """Where `frames` stand beside these samples."""
    seen = read_stack(frames)
    return StepFunctions([*((read_stack(other), count) for other, count in samples), (seen, 10)]).position(seen)


def phase(samples, frames):
    seen = read_stack(frames)
    return StepFunctions([*((read_stack(other), count) for other, count in samples), (seen, 10)]).phase(seen)


# --- positions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [(9, "before"), (11, "before"), (12, "within"), (13, "within"), (14, "within"), (16, "after"), (60, "after")],
)
@pytest.mark.parametrize("below", [(), ("user/other.py:5 work",), ("user/other.py:5 work", "user/more.py:7 deeper")])
def test_a_line_stands_where_its_function_has_it(line, expected, below):
    if line == 12 and below:
        expected = "before"  # what is called in the line of the model's call is mostly an argument of it
    assert position(LOOP, at(line, *below)) == expected


def test_our_hook_moves_no_line():
    for file in ("<aitop hook>/phases.py", "aitop/hook/phases.py"):
        ours = f"{file}:99 wrap_forward.<locals>.__call__"
        hooked = [
            (at(10, ours, NEXT), 20),
            (at(12, ours, CALL, MODEL), 30),
            (at(14, ours, BACK), 30),
            (at(15, STEP), 10),
        ]
        assert [position(hooked, at(line, ours)) for line in (9, 11, 12, 13, 16)] == [
            position(LOOP, at(line)) for line in (9, 11, 12, 13, 16)
        ]


def test_only_what_stands_in_another_call_computes_an_argument_for_the_model():
    text = """
from losses import hinge, pull

def main(net, data):
    for x, y in data:
        loss = hinge(net(x), y)
        loss.backward()

def parts(net, data):
    for x, y in data:
        loss = hinge(net(warp(x)), y) + 0.1 * pull(net)
        loss.backward()
"""
    file = at(6)[-1].file
    flows = {file: functions(file, text, [6, 11]).flows}

    def of(line, called, function):
        model, gradients = at(line, CALL, MODEL, function=function), at(line + 1, BACK, function=function)
        frames = at(line, f"user/losses.py:3 {called}", function=function)
        seen = [(read_stack(each), 10) for each in (model, gradients, frames)]
        return StepFunctions(seen, flows).position(read_stack(frames))

    assert of(6, "hinge", "main") == of(11, "hinge", "parts") == of(11, "Penalty.pull", "parts") == "within"
    assert of(11, "warp", "parts") == of(11, "called_by_another_name", "parts") == "before"


def test_a_framework_s_loop_tells_what_comes_after_the_model_but_not_what_makes_its_input():
    """Its lines call whatever it was given, callbacks among them, and its dataflow is not read."""

    def below(number, *frames):
        return stack(TOP, f"site-packages/framework/loop.py:{number} Loop.run", *frames)

    def callback(number):
        return below(number, "site-packages/framework/call.py:7 call_hook", "user/watch.py:5 Watch.hook")

    hook = "site-packages/framework/call.py:7 call_hook"
    loop = [(below(10, NEXT), 20), (below(12, hook, "user/lit.py:3 step", CALL), 30), (below(14, BACK), 30)]
    loop.append((below(18, STEP), 10))
    assert [position(loop, callback(number)) for number in (9, 11, 12)] == [None, None, None]
    assert [position(loop, callback(number)) for number in (13, 15, 19)] == ["within", "gradients", "after"]


def test_one_call_with_the_model_and_its_backward_leaves_the_gradients_behind_it():
    steps = [
        (at(12, "user/step.py:3 step", CALL, MODEL), 30),
        (at(12, "user/step.py:4 step", BACK), 30),
        (at(15, STEP), 10),
    ]
    assert [position(steps, at(line)) for line in (11, 13, 16)] == ["before", "gradients", "after"]


def test_what_stands_between_the_backward_and_the_optimizer_is_about_gradients():
    later = [*LOOP[:3], (at(18, STEP), 10)]
    assert [position(later, at(line)) for line in (13, 15, 17, 19)] == ["within", "gradients", "gradients", "after"]
    adversary = [*later, (at(20, CALL, MODEL), 30), (at(22, BACK), 30), (at(24, STEP), 10)]
    assert [position(adversary, at(line)) for line in (17, 19, 21, 23)] == [
        "gradients",
        "within",
        "within",
        "gradients",
    ]


def test_callbacks_that_are_called_where_another_one_updates_make_no_batch():
    """`for callback in callbacks: callback.on_backward_end(self)`: one of them clips and steps."""
    fires = "user/train.py:35 Trainer.fire"
    updates = [*LOOP[:3], (at(16, fires, "user/train.py:23 Update.on_backward_end", STEP), 10)]
    assert position(updates, at(16, fires, "user/train.py:17 Watch.on_backward_end")) == "gradients"


@pytest.mark.parametrize(("below", "expected"), [((), "before"), (("torch/_functorch/apis.py wrapped",), "within")])
def test_a_function_that_a_library_for_arrays_calls_is_a_part_of_its_call(below, expected):
    """Gradients by torch.func: the loss is called by the same call as its gradients, and makes no argument for it."""
    wrapped = "torch/_functorch/eager_transforms.py wrapper"
    calls = [(at(14, wrapped, BACK), 50), (at(14, wrapped, "user/loss.py:3 loss", CALL, MODEL), 50)]
    assert position(calls, at(14, *below, "user/loss.py:9 distance")) == expected


LOSS = "torch/nn/functional.py smooth_l1_loss"


def test_functions_of_torch_do_not_show_where_a_model_without_modules_is_called():
    """The loss of line 13 is the only sight of `forward`; the model above it is tensors and functions."""
    functions = [(at(13, LOSS), 3), *LOOP[2:]]
    assert position(functions, at(9)) == "within"
    assert position([*functions, LOOP[1]], at(9)) == "before"


def test_a_loss_does_not_show_where_a_model_of_modules_is_called():
    """The call of line 9 is quick, the loss of line 13 slow: what is between is no input of the loss."""
    calls = [(at(9, CALL, MODEL), 2), (at(13, LOSS), 500), (at(14, BACK), 500)]
    assert position(calls, at(8)) == "before"
    assert position(calls, at(11, "user/bank.py:26 against")) == "within"


def test_a_model_of_functions_may_be_called_on_the_line_of_its_gradients():
    """`cost(weights, x).backward()`."""
    assert position([(at(14, BACK), 50)], at(14, "user/model.py:8 cost")) == "within"
    assert position([(at(14, BACK), 50)], at(14, "user/model.py:8 cost", "user/model.py:3 net")) == "within"


def test_a_stack_that_was_read_while_it_changed_shows_nothing():
    """One in a hundred has the line of one moment above the calls of another."""
    many = [(frames, 3 * count) for frames, count in LOOP]
    torn = [*many, (at(11, CALL, MODEL), 1), (at(60, STEP), 1)]
    assert [position(torn, at(line)) for line in (11, 16, 60)] == ["before", "after", "after"]
    assert phase(torn, at(20, CALL, MODEL)) == "evaluation"
    # Where hardly anything of a phase is seen, that is where it is.
    assert position([(at(60), 500), (at(12, CALL, MODEL), 1), (at(15, STEP), 1)], at(11)) == "before"


def test_positions_without_an_update_and_around_a_late_fetch():
    assert position(LOOP, stack("user/setup.py:3 read_all")) is None, "a function that makes no steps"
    assert position([(at(10, "user/x.py:4 work"), 50)], at(11)) is None
    serving = [(at(12, CALL, MODEL), 50)]
    assert [position(serving, at(line)) for line in (11, 12, 13)] == ["before", "within", "after"]
    prefetch = [*LOOP[1:], (at(20, NEXT), 20)]
    assert [position(prefetch, at(line)) for line in (20, 17)] == ["before", "after"], "fetched for the next step"


def test_where_the_update_is_made_by_the_caller_the_caller_tells():
    """`loss = compute(x)` at line 12 has the model's call; its caller updates at 14."""
    inner = (TOP, "user/train.py:12 main")
    samples = [
        (at(10, NEXT), 20),
        (at(5, CALL, function="compute", above=inner), 30),
        (at(14, BACK), 30),
        (at(15, STEP), 10),
    ]
    assert position(samples, at(4, function="compute", above=inner)) == "before"
    assert position(samples, at(7, function="compute", above=inner)) == "within", "the update is still to come"
    assert position(samples, at(16)) == "after"


def test_without_modules_the_line_that_computes_before_the_gradients_is_the_model():
    by_hand = [(at(14, BACK), 30), (at(10, NEXT), 20)]
    assert position(by_hand, at(12)) == "within"
    assert position([*by_hand, (at(3, CALL, function="other"), 9)], at(12)) == "before"


@pytest.mark.parametrize("below", ["concurrent/futures/_base.py Future.result", "requests/sessions.py Session.send"])
def test_a_line_that_waits_or_reads_before_the_gradients_is_no_model(below):
    """Models of a few microseconds are seen in no sample, and what their input comes from is."""
    assert position([(at(14, BACK), 30)], at(12, below)) == "before"


# Q-learning in one function: it acts at 3, its environment is at 4, it learns at 7 to 9.
LEARN = "\n".join([
    "def learn(q, opt, env, s, memory):",
    "    while True:",
    "        a = q(s).argmax()",
    "        s2, r = env(a)",
    "        memory.append((s, a, r, s2))",
    "        s = s2",
    "        loss = q(draw(memory)).mean()",
    "        loss.backward()",
    "        opt.step()",
])  # fmt: skip
ACTS = at(3, function="learn")
ENVIRONMENT = at(4, "user/env.py:30 play", function="learn")
LEARNS = [(at(7, CALL, MODEL, function="learn"), 30), (at(8, BACK, function="learn"), 60)]
LEARNS += [(at(9, STEP, function="learn"), 90)]
FLOWS = {ACTS[-1].file: functions(ACTS[-1].file, LEARN, [3]).flows}


def test_a_line_that_was_measured_to_call_the_model_does_so_though_no_sample_shows_it():
    """Stacks as deep as a policy's call are often lost in a quick loop; without it the environment makes input."""
    seen = [(read_stack(frames), count) for frames, count in [(ACTS, 25), (ENVIRONMENT, 40), *LEARNS]]
    callers = [Caller(ACTS[-1].file, line, "learn") for line in (3, 7)]
    assert StepFunctions(seen, FLOWS).phase(read_stack(ENVIRONMENT)) == "outside"
    assert StepFunctions(seen, FLOWS, callers).phase(read_stack(ENVIRONMENT)) == "environment"
    assert StepFunctions(seen, FLOWS, callers).position(read_stack(ACTS)) == "within", "what it makes of its input"
    rarely = [(stack, 1 if stack.frames[-1].line == 3 else count) for stack, count in seen]
    assert StepFunctions(rarely, FLOWS, callers).position(read_stack(ACTS)) == "before", "such as an evaluation"


def test_a_loss_that_is_a_module_is_no_forward_pass_where_the_hook_saw_which_lines_call_the_model():
    model, backward, step = at(3, CALL, MODEL), at(5, BACK), at(6, STEP)
    loss = at(4, CALL, "user/losses.py:65 Hard.forward")
    seen = [(read_stack(frames), 20) for frames in (model, loss, backward, step)]
    callers = [Caller(model[1].file, 3, "main", "forward"), Caller(model[0].file, 90, "<module>", "forward")]
    without, with_ = StepFunctions(seen), StepFunctions(seen, callers=callers)
    assert without.phase(read_stack(loss)) == "forward", "stacks alone cannot tell"
    assert with_.phase(read_stack(loss)) == "outside" and with_.position(read_stack(loss)) == "within"
    assert with_.phase(read_stack(model)) == "forward"


def test_a_torn_stack_makes_no_line_an_update_where_the_hook_saw_which_lines_update_the_model():
    """In a loop of a few milliseconds a stack may combine the optimizer's frames with the line of the next moment."""
    acts, torn = at(3, CALL, MODEL, function="learn"), at(3, STEP, function="learn")
    samples = [(ENVIRONMENT, 40), (acts, 25), (torn, 15), *LEARNS]
    seen = [(read_stack(frames), count) for frames, count in samples]
    lines: dict[Phase, tuple[int, ...]] = {"forward": (3, 7), "backward": (8,), "optimizer": (9,)}
    callers = [Caller(ACTS[-1].file, line, "learn", phase) for phase, numbers in lines.items() for line in numbers]
    calls_only = [caller for caller in callers if caller.phase == "forward"]
    assert StepFunctions(seen, FLOWS, calls_only).phase(read_stack(ENVIRONMENT)) == "outside"
    assert StepFunctions(seen, FLOWS, callers).phase(read_stack(ENVIRONMENT)) == "environment"


def test_a_few_torn_stacks_of_a_phase_show_no_line_that_runs_it_without_the_hook_either():
    """One in thirteen of the model's samples has the line that asks for the next request: what makes input stays so."""
    asks, makes, calls = at(2, CALL, MODEL), at(3, "user/text.py:22 split"), at(5, CALL, MODEL)
    samples = [(makes, 480), (at(2), 23), (asks, 8), (calls, 100)]
    assert position(samples, makes) == "before"
    assert position([*samples, (asks, 60)], makes) == "within", "another call of the model"


def test_sampling_an_action_is_the_policys_and_no_environment():
    source = "\n".join([
        "def episode(net, env, s):",
        "    while True:",
        "        x = tensor(s)",
        "        odds = net(x)",
        "        a = odds.sample()",
        "        s = env.step(a)",
        "def train(net, env, opt):",
        "    loss = episode(net, env, 0)",
        "    loss.backward()",
    ])  # fmt: skip
    up = at(8, function="train")
    act = (*up, *at(4, CALL, MODEL, function="episode"))
    observe, sample = ((*up, *at(line, function="episode")) for line in (3, 5))
    sampled = (*up, *at(5, "torch/distributions/categorical.py Categorical.sample", function="episode"))
    step, inner = ((*up, *at(6, *below, function="episode")) for below in ((), ("user/env.py:30 step",)))
    flows = {act[-1].file: (), up[-1].file: functions(up[-1].file, source, [3, 8]).flows}
    loop = [(act, 30), (at(9, BACK, function="train"), 30), *((each, 9) for each in (observe, sample, sampled, step))]
    found = StepFunctions([(read_stack(frames), count) for frames, count in loop], flows)
    answers = [found.phase(read_stack(frames)) for frames in (observe, sample, sampled, step, inner)]
    assert answers == ["outside"] * 3 + ["environment"] * 2
    assert [found.position(read_stack(frames)) for frames in (observe, sample, sampled)] == ["within"] * 3


# --- phases ---------------------------------------------------------------------------------------------------------


def test_a_forward_pass_below_the_update_evaluates():
    own = at(17, CALL, MODEL)
    assert phase(LOOP, own) == "evaluation"
    assert phase(LOOP, at(12, CALL, MODEL)) == "forward"
    assert phase([(at(10, NEXT), 10), (at(12, CALL), 50)], own) == "forward", "inference has no update"


def test_a_function_with_data_of_its_own_that_is_called_below_the_update_evaluates_as_a_whole():
    inside = {"function": "check", "file": "user/check.py", "above": (TOP, "user/train.py:20 main")}
    samples = [*LOOP, (at(4, NEXT, **inside), 20), (at(5, CALL, MODEL, **inside), 30)]
    assert phase(samples, at(4, NEXT, **inside)) == "evaluation"
    assert phase(samples, at(5, CALL, MODEL, **inside)) == "evaluation"
    assert phase(samples, at(6, **inside)) == "evaluation", "what it counts, too"
    assert phase(samples, at(10, NEXT)) == "data_wait"


def test_a_function_that_trains_does_not_evaluate_wherever_it_is_called():
    inside = {"function": "epoch", "file": "user/epoch.py", "above": (TOP, "user/train.py:20 main")}
    samples = [*LOOP, (at(5, CALL, MODEL, **inside), 30), (at(6, BACK, **inside), 30), (at(4, NEXT, **inside), 10)]
    assert phase(samples, at(5, CALL, MODEL, **inside)) == "forward"
    assert phase(samples, at(4, NEXT, **inside)) == "data_wait"


def test_a_forward_pass_after_gradients_of_its_own_is_part_of_the_step_that_its_caller_makes():
    """Meta-learning: a task's model is adapted with gradients, then its loss is what the caller's update is about."""
    task = {"function": "task_loss", "file": "user/task.py", "above": (TOP, "user/train.py:12 main")}
    inner, outer = at(30, BACK, **task), at(32, CALL, MODEL, **task)
    samples = [(inner, 30), (outer, 20), (at(14, BACK), 40), (at(15, STEP), 10)]
    assert phase(samples, outer) == "forward"
    # A step of its own ends with an update of its own.
    assert phase([*samples, (at(31, STEP, **task), 5)], outer) == "evaluation"


def test_a_loop_around_a_loop_of_another_function_is_no_evaluation_of_it():
    """A rollout calls the model before the update of the same function: that is acting, not evaluating."""
    acts = [(at(5, CALL, MODEL), 30), (at(6, ENV), 30), (at(12, CALL, MODEL), 20), (at(14, BACK), 20)]
    assert phase(acts, at(5, CALL, MODEL)) == "forward"
    assert position(acts, at(6)) == "within"
