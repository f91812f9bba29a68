"""What one stack says: phase, state, work, whose line, and the loader's workers."""
# ruff: noqa: E501 - a row is a case

from __future__ import annotations

import pytest
from stack_maker import frame, stack

from aitop.stacks.reading import own_start, read_stack

MAIN = ("user/train.py:90 <module>", "user/train.py:50 main")
NEXT = "torch/utils/data/dataloader.py _BaseDataLoaderIter.__next__"
CALL = "torch/nn/modules/module.py Module._wrapped_call_impl"
STEP = "torch/optim/optimizer.py Optimizer.profile_hook_step.<locals>.wrapper"
SCHEDULED = "torch/optim/lr_scheduler.py LRScheduler.__init__.<locals>.patch_track_step_called.<locals>.wrap_step.<locals>.wrapper"
FIT = ("lightning/pytorch/trainer/trainer.py Trainer.fit", "lightning/pytorch/loops/fit_loop.py _FitLoop.advance")
CLOSURE = (STEP, "torch/optim/adam.py Adam.step", "lightning/pytorch/loops/closure.py Closure.__call__")
STRATEGY = "lightning/fabric/strategies/strategy.py Strategy.backward"
ANOMALY = "torch/fx/traceback.py format_stack"
HF = ("transformers/trainer.py Trainer.train", "transformers/trainer.py Trainer._inner_training_loop")
FETCH = "torch/utils/data/_utils/fetch.py _MapDatasetFetcher.fetch"
BOOT = "std/multiprocessing/process.py BaseProcess._bootstrap"
LOOP = "std/asyncio/base_events.py BaseEventLoop._run_once"
WORKER = (
    *MAIN,
    "torch/utils/data/dataloader.py DataLoader.__iter__",
    BOOT,
    "torch/utils/data/_utils/worker.py _worker_loop",
)


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        # plain loops
        ((*MAIN, NEXT, "std/multiprocessing/queues.py Queue.get"), "data_wait"),
        ((*MAIN, NEXT, FETCH, "user/data.py D.__getitem__", CALL), "data_wait"),
        ((*MAIN, "torch/utils/data/dataloader.py DataLoader.__iter__", "std/multiprocessing/popen_fork.py _launch"), "data_wait"),
        ((*MAIN, CALL, "user/model.py Net.forward"), "forward"),
        ((*MAIN, CALL, "user/model.py Net.forward", "torch/utils/data/dataloader.py DataLoader.__iter__"), "forward"),
        ((*MAIN, "torch/_dynamo/eval_frame.py compile_wrapper"), "forward"),
        ((*MAIN, "torch/_tensor.py Tensor.backward", "torch/autograd/__init__.py backward"), "backward"),
        ((*MAIN, "torch/_tensor.py Tensor.backward", "user/ops.py Exp.backward", CALL), "backward"),
        ((*MAIN, STEP, "torch/optim/adamw.py AdamW.step"), "optimizer"),
        ((*MAIN, STEP, "user/optim.py Mine.step"), "optimizer"),
        ((*MAIN, SCHEDULED, STEP), "optimizer"),
        ((*MAIN, "torch/optim/lr_scheduler.py LRScheduler.step"), "outside"),
        ((*MAIN, "torch/nn/utils/clip_grad.py clip_grad_norm_"), "outside"),
        ((*MAIN, "torch/serialization.py save", "torch/serialization.py _save"), "save"),
        ((*MAIN, "torch/distributed/distributed_c10d.py barrier"), "communication"),
        ((*MAIN, "gymnasium/core.py Wrapper.step", "user/env.py World.step"), "environment"),
        ((*MAIN, "user/data.py read_batches"), "outside"),
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
        ((*MAIN, "transformers/generation/utils.py GenerationMixin.generate", "transformers/generation/logits_process.py TopKLogitsWarper.__call__"), "forward"),
        ((*MAIN, "transformers/generation/utils.py GenerationMixin.generate", "user/poems.py Rhymes.__call__"), "outside"),
        ((*MAIN, "transformers/generation/utils.py GenerationMixin.generate", CALL, "user/model.py Net.forward"), "forward"),
        ((*MAIN, *HF, "transformers/trainer.py Trainer.training_step", "accelerate/accelerator.py Accelerator.backward"), "backward"),
        ((*MAIN, *HF, "accelerate/optimizer.py AcceleratedOptimizer.step", STEP), "optimizer"),
        ((*MAIN, *HF, "transformers/trainer.py Trainer.evaluate", "transformers/trainer.py Trainer.evaluation_loop", CALL), "evaluation"),
        ((*MAIN, *HF, "transformers/trainer.py Trainer._save_checkpoint", "torch/serialization.py save"), "save"),
        # Lightning: everything runs inside the optimizer's step
        ((*MAIN, *FIT, *CLOSURE, "user/model.py Lit.training_step", CALL), "forward"),
        ((*MAIN, *FIT, *CLOSURE, STRATEGY, "torch/_tensor.py Tensor.backward"), "backward"),
        ((*MAIN, *FIT, *CLOSURE, STRATEGY, "user/train.py Watch.on_after_backward"), "outside"),
        ((*MAIN, STEP, "torch/optim/lbfgs.py LBFGS.step", "torch/utils/_contextlib.py decorate_context", "user/train.py closure"), "outside"),
        ((*MAIN, *FIT, STEP, "torch/optim/adam.py Adam.step"), "optimizer"),
        ((*MAIN, *FIT, "lightning/pytorch/loops/evaluation_loop.py _EvaluationLoop.run", NEXT), "evaluation"),
    ],
)  # fmt: skip
def test_a_stack_has_the_phase_of_its_library_frames(frames, phase):
    assert read_stack(stack(*frames)).phase == phase


