"""Where in a training step a stack stands, told from the library frames on it. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from aitop.model.stacks import Frame

Phase = Literal[
    "data_wait", "transfer", "forward", "backward", "optimizer", "communication", "evaluation", "save", "outside"
]
Function = tuple[str, str]

Markers = tuple[tuple[re.Pattern[str], re.Pattern[str] | None, Phase], ...]


def _compiled(rows: Sequence[tuple[str, str | None, Phase]]) -> Markers:
    return tuple(
        (re.compile(file), re.compile(rf"(?:^|[.>])(?:{function})$") if function else None, phase)
        for file, function, phase in rows
    )


# File, function (None for any), phase. The first row that fits a library frame counts.
_MARKERS = _compiled(
    (
        (r"/transformers/trainer\w*\.py$", r"evaluate|evaluation_loop|prediction_loop|predict", "evaluation"),
        (r"/lightning.*/(?:evaluation|prediction)_(?:epoch_)?loop\.py$", None, "evaluation"),
        (r"/accelerate/utils/operations\.py$", r"send_to_device", "transfer"),
        (r"/lightning.*/apply_func\.py$", r"move_data_to_device|batch_to", "transfer"),
        (r"/transformers/trainer\.py$", r"_prepare_inputs?", "transfer"),
        (r"/torch/utils/data/(?:dataloader|_utils/\w+)\.py$", None, "data_wait"),
        (r"/accelerate/data_loader\.py$", None, "data_wait"),
        (r"/lightning.*/(?:fetchers|combined_loader)\.py$", None, "data_wait"),
        (r"/(?:site|dist)-packages/(?:torchdata|webdataset|ffcv|nvidia/dali|streaming|datasets)/", None, "data_wait"),
        (r"/torch/nn/modules/module\.py$", r"_call_impl|_wrapped_call_impl", "forward"),
        (r"/torch/nn/functional\.py$", None, "forward"),
        (r"/torch/autograd/function\.py$", r"apply", "forward"),
        (r"/torch/_dynamo/eval_frame\.py$", r"compile_wrapper|_TorchDynamoContext\.__call__\.<locals>\._fn", "forward"),
        (r"/torch/(?:_tensor|autograd/\w+)\.py$", r"backward|grad|_engine_run_backward", "backward"),
        (r"/(?:accelerate|deepspeed|lightning\w*|pytorch_lightning)/", r"backward", "backward"),
        (r"/torch/optim/(?:lr_scheduler|swa_utils)\.py$", None, "outside"),
        (r"/torch/optim/", r"state_dict|load_state_dict|add_param_group|__init__|__setstate__", "outside"),
        (r"/torch/optim/", None, "optimizer"),
        (r"/torch/(?:cuda/)?amp/grad_scaler\.py$", r"step|unscale_|update", "optimizer"),
        (r"/torch/serialization\.py$", r"save|_save|_legacy_save", "save"),
        (r"/torch/distributed/checkpoint/", r"save|async_save|save_state_dict", "save"),
        (r"/numpy/lib/\w*npyio\w*\.py$", r"save|savez|savez_compressed|_savez", "save"),
        (r"/safetensors/", r"save|save_file|save_model", "save"),
        (r"/transformers/", r"save_pretrained|save_model|_save_checkpoint|_save", "save"),
        (r"/lightning", r"save_checkpoint", "save"),
        (r"/joblib/", r"dump", "save"),
        (r"/torch/distributed/(?:distributed_c10d|c10d_logger)\.py$", None, "communication"),
    )
)
# What a phase may turn out to be further in: an optimizer's closure computes the loss, a module may train itself.
_REFINED: dict[Phase, frozenset[Phase]] = {
    "optimizer": frozenset({"forward", "backward"}),
    "forward": frozenset({"backward", "optimizer"}),
    "data_wait": frozenset({"transfer"}),
    # A learning rate scheduler wraps the optimizer's step.
    "outside": frozenset({"optimizer", "forward", "backward", "save"}),
}
_NO_GRAD = re.compile(r"/torch/utils/_contextlib\.py$")
_STARTED = re.compile(r"/multiprocessing/process\.py$")
_TRANSFER_TEXT = re.compile(
    r"\.cuda\(|\.pin_memory\(|\.(?:to|copy_)\([^)]*(?:non_blocking|dev\b|device|cuda|gpu|rank)", re.IGNORECASE
)
_SAVE_TEXT = re.compile(r"\b(?:torch|pickle|joblib|dill)\.(?:save|dump)\(|\bnp\.savez?\w*\(|\.save_pretrained\(")
# Of the most samples that one place of a function has.
LEAST_OF_PLACES = 0.1
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

EVALUATES = frozenset({"eval", "evaluate", "evaluation", "evaluating", "val", "validation", "test", "testing"})
MAY_EVALUATE = frozenset({"valid", "validate", "validating"})
EVALUATORS = frozenset({"evaluator", "validator", "tester"})
CHECKPOINTS = frozenset({"checkpoint", "checkpoints", "ckpt"})
SAVED = frozenset({"model", "state", "weights", "snapshot"})


def own_start(frames: Sequence[Frame]) -> int:
    """Index of the first frame that the process itself entered: a forked child inherits its parent's stack."""
    for index in range(len(frames) - 1, -1, -1):
        if frames[index].function.endswith("_bootstrap") and _STARTED.search(frames[index].file):
            return index
    return 0


