"""The events that the wrappers have noted and that were not written to the ring yet, and the state that they share.

The code that runs in every step is out of the processor's caches when its turn comes, so it has to be short. An event
is five integers one after the other in one list, as in the ring (see protocol/events.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..protocol.ring import EVENT_WORDS

# Owners that are no threads: none has stepped so far; the hook has left or is about to.
NOBODY = 0
GONE = -1

# Bounds the list where nobody empties it: in forked workers, and within one long call.
MOST_WORDS = EVENT_WORDS * 16384

# In a fast run `look_after` is called after this number of phases that are only noted. One more is a prime number, so
# that each kind of phase has its turn.
PHASES_SKIPPED = 16
# No phase is skipped when `look_after` is overdue by this time: a fast run may become a slow one.
LATE_NS = 50_000_000


class Journal:
    """Events of one process, and the state of the thread that steps.

    owner           ident of the thread that steps, or NOBODY, or GONE
    busy            the owner is inside an outermost batch, forward or backward
    collecting      when the garbage collection under way began

    Optimizers:
    optimizer       id of the optimizer whose step is under way, else 0; while counting, of the one that ends steps
    stepping        when its step began, else 0
    nested          further optimizers that step inside it
    nests           an optimizer was seen that calls another one, or its base class
    steps           optimizer steps so far
    last_step       when the last one ended

    How much is looked at:
    fast            steps are short, so measuring has to be brief
    skip            phases that are still only noted until `look_after` is called
    due             when `tick` has to be called
    size, tokens    leading dimension and token ids of the forward that was looked at last
    inputs          counts the token ids in the arguments of a forward, -1 for none; None where nobody wants to know
    called          is told of a forward while it is looked at; None where nobody wants to know
    cpu_reads       steps until the CPU clock of the thread is read again
    ops_due         at this backward from now `count_ops` is called, which counts the graph; 0 for never
    device          the clock of the device (DeviceClock), None without one
    computed        is told when a model began and ended to compute; None where no requests are measured

    While steps are only counted (see sampling.py):
    counting        steps are not timed
    count_until     when counting ends at the latest
    count_soon      counting begins at the end of the step under way
    longest         a longer step, or wait for a batch, ends the counting (nanoseconds)
    forward_began   when the first forward of the step under way began
    passes          batches and forwards that are still passed on without a look
    has_teacher     most steps have forwards without gradient, so that such a forward does not end the counting
    begin_counting, stop_counting   see Sampling
    """

    # Without them a step costs about 1 µs more (10.7 against 9.1 where it is only counted).
    __slots__ = (
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
        "skip",
        "stepping",
        "steps",
        "stop_counting",
        "tick",
        "tokens",
        "words",
    )

    def __init__(self, tick: Callable[[int], None]) -> None:
        self.words: list[int] = []
        # Safe in any thread: it adds all five words or none, and nothing in between.
        self.extend = self.words.extend
        self.owner = NOBODY
        self.busy = False
        self.collecting = 0
        self.optimizer = self.stepping = self.nested = self.steps = self.last_step = 0
        self.nests = False
        self.fast = False
        self.skip = self.due = 0
        self.tick = tick
        self.size = self.tokens = -1
        self.inputs: Callable[[tuple[Any, ...], dict[str, Any], int], int] | None = None
        self.called: Callable[[], None] | None = None
        self.cpu_reads = 2
        self.ops_due = 0
        self.count_ops: Callable[[tuple[Any, ...]], None] = nothing
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
        """Return the events and remove them here. Other threads may be adding some meanwhile."""
        words = self.words
        taken = words[:]
        del words[: len(taken)]
        return taken


def nothing(*args: Any) -> None:
    """Stands for a function where there is none."""
