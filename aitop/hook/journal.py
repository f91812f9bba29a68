"""Holds the events that are not written to the ring yet, and the state that the wrappers share.

Code that runs once a step is no longer in the CPU's caches when it runs again, so it has to be short. An event is five
consecutive integers in one flat list, as in the ring (see protocol/events.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..protocol.ring import EVENT_WORDS

# Values of `owner` that are no threads: none has stepped so far; the hook has left or is about to.
NOBODY = 0
GONE = -1

# Bounds the list where nobody empties it: in forked workers, and during one long call.
MOST_WORDS = EVENT_WORDS * 16384

# Between two ticks, in which the events are written to the ring.
TICK_EVERY_NS = 50_000_000
# In a fast run, phases that are only noted between two calls of `look_after`. One more is a prime number, so that each
# kind of phase gets its turn.
PHASES_SKIPPED = 16
# `look_after` is called without skipping once a tick is overdue by this much: a fast run may have become a slow one.
LATE_NS = 50_000_000


def started_elsewhere(ident: int) -> bool:
    """Return whether this thread is none that Python started: autograd's engine calls hooks in threads of its own."""
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    # Whoever asks such a thread for its name, as logging does, leaves a dummy for it.
    return thread is None or isinstance(thread, threading._DummyThread)


class Journal:
    """Events of one process, and the state of the stepping thread. Times are CLOCK_MONOTONIC nanoseconds.

    owner           ident of the thread that makes the steps, or NOBODY, or GONE
    busy            the owner is inside an outermost batch or forward (True) or backward (BACKWARD)
    collecting      when the current garbage collection began

    Optimizers:
    optimizer       id of the optimizer that is stepping, else 0; while counting, of the one whose steps are counted
    stepping        when its step began, else 0
    nested          number of further optimizers that are stepping inside it
    nests           an optimizer was seen that calls another one, or the `step` of its base class
    updates         an optimizer has stepped inside the backward pass that goes on, or in a thread of autograd's
    steps           optimizer steps so far
    last_step       when the last one ended

    How much is examined:
    fast            steps are short, so measuring must cost little
    skip            phases to note before `look_after` is called again
    due             when `tick` has to be called
    size, tokens    leading dimension and number of token ids of the forward that was examined last, -1 for none
    size_with_grad  whether that forward ran with gradient. When this changes the arguments are examined again, because
                    in reinforcement learning acting and learning use different batch sizes.
    inputs          counts the token ids in the arguments of a forward, -1 for none; None if no measure needs that now
    batch_came      is called with the next batch of a loader; None if no measure needs that now
    arguments_came  is called with the arguments of a forward that are examined; None if no measure needs that now
    called          is called with the event that ended a phase, inside its wrapper; None if no measure needs that now
    cpu_reads       the thread's CPU clock is read at the end of this many next steps; of all steps in a slow run
    ops_due         backwards until one is counted; `count_ops` is called at each of them, none while this is 0
    device          the DeviceClock, None without one
    computed        is called with the start and end of each of the model's computations; None if nobody serves requests

    While steps are only counted (see sampling.py):
    counting        steps are not timed
    count_until     when counting ends at the latest
    count_soon      counting begins at the end of the current step
    longest         a step or data wait longer than this ends the counting (ns); 0: the current step ends it
    forward_began   when the first forward of the current step began
    passes          batches and forwards that are still to be passed on without being examined
    has_teacher     most steps have forwards without gradient, so such a forward does not end the counting
    begin_counting, stop_counting   see Sampling
    """

    # Without slots a step costs about 1 µs more (a step that is only counted 10.7 instead of 9.1 µs).
    __slots__ = (
        "arguments_came",
        "batch_came",
        "begin_counting",
        "busy",
        "called",
        "collecting",
        "computed",
        "count_ops",
        "count_soon",
        "count_until",
        "counting",
        "cpu_reads",
        "device",
        "due",
        "extend",
        "fast",
        "forward_began",
        "has_teacher",
        "inputs",
        "last_step",
        "longest",
        "nested",
        "nests",
        "ops_due",
        "optimizer",
        "owner",
        "passes",
        "size",
        "size_with_grad",
        "skip",
        "stepping",
        "steps",
        "stop_counting",
        "tick",
        "tokens",
        "updates",
        "words",
    )

    def __init__(self, tick: Callable[[int], None]) -> None:
        self.words: list[int] = []
        # Safe to call in any thread: it adds all five words or none, and no other thread's words between them.
        self.extend = self.words.extend
        self.owner = NOBODY
        self.busy: int = False
        self.collecting = 0
        self.optimizer = self.stepping = self.nested = self.steps = self.last_step = 0
        self.nests = self.updates = False
        self.fast = False
        self.skip = self.due = 0
        self.tick = tick
        self.size = self.tokens = -1
        self.size_with_grad = False
        self.inputs: Callable[[tuple[Any, ...], dict[str, Any], int], int] | None = None
        self.called: Callable[[int], None] | None = None
        self.batch_came: Callable[[Any], None] | None = None
        self.arguments_came: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None
        self.cpu_reads = 2
        self.ops_due = 0
        self.count_ops: Callable[[tuple[Any, ...], dict[str, Any]], None] = nothing
        self.device: Any = None
        self.computed: Callable[..., None] | None = None
        self.counting = self.count_soon = self.has_teacher = False
        self.count_until = self.longest = self.forward_began = self.passes = 0
        self.begin_counting: Callable[[int, int], None] = nothing
        self.stop_counting: Callable[..., None] = nothing

    def note(self, kind: int, start: int, end: int, a: int = 0, b: int = 0) -> None:
        """Add an event. Events beyond `MOST_WORDS` are dropped."""
        if len(self.words) < MOST_WORDS:
            self.extend((kind, start, end, a, b))

    @property
    def newest(self) -> int:
        """The kind of the newest event, -1 without one."""
        return self.words[-EVENT_WORDS] if self.words else -1

    def take(self) -> list[int]:
        """Return the events and remove them from the journal. Other threads may add events at the same time."""
        words = self.words
        taken = words[:]
        del words[: len(taken)]
        return taken


def nothing(*args: Any) -> None:
    """Do nothing: the placeholder for a function that is not set."""