def phase_of(frames: Sequence[Frame], evaluating: frozenset[Function] = frozenset()) -> Phase:
    """Phase of a main thread's stack, outermost frame first. `evaluating`: see `evaluation_functions`."""
    phase: Phase | None = None
    checkpointing = False
    for frame in frames:
        if frame.user:
            if phase in (None, "outside") and (frame.file, frame.function) in evaluating:
                return "evaluation"
            checkpointing = checkpointing or saves_state(frame.function)
            continue
        found = marker(frame.file, frame.function)
        if found is not None and (phase is None or found in _REFINED.get(phase, ())):
            phase = found
    if phase not in (None, "outside"):
        return phase
    return "save" if checkpointing else _phase_of_text(frames)


def evaluation_functions(stacks: Iterable[tuple[Sequence[Frame], Phase, int]]) -> frozenset[Function]:
    """The user's functions in which one process evaluates, from all the stacks of its main thread.

    Each stack comes with its phase and how many samples it has. Evaluating are: a function that is named like it; one
    that is decorated with no_grad and runs the model, in a process that trains; one that runs the model only under a
    condition of its own below the rest of the training function. But none under which a backward pass or an optimizer
    step was seen, nor a decorated one that every step calls for its own loss (frozen features, a teacher).
    """
    seen = [(frames, phase, count, _before_phase(frames)) for frames, phase, count in stacks]
    named: set[Function] = set()
    training = _training(seen)
    forwards: dict[Function, list[tuple[Sequence[Frame], bool]]] = {}
    for frames, phase, _, depth in seen:
        for index, frame in enumerate(frames[:depth]):
            if not frame.user:
                continue
            function = frame.file, frame.function
            if _named_evaluation(frame.function, phase):
                named.add(function)
            if phase == "forward" and index:
                decorated = _NO_GRAD.search(frames[index - 1].file) is not None
                forwards.setdefault(function, []).append((frames[:index], decorated))
    if training:
        for function, calls in forwards.items():
            decorated = any(one for _, one in calls) and not any(
                _before_backward(above, training) for above, _ in calls
            )
            if decorated or all(_now_and_then(above, training) for above, _ in calls):
                named.add(function)
        named |= _running_model_by_hand([(frames[:depth], count) for frames, _, count, depth in seen], training)
    return frozenset(named - training.keys())


def _before_phase(frames: Sequence[Frame]) -> int:
    """How many frames there are above the first of a library that stands for a phase."""
    return next(
        (
            index
            for index, frame in enumerate(frames)
            if not frame.user and marker(frame.file, frame.function) not in (None, "outside")
        ),
        len(frames),
    )


def _training(seen: Sequence[tuple[Sequence[Frame], Phase, int, int]]) -> dict[Function, list[Frame]]:
    """The functions in or below which steps are made, with the places where they are.

    A stack that was read while it changed shows a step on a line that makes none: it has few samples.
    """
    samples: dict[tuple[Function, Phase], dict[Frame, int]] = {}
    for frames, phase, count, depth in seen:
        if phase in ("backward", "optimizer"):
            for frame in frames[:depth]:
                if frame.user:
                    places = samples.setdefault(((frame.file, frame.function), phase), {})
                    places[frame] = places.get(frame, 0) + count
    training: dict[Function, list[Frame]] = {}
    # Backward passes last: that is where a loss is asked for.
    for (function, _), places in sorted(samples.items(), key=lambda item: item[0][1] == "backward"):
        most = max(places.values())
        training.setdefault(function, []).extend(
            frame for frame, count in places.items() if count >= LEAST_OF_PLACES * most
        )
    return training


