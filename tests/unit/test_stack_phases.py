"""Phases of hand-made stacks in many styles of code."""
# ruff: noqa: E501 - a row is a case

import pytest
from aitop.engine.phases import evaluation_functions, own_start, phase_of, saves_state
from stack_maker import stack

from aitop.model.stacks import Frame

MAIN = ("user/train.py:90 <module> | main()", "user/train.py:50 main")
NEXT = "torch/utils/data/dataloader.py _BaseDataLoaderIter.__next__"
CALL = "torch/nn/modules/module.py Module._wrapped_call_impl"
STEP = "torch/optim/optimizer.py Optimizer.profile_hook_step.<locals>.wrapper"
SCHEDULED = "torch/optim/lr_scheduler.py LRScheduler.__init__.<locals>.patch_track_step_called.<locals>.wrap_step.<locals>.wrapper"
FIT = ("lightning/pytorch/trainer/trainer.py Trainer.fit", "lightning/pytorch/loops/fit_loop.py _FitLoop.advance")
HF = ("transformers/trainer.py Trainer.train", "transformers/trainer.py Trainer._inner_training_loop")


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        # plain loops
        ((*MAIN, NEXT, "std/multiprocessing/queues.py Queue.get"), "data_wait"),
        ((*MAIN, NEXT, "torch/utils/data/_utils/fetch.py fetch", "user/data.py D.__getitem__", CALL), "data_wait"),
        ((*MAIN, "torch/utils/data/dataloader.py DataLoader.__iter__", "std/multiprocessing/popen_fork.py _launch"), "data_wait"),
        ((*MAIN, CALL, "user/model.py Net.forward | return self.a @ x"), "forward"),
        ((*MAIN, "torch/nn/functional.py cross_entropy"), "forward"),
        ((*MAIN, CALL, "user/model.py Net.forward", "torch/utils/data/dataloader.py DataLoader.__iter__"), "forward"),
        ((*MAIN, "torch/_dynamo/eval_frame.py compile_wrapper"), "forward"),
        ((*MAIN, "torch/_tensor.py Tensor.backward", "torch/autograd/__init__.py backward"), "backward"),
        ((*MAIN, "torch/_tensor.py Tensor.backward", "user/ops.py Exp.backward", CALL), "backward"),
        ((*MAIN, "torch/autograd/__init__.py grad"), "backward"),
        ((*MAIN, STEP, "torch/optim/adamw.py AdamW.step"), "optimizer"),
        ((*MAIN, STEP, "user/optim.py MyAdam.step | p.mul_(2)"), "optimizer"),
        ((*MAIN, SCHEDULED, STEP), "optimizer"),
        ((*MAIN, "torch/_compile.py inner", "torch/_dynamo/eval_frame.py DisableContext.__call__.<locals>._fn", "torch/optim/optimizer.py Optimizer.zero_grad"), "optimizer"),
        ((*MAIN, "torch/amp/grad_scaler.py GradScaler.step"), "optimizer"),
        ((*MAIN, "torch/optim/lr_scheduler.py LRScheduler.step"), "outside"),
        ((*MAIN, "torch/optim/optimizer.py Optimizer.state_dict"), "outside"),
        ((*MAIN, "torch/nn/utils/clip_grad.py clip_grad_norm_"), "outside"),
        ((*MAIN, "torch/serialization.py save", "torch/serialization.py _save"), "save"),
        ((*MAIN, "numpy/lib/_npyio_impl.py save"), "save"),
        ((*MAIN, "safetensors/torch.py save_file"), "save"),
        (("user/train.py main", "user/train.py:8 dump_all | pickle.dump(model.state_dict(), f)"), "save"),
        (("user/train.py main", "user/train.py:8 dump_all | pickle.dump(model.state_dict(), f)", "std/bz2.py BZ2File.write"), "save"),
        (("user/train.py main", "user/train.py:8 keep | x = self.bank.to(device)", "std/bisect.py insort"), "outside"),
        (("user/train.py main", "user/train.py:8 save_checkpoint | os.fsync(f.fileno())"), "save"),
        (("user/train.py main", "user/train.py:8 load_checkpoint | f.read()"), "outside"),
        (("user/train.py main | x = x.to(device, non_blocking=True)",), "transfer"),
        (("user/train.py main | x, y = x.cuda(), y.cuda()",), "transfer"),
        (("user/train.py main | x = x.to(torch.float16)",), "outside"),
        (("user/train.py main | loss_sum += loss.item()",), "outside"),
        ((*MAIN, "user/data.py read_batches | batch.append(parse(line))"), "outside"),
        ((*MAIN, "torch/distributed/distributed_c10d.py barrier"), "communication"),
        ((), "outside"),
        # an optimizer's closure computes the loss
        ((*MAIN, STEP, "torch/optim/lbfgs.py LBFGS.step", "user/train.py main.<locals>.closure", CALL), "forward"),
        ((*MAIN, STEP, "torch/optim/lbfgs.py LBFGS.step", "user/train.py main.<locals>.closure", "torch/_tensor.py Tensor.backward"), "backward"),
        # activation checkpointing runs the forward pass again
        ((*MAIN, "torch/_tensor.py Tensor.backward", "torch/utils/checkpoint.py CheckpointFunction.backward", CALL), "backward"),
        # transformers
        ((*MAIN, *HF, "accelerate/data_loader.py DataLoaderShard.__iter__", NEXT), "data_wait"),
        ((*MAIN, *HF, "accelerate/data_loader.py DataLoaderShard.__iter__", "accelerate/utils/operations.py send_to_device"), "transfer"),
        ((*MAIN, *HF, "transformers/trainer.py Trainer.training_step", CALL), "forward"),
        ((*MAIN, *HF, "transformers/trainer.py Trainer.training_step", "accelerate/accelerator.py Accelerator.backward"), "backward"),
        ((*MAIN, *HF, "accelerate/optimizer.py AcceleratedOptimizer.step", STEP), "optimizer"),
        ((*MAIN, *HF, "transformers/trainer.py Trainer.evaluate", "transformers/trainer.py Trainer.evaluation_loop", CALL), "evaluation"),
        ((*MAIN, *HF, "transformers/trainer.py Trainer._save_checkpoint", "torch/serialization.py save"), "save"),
        # Lightning: everything runs inside the optimizer's step
        ((*MAIN, *FIT, STEP, "lightning/pytorch/loops/closure.py Closure.__call__", "user/model.py Lit.training_step", CALL), "forward"),
        ((*MAIN, *FIT, STEP, "lightning/pytorch/loops/closure.py Closure.__call__", "lightning/fabric/strategies/strategy.py Strategy.backward"), "backward"),
        ((*MAIN, *FIT, STEP, "torch/optim/adam.py Adam.step"), "optimizer"),
        ((*MAIN, *FIT, "lightning/pytorch/loops/fetchers.py _PrefetchDataFetcher.__next__", NEXT), "data_wait"),
        ((*MAIN, *FIT, "lightning/pytorch/loops/evaluation_loop.py _EvaluationLoop.run", NEXT), "evaluation"),
        # Python 3.10 has no classes in the names
        ((*MAIN, "torch/utils/data/dataloader.py __next__", "torch/utils/data/dataloader.py _next_data"), "data_wait"),
        ((*MAIN, "torch/nn/modules/module.py _call_impl"), "forward"),
        ((*MAIN, "torch/_tensor.py backward"), "backward"),
        ((*MAIN, "torch/optim/optimizer.py wrapper"), "optimizer"),
    ],
)  # fmt: skip
def test_phase(frames, phase):
    assert phase_of(stack(*frames)) == phase