def test_only_what_torch_s_own_update_calls_is_a_closure():
    """A user's optimizer, called by torch's wrapper, is the update itself; a scheduler's wrapper updates nothing."""
    within = (*MAIN, *CLOSURE, "user/train.py Watch.on_after_backward")
    assert read_stack(stack(*within)).closure
    own = (*MAIN, STEP, "user/optimizer.py Lion.step", "user/optimizer.py update")
    scheduled = (*MAIN, SCHEDULED, STEP, "user/optimizer.py Lion.step")
    for frames in (own, scheduled, (*MAIN, STEP, "torch/optim/adam.py Adam.step", "torch/optim/adam.py adam")):
        seen = read_stack(stack(*frames))
        assert (seen.phase, seen.closure) == ("optimizer", False)


@pytest.mark.parametrize(
    ("below", "state", "work"),
    [
        ((), None, None),
        (("PIL/Image.py open",), None, "decode"),
        (("std/queue.py Queue.get", "std/threading.py Condition.wait"), "wait-queue", None),
        (("std/concurrent/futures/_base.py Future.result", "std/threading.py Condition.wait"), "wait-lock", None),
        (("std/threading.py Thread.run", "std/concurrent/futures/thread.py _worker"), "wait-queue", None),
        (("std/concurrent/futures/thread.py _worker", "gunicorn/http/wsgi.py Response.write"), None, None),
        # a socket's read below a client is the network, and a call of a service that logs is a log
        (("requests/api.py get", "std/socket.py SocketIO.readinto"), None, "network"),
        (("wandb/sdk/run.py log", "requests/api.py post", "std/threading.py Condition.wait"), None, "log"),
        # so does anomaly detection over the operation that it writes down
        (
            (CALL, "torch/nn/modules/linear.py Linear.forward", ANOMALY, "std/traceback.py extract_stack"),
            None,
            "anomaly",
        ),
        # the compiler wins over the model that it compiles
        ((CALL, "torch/_dynamo/convert_frame.py __call__", "sympy/core/expr.py f"), "compile", "tensor"),
        ((CALL, "torch/_inductor/output_code.py __call__"), None, "tensor"),
    ],
)
def test_a_line_does_what_the_libraries_below_it_do(below, state, work):
    seen = read_stack(stack(*MAIN, *below))
    assert (seen.state, seen.work) == (state, work)
    assert seen.leaf == (not below)


def test_a_function_that_a_compiler_traces_is_not_at_work():
    traces = ("jax/_src/pjit.py cache_miss", "jax/_src/interpreters/partial_eval.py trace_to_jaxpr_dynamic")
    seen = read_stack(stack(*MAIN, *traces, "user/model.py:7 loss", "jax/_src/numpy/ufuncs.py tanh"))
    assert (seen.state, seen.work, seen.line) == ("compile", "trace", frame("user/train.py:50 main"))
    seen = read_stack(stack(*MAIN, *traces))
    assert (seen.state, seen.work) == ("compile", "tensor")


def test_libraries_above_the_users_line_do_not_say_what_it_does():
    seen = read_stack(stack(*MAIN, "PIL/Image.py open", "user/data.py:7 load"))
    assert (seen.state, seen.work, seen.leaf) == (None, None, True)


@pytest.mark.parametrize("file", ["<aitop hook>/measures/device_calls.py", "aitop/hook/measures/device_calls.py"])
def test_our_hook_is_on_no_stack_however_it_came_in(file):
    converts = read_stack(stack(*MAIN, f"{file}:9 wrap_copy.<locals>.copy"))
    assert converts.leaf and converts.end is None, "its time is the time of the native call that it wraps"
    assert converts.frames == tuple(stack(*MAIN)) and converts.stages == tuple(enumerate(converts.frames))
    waits = read_stack(stack(*MAIN, f"{file}:9 wrap_copy.<locals>.copy", "torch/_tensor.py copy"))
    assert not waits.leaf and waits.end is not None and waits.end.function == "copy"


def test_the_line_is_the_users_innermost_and_via_leads_to_it():
    seen = read_stack(stack(*MAIN, CALL, "user/model.py:8 Net.forward", "torch/nn/functional.py relu"))
    assert seen.line == frame("user/model.py:8 Net.forward")
    assert [above.function for above in seen.via] == ["<module>", "main"]
    assert [above.function for above in seen.callers] == ["<module>", "main"], "those above the model's call"
    assert seen.library == 2