def _running_model_by_hand(
    stacks: Sequence[tuple[Sequence[Frame], int]], training: Mapping[Function, Sequence[Frame]]
) -> set[Function]:
    """The same for a model that is no module: what a step calls for its loss is one, whoever else calls it."""
    below = [(frames, _below_training(frames, training), count) for frames, count in stacks]
    samples: dict[Function, int] = {}
    for_loss: dict[Function, int] = {}
    for frames, start, count in below:
        before = start and _before_backward(frames[:start], training)
        for function in {(frame.file, frame.function) for frame in frames[start:] if frame.user}:
            samples[function] = samples.get(function, 0) + count
            for_loss[function] = for_loss.get(function, 0) + (count if before else 0)
    # A stack that was read while it changed shows what it calls on a line that does not.
    model = {function for function, count in for_loss.items() if count > LEAST_OF_PLACES * samples[function]}
    found: set[Function] = set()
    for frames, start, _ in below:
        called = [(frame.file, frame.function) for frame in frames[start:] if frame.user]
        inner = next((index for index, function in enumerate(called) if function in model), 0)
        if start and inner and _now_and_then(frames[:start], training):
            found.update(called[:inner])
    return found


def _below_training(frames: Sequence[Frame], training: Mapping[Function, Sequence[Frame]]) -> int:
    """Index of the first frame that the innermost training function on the stack called; 0 without one."""
    for index in range(len(frames) - 1, -1, -1):
        if (frames[index].file, frames[index].function) in training:
            return index + 1
    return 0


def _before_backward(callers: Sequence[Frame], training: Mapping[Function, Sequence[Frame]]) -> bool:
    """Whether what is called comes before the backward pass in every turn of the same loop."""
    for frame in reversed(callers):
        steps = training.get((frame.file, frame.function))
        if steps is not None:
            backward = steps[-1]
            same = frame.guard == backward.guard and frame.loop == backward.loop
            return same and frame.line < backward.line
        if frame.guard is not None:
            return False
    return False


def _now_and_then(callers: Sequence[Frame], training: Mapping[Function, Sequence[Frame]]) -> bool:
    """Whether it is called below all of a training function's step, under a condition that the step does not have."""
    for frame in reversed(callers):
        steps = training.get((frame.file, frame.function))
        if steps is not None:
            guards = {one.guard for one in steps}
            return frame.guard is not None and frame.guard not in guards and frame.line > max(one.line for one in steps)
    return False


@functools.lru_cache(maxsize=4096)
def marker(file: str, function: str) -> Phase | None:
    """The phase that a library frame stands for, None where it says nothing."""
    for path, name, phase in _MARKERS:
        if path.search(file) and (name is None or name.search(function)):
            return phase
    return None


@functools.lru_cache(maxsize=4096)
def words(function: str) -> frozenset[str]:
    """The words of a function's name without its class, in lower case."""
    parts = [part for part in function.split(".") if part != "<locals>"]
    return frozenset(word.lower() for word in _WORD.findall(parts[-1] if parts else ""))


@functools.lru_cache(maxsize=4096)
def saves_state(function: str) -> bool:
    """Whether a function's name says that it writes a checkpoint."""
    said = words(function)
    return (bool(said & CHECKPOINTS) and not said & {"load", "restore"}) or ("save" in said and bool(said & SAVED))


def _named_evaluation(function: str, phase: Phase) -> bool:
    said = words(function)
    if said & EVALUATES:
        return True
    if said & MAY_EVALUATE and (len(said) == 1 or phase in ("forward", "data_wait")):
        return True
    owner = function.rpartition(".")[0].rpartition(".")[2]
    return bool({word.lower() for word in _WORD.findall(owner)} & EVALUATORS)


def _phase_of_text(frames: Sequence[Frame]) -> Phase:
    """Phase of the user's innermost line by its text, where no library frame says more.

    What a line saves goes through whatever the file is made of; a transfer calls straight into C.
    """
    line = next((frame for frame in reversed(frames) if frame.user), None)
    if line is None or line.text is None:
        return "outside"
    if _SAVE_TEXT.search(line.text):
        return "save"
    return "transfer" if frames[-1].user and _TRANSFER_TEXT.search(line.text) else "outside"
