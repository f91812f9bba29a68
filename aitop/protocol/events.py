"""The kinds of events in the ring.

An event is five signed words: kind, start, end, a, b. `start` and `end` are nanoseconds of CLOCK_MONOTONIC; what `a`
and `b` mean depends on the kind. They are 0 where nothing is said about them below, and -1 means not measured.
"""

from __future__ import annotations

NOT_MEASURED = -1

# Phases of a step, each noted at its end.
#   LOADER              a DataLoader has made an iterator
#   NEXT, NO_NEXT       a batch has come, or there are no more: id of the iterator, batches ready in its queue
#   FORWARD             outermost forward of a root module: leading dimension of its input, token ids in it
#   FORWARD_ALONE       the same without gradient
#   BACKWARD            1 where it fills the gradients of parameters
#   OPTIMIZER_BEGINS    a step with a closure begins, in which other phases may lie
#   OPTIMIZER_ENDS      id of the optimizer, CPU clock of the thread
LOADER, NEXT, NO_NEXT, FORWARD, FORWARD_ALONE, BACKWARD, OPTIMIZER_BEGINS, OPTIMIZER_ENDS = range(8)
#   SAVE                torch.save
#   COLLECT             a garbage collection of Python
#   ASIDE               a forward in another thread than the one that steps: leading dimension
SAVE, COLLECT, ASIDE = range(8, 11)
#   TRANSFER            a copy to the device: bytes
#   BLOCKING            a call that waits for the device
#   COLLECTIVE          a call into torch.distributed: bytes, or -1 for a wait for an earlier call
#   GENERATE            a call of transformers' `generate`: tokens that came out
#   SKIPPED             a training step ends, whose optimizer step a GradScaler has left out: id of the optimizer
TRANSFER, BLOCKING, COLLECTIVE, GENERATE, SKIPPED = range(11, 16)
#   OWNER               another thread steps from now on
#   TRAINED             the model has gradients from before the hook came in
#   TIMED               before an OPTIMIZER_ENDS: its times on the device will follow under this number (in a)
# The device's times have no start and end. Their words after the kind are:
#   DEVICE              number, forward, backward, optimizer
#   DEVICE_REST         number, idle
OWNER, TRAINED, TIMED, DEVICE, DEVICE_REST = range(16, 21)
# Where steps are short, most of them are only counted:
#   COUNTING_BEGINS     a step has ended; steps that follow are only counted, each no longer than `a` nanoseconds
#   COUNTED             `a` steps went by between `start`, where counting began, and `end`; events that follow are timed
#   UNSEEN              nothing is known of the step under way between `start` and `end`
COUNTING_BEGINS, COUNTED, UNSEEN = range(21, 24)
# Servers. What does not fit into one event stands in those before it; all of one request, or turn, are noted at once:
#   REQUEST             a request was answered; `start` is its arrival: tokens that came out, tokens of the prompt
#   ITERATION           a turn of an engine's loop: how long it had waited for requests before, requests in the batch
#   COMPILE             torch.compile has compiled something
# These have no start and end either. Their words after the kind, times in nanoseconds, are:
#   REQUEST_PARTS       queue, preprocess, model, postprocess
#   REQUEST_MORE        time from the arrival to the first token, how often it was preempted, CPU time of the thread
#                       that worked on it (0: not measured), time from the arrival until the first part of an answer
#                       in several was sent (0: not measured)
#   ITERATION_PARTS     schedule, prepare, model, sample
#   ITERATION_TOKENS    output, tokens of prompts, tokens decoded, requests preempted
#   ITERATION_STATE     requests in the engine after it, requests waiting before it, millionths of the KV cache in use
REQUEST_PARTS, REQUEST_MORE, REQUEST = range(24, 27)
ITERATION_PARTS, ITERATION_TOKENS, ITERATION_STATE, ITERATION, COMPILE = range(27, 32)
# A new event is number 32. If it times a phase of its own, it has a row in model/phases.py and does not go into PHASES.
KINDS = 32

# The events above that end a phase: what happened within the phase was noted before.
PHASES = (LOADER, NEXT, NO_NEXT, FORWARD, FORWARD_ALONE, BACKWARD, OPTIMIZER_ENDS, SAVE)
# What a server does: it belongs to no step.
SERVING = (*range(REQUEST_PARTS, REQUEST + 1), *range(ITERATION_PARTS, ITERATION + 1), COMPILE)
# In these, the second and third word are no moments.
UNTIMED = (
    DEVICE,
    DEVICE_REST,
    REQUEST_PARTS,
    REQUEST_MORE,
    ITERATION_PARTS,
    ITERATION_TOKENS,
    ITERATION_STATE,
)