def test_a_stack_without_user_code_has_no_line():
    seen = read_stack(stack("std/threading.py Thread._bootstrap", "std/threading.py Thread.run"))
    assert seen.line is None and not seen.leaf


# workers of a loader ----------------------------------------------------------------------------------------------


def test_a_worker_starts_where_it_was_forked():
    frames = stack(*WORKER, FETCH, "user/data.py:20 D.__getitem__")
    seen = read_stack(frames)
    assert own_start(frames) == 3 and seen.frames == tuple(frames[3:])
    assert (seen.worker, seen.phase, seen.idle) == (True, "data_wait", False)
    assert seen.line == frame("user/data.py:20 D.__getitem__")


def test_a_worker_that_waits_for_indices_is_idle():
    assert read_stack(
        stack(
            *WORKER, "std/multiprocessing/queues.py Queue.get", "std/multiprocessing/connection.py _ConnectionBase.poll"
        )
    ).idle
    assert not read_stack(stack(*WORKER, FETCH, "user/data.py load", "std/queue.py Queue.get")).idle


def test_a_worker_without_user_code_has_the_line_that_started_it():
    seen = read_stack(stack(*WORKER, FETCH, "torch/utils/data/_utils/collate.py default_collate"))
    assert seen.line == frame("user/train.py:50 main") and seen.work == "collate"


@pytest.mark.parametrize(
    ("above", "function", "work"),
    [
        (FETCH, "glue", "collate"),
        (FETCH, "D.__getitem__", None),
        (FETCH, "D.__getitems__", None),
        (f"{FETCH}.<locals>.<listcomp>", "one", None),
        ("torch/utils/data/_utils/fetch.py _IterableDatasetFetcher.fetch", "rows", None),
    ],
)
def test_a_collate_function_is_known_by_who_calls_it(above, function, work):
    seen = read_stack(stack(*WORKER, above, f"user/data.py {function}", "user/data.py inner"))
    assert seen.work == work


# imports ----------------------------------------------------------------------------------------------------------


def test_an_import_below_the_users_line_is_none_of_the_steps():
    importing = "<frozen importlib._bootstrap> _find_and_load"
    assert read_stack(stack(*MAIN, importing, "sympy/core/expr.py <module>")).importing
    assert not read_stack(stack("user/run.py:1 <module>", importing, *MAIN, NEXT)).importing
    assert not read_stack(stack(*MAIN, NEXT)).importing


@pytest.mark.parametrize(
    ("frames", "state", "work"),
    [
        # what starts an event loop says nothing of what the loop does
        ((*MAIN, "aiohttp/web.py run_app", LOOP, "std/selectors.py EpollSelector.select"), "wait-queue", None),
        ((*MAIN, "grpc/aio/_server.py wait", LOOP, "std/selectors.py EpollSelector.select"), "wait-queue", None),
        ((*MAIN, "aiohttp/web.py run_app", LOOP, "aiohttp/streams.py StreamReader.read"), "wait-queue", None),
        # a client that waits without a loop
        ((*MAIN, "grpc/_channel.py wait", "std/selectors.py EpollSelector.select"), None, "network"),
        ((*MAIN, LOOP, "user/app.py answer", "requests/api.py get", "std/socket.py readinto"), None, "network"),
        ((*MAIN, LOOP, "user/app.py answer", "aiohttp/web_response.py json_response"), None, None),
        # what a library does in the loop for a request is no line of the user's, and does not wait either
        ((*MAIN, LOOP, "std/asyncio/events.py Handle._run", "starlette/responses.py JSONResponse.render"), None, None),
    ],
)
def test_an_event_loop_that_has_nothing_to_do_waits_for_requests(frames, state, work):
    seen = read_stack(stack(*frames))
    assert (seen.state, seen.work) == (state, work)


def test_forward_passes_that_run_again_in_the_backward_pass_are_recomputed():
    """As torch.utils.checkpoint does; the user's module is below it, or a library's."""
    back = ("user/train.py:9 main | loss.backward()", "torch/_tensor.py Tensor.backward")
    again = (*back, "torch/utils/checkpoint.py _checkpoint_hook.__init__.<locals>.unpack_hook")
    call = "torch/nn/modules/module.py Module._call_impl"
    own = read_stack(stack(*again, call, "user/net.py:30 Block.forward", "torch/nn/modules/linear.py Linear.forward"))
    assert (own.phase, own.work, own.line.line) == ("backward", "recompute", 30)
    library = read_stack(stack(*again, call, "transformers/models/llama/modeling_llama.py Layer.forward", call))
    assert (library.phase, library.work, library.line.line) == ("backward", "recompute", 9)
    assert read_stack(stack(*back)).work == "tensor"
    forward = ("user/train.py:8 main | loss = net(x)", call, "torch/utils/checkpoint.py checkpoint", call)
    assert (read_stack(stack(*forward)).phase, read_stack(stack(*forward)).work) == ("forward", "tensor")