TRAINING = stack(*MAIN, "torch/_tensor.py Tensor.backward")


def evaluating_in(*stacks):
    return evaluation_functions((frames, phase_of(frames), 1) for frames in stacks)


NO_GRAD = "torch/utils/_contextlib.py context_decorator.<locals>.decorate_context"


@pytest.mark.parametrize(
    ("function", "rest"),
    [
        ("evaluate", (CALL,)),
        ("evaluate", (NEXT,)),
        ("Trainer.eval_epoch", (CALL,)),
        ("run_validation", (CALL,)),
        ("valid", (CALL,)),
        ("validate_one_epoch", (CALL,)),
        ("testLoop", (CALL,)),
        ("Evaluator.run", (NEXT,)),
        ("evaluate", ("sklearn/metrics/_ranking.py roc_auc_score",)),
    ],
)
def test_all_of_a_function_that_evaluates_is_evaluation(function, rest):
    frames = stack(*MAIN, f"user/evaluation.py {function}", *rest)
    evaluating = evaluating_in(TRAINING, frames)
    assert phase_of(frames, evaluating) == "evaluation"
    assert phase_of(TRAINING, evaluating) == "backward"


@pytest.mark.parametrize(
    "function",
    ["latest_batch", "retrieval_step", "medieval", "invalidate", "validate_inputs", "EvalNet.predict", "run"],
)
def test_names_that_only_look_like_it_do_not_count(function):
    frames = stack(*MAIN, f"user/train.py {function} | check(x)")
    assert phase_of(frames, evaluating_in(TRAINING, frames)) == "outside"


def test_a_function_that_trains_is_none_that_evaluates_whatever_its_name():
    outer = "user/test_training.py test_that_it_learns"
    train = stack(outer, "torch/_tensor.py Tensor.backward")
    wait = stack(outer, NEXT)
    assert phase_of(wait, evaluating_in(train, wait)) == "data_wait"


def test_a_model_run_without_gradient_is_evaluation_in_a_process_that_trains():
    inside = stack(*MAIN, NO_GRAD, "user/train.py accuracy", CALL)
    loading = stack(*MAIN, NO_GRAD, "user/train.py accuracy", NEXT)
    evaluating = evaluating_in(TRAINING, inside, loading)
    assert [phase_of(frames, evaluating) for frames in (inside, loading)] == ["evaluation", "evaluation"]


