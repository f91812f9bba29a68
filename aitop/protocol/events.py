"""The kinds of events in the ring.

An event is five signed 64-bit words: kind, start, end, a, b. `start` and `end` are nanoseconds of CLOCK_MONOTONIC. The
list below says for each kind what `a` and `b` hold, in that order; -1 means not measured. A word that is not listed
has no meaning (0 or -1).
"""

from __future__ import annotations

NOT_MEASURED = -1

# Phases of a step, each noted at its end:
#   LOADER              a DataLoader made an iterator
#   NEXT, NO_NEXT       an iterator returned a batch, or raised (exhausted): its id, batches that lay ready in its queue
#   FORWARD             outermost forward of a root module: leading dimension of its input, token ids in it
#   FORWARD_ALONE       the same without gradient
#   BACKWARD            1 if it accumulates gradients into parameters, 2 if it also updates them, else 0
#   OPTIMIZER_BEGINS    an optimizer step with a closure begins; other phases may come before it ends
#   OPTIMIZER_ENDS      id of the optimizer, CPU clock of the thread (ns)
LOADER, NEXT, NO_NEXT, FORWARD, FORWARD_ALONE, BACKWARD, OPTIMIZER_BEGINS, OPTIMIZER_ENDS = range(8)
#   SAVE                torch.save
#   COLLECT             a garbage collection of Python
#   ASIDE               a forward without gradient in a thread other than the stepping one: as for FORWARD
SAVE, COLLECT, ASIDE = range(8, 11)
#   TRANSFER            a copy to the device: bytes
#   BLOCKING            a call that waits for the device
#   COLLECTIVE          a call into torch.distributed: bytes, or -1 for a wait for an earlier call
#   GENERATE            a call of transformers' `generate`: tokens generated, tokens computed for them without KV cache
#   SKIPPED             a training step ends without its optimizer step, which a GradScaler skipped: id of the optimizer
TRANSFER, BLOCKING, COLLECTIVE, GENERATE, SKIPPED = range(11, 16)
#   OWNER               another thread is the stepping thread from now on
#   TRAINED             the model had gradients when the hook came in
#   TIMED               comes before an OPTIMIZER_ENDS: number under which the times on the device will follow
# Times on the device have no start and end. Their words after the kind are (times in nanoseconds):
#   DEVICE              number, forward, backward, optimizer
#   DEVICE_REST         number, idle
OWNER, TRAINED, TIMED, DEVICE, DEVICE_REST = range(16, 21)
# Where steps are short, most of them are only counted:
#   COUNTING_BEGINS     a step has ended; the following steps are only counted, each no longer than `a` nanoseconds
#   COUNTED             `a` steps were counted between `start` (where counting began) and `end`; timing resumes
#   UNSEEN              the hook saw nothing of the current step between `start` and `end`
COUNTING_BEGINS, COUNTED, UNSEEN = range(21, 24)
# Servers. Figures that do not fit into one event go into the events just before it. All events of a request or of an
# iteration are added in one piece:
#   REQUEST             a request was answered; `start` is its arrival: tokens generated, tokens of the prompt
#   ITERATION           an iteration of an engine's loop: idle time before it (ns), requests in its batch
#   COMPILE             torch.compile has compiled something
# These have no start and end either. Their words after the kind are (times in nanoseconds):
#   REQUEST_PARTS       time in queue, preprocess, model, postprocess
#   REQUEST_MORE        time to the first token (TTFT), number of preemptions, CPU time of the thread that worked on it
#                       (0: not measured), time until the first chunk of a streamed answer was sent (0: not measured);
#                       both times count from the arrival
#   ITERATION_PARTS     time in schedule, prepare, model, sample
#   ITERATION_TOKENS    time in output, prompt (prefill) tokens, decoded tokens, requests preempted
#   ITERATION_STATE     requests running after it, requests waiting before it, millionths of the KV cache in use
REQUEST_PARTS, REQUEST_MORE, REQUEST = range(24, 27)
ITERATION_PARTS, ITERATION_TOKENS, ITERATION_STATE, ITERATION, COMPILE = range(27, 32)
# The next new event gets number 32. If it times a phase of its own, give it a row in model/phases.py, not in PHASES.
KINDS = 32

# Events that are noted at the end of a phase, so after everything that happened within the phase.
PHASES = (LOADER, NEXT, NO_NEXT, FORWARD, FORWARD_ALONE, BACKWARD, OPTIMIZER_ENDS, SAVE)
# What a server does. These events belong to no step.
SERVING = (*range(REQUEST_PARTS, REQUEST + 1), *range(ITERATION_PARTS, ITERATION + 1), COMPILE)
# Kinds whose second and third word are not timestamps.
UNTIMED = (
    DEVICE,
    DEVICE_REST,
    REQUEST_PARTS,
    REQUEST_MORE,
    ITERATION_PARTS,
    ITERATION_TOKENS,
    ITERATION_STATE,
)