def test_frozen_features_of_every_step_are_no_evaluation():
    def called_at(number, condition=None):
        outer = Frame("main", "/home/ada/proj/train.py", number, True, None, "for x, y in loader:", condition)
        return [outer, *stack(NO_GRAD, "user/train.py features", CALL)]

    backward = [*called_at(60)[:1], *stack("torch/_tensor.py Tensor.backward")]
    for frames, phase in (
        (called_at(58), "forward"),
        (called_at(62), "evaluation"),
        (called_at(58, "if step % 100 == 0:"), "evaluation"),
    ):
        assert phase_of(frames, evaluating_in(backward, frames)) == phase


def test_a_model_run_under_a_condition_below_the_step_is_evaluation():
    def called_at(number, condition=None, function="score"):
        outer = Frame("fit", "/home/ada/proj/train.py", number, True, None, "for x, y in loader:", condition)
        return [outer, *stack(f"user/train.py {function}", CALL)]

    backward = [*called_at(60)[:1], *stack("torch/_tensor.py Tensor.backward")]
    update = [*called_at(64, "if step % 4 == 0:")[:1], *stack(STEP)]
    for frames, phase in (
        (called_at(66, "if step % 50 == 0:"), "evaluation"),
        (called_at(66), "forward"),
        (called_at(58, "if step % 50 == 0:"), "forward"),
        (called_at(66, "if step % 4 == 0:"), "forward"),
    ):
        assert phase_of(frames, evaluating_in(backward, update, frames)) == phase
    both = called_at(66, "if step % 50 == 0:"), called_at(58)
    assert phase_of(both[0], evaluating_in(backward, update, *both)) == "forward", "every step calls it, too"


def _scores_by_hand(number, condition=None, function="score"):
    outer = Frame("fit", "/home/ada/proj/train.py", number, True, None, "while True:", condition)
    between = [f"user/train.py:31 {function} | out = [net(part) for part in held]"] if function else []
    return [outer, *stack(*between, "user/train.py:17 net | x = torch.relu(x @ w)")]


def test_a_model_that_is_no_module_is_known_by_what_the_step_calls_for_its_loss():
    train, backward = _scores_by_hand(39, function=None), [*_scores_by_hand(41)[:1], *TRAINING[-1:]]
    for frames, phase in (
        (_scores_by_hand(45, "if n % 6 == 0:"), "evaluation"),
        (_scores_by_hand(45), "outside"),
        (_scores_by_hand(38, "if n % 6 == 0:"), "outside"),
        (_scores_by_hand(45, "if n % 6 == 0:", function=None), "outside"),
    ):
        evaluating = evaluating_in(train, backward, frames)
        assert phase_of(frames, evaluating) == phase
        assert phase_of(train, evaluating) == "outside"


def test_a_step_seen_on_a_line_that_makes_none_does_not_move_where_steps_end():
    train, backward = _scores_by_hand(39, function=None), [*_scores_by_hand(41)[:1], *TRAINING[-1:]]
    torn = [*_scores_by_hand(46)[:1], *stack(STEP)]
    frames = _scores_by_hand(45, "if n % 6 == 0:")
    update = [*_scores_by_hand(42)[:1], *stack(STEP)]
    called = [*_scores_by_hand(39)[:1], *frames[1:]]
    seen = [(train, 9), (backward, 60), (update, 50), (torn, 2), (called, 2), (frames, 40)]
    evaluating = evaluation_functions((one, phase_of(one), count) for one, count in seen)
    assert phase_of(frames, evaluating) == "evaluation"


def test_a_server_that_predicts_without_gradient_runs_forward():
    inside = stack(*MAIN, NO_GRAD, "user/serve.py predict", CALL)
    assert phase_of(inside, evaluating_in(inside)) == "forward"


def test_an_average_of_weights_without_gradient_is_no_evaluation():
    update = stack(*MAIN, NO_GRAD, "user/train.py update_ema | target.mul_(0.999)")
    assert phase_of(update, evaluating_in(TRAINING, update)) == "outside"


def test_evaluation_below_the_model_is_forward():
    frames = stack(*MAIN, CALL, "user/model.py Net.forward", "user/model.py eval_basis")
    assert phase_of(frames, evaluating_in(TRAINING, frames)) == "forward"


def test_a_forked_child_starts_where_its_process_starts():
    frames = stack(
        *MAIN,
        "std/multiprocessing/popen_fork.py Popen._launch",
        "std/multiprocessing/process.py BaseProcess._bootstrap",
        "torch/utils/data/_utils/worker.py _worker_loop",
    )
    assert own_start(frames) == 3
    assert own_start(stack(*MAIN)) == 0
    assert own_start(stack("std/threading.py Thread._bootstrap", "user/a.py run")) == 0


@pytest.mark.parametrize(
    ("name", "saves"),
    [
        ("save_checkpoint", True), ("Trainer.maybe_checkpoint", True), ("write_ckpt", True), ("save_model", True),
        ("saveState", True), ("load_checkpoint", False), ("restore_ckpt", False), ("save_metrics", False), ("main", False),
    ],
)  # fmt: skip
def test_names_of_functions_that_write_checkpoints(name, saves):
    assert saves_state(name) is saves
