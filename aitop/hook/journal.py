"""What the wrappers note while the program runs, as briefly as they can. The monitor makes sense of it.

The code that runs in every step is out of the processor's caches when its turn comes, so it has to be short. An event
is five integers one after the other in one list: kind, start, end, a, b; times are nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

NOBODY = 0
GONE = -1

WORDS = 5
# Events go on where nobody sends them off: in forked workers, and within one long call.
MOST_WORDS = WORDS * 16384

# How many phases of a fast run go by until one is looked after; with it a prime, so that each kind has its turn.
PHASES_SKIPPED = 16
# None goes by once it is so much later than `due`: a fast run may become a slow one.
LATE_NS = 50_000_000

# Kinds of events, and their a and b (0 where nothing is said; -1 is not measured):
# NEXT and NO_NEXT (iterator, batches ready), FORWARD and, without gradient, FORWARD_ALONE (leading dimension, ids in
# it), BACKWARD (1 where it fills the parameters' gradients), OPTIMIZER_ENDS (optimizer, the thread's CPU clock),
# ASIDE: a forward in another thread (leading dimension).
LOADER, NEXT, NO_NEXT, FORWARD, FORWARD_ALONE, BACKWARD, OPTIMIZER_BEGINS, OPTIMIZER_ENDS = range(8)
SAVE, COLLECT, ASIDE = range(8, 11)
# For measures: TRANSFER (bytes, site), BLOCKING (site), COLLECTIVE (bytes, site), GENERATE (tokens that came out,
# nanoseconds to the first), SKIPPED (the optimizer whose step was left out: the training step ends there). A site is a
# number that the measure's facts explain.
TRANSFER, BLOCKING, COLLECTIVE, GENERATE, SKIPPED = range(11, 16)
# OWNER: another thread steps from now on. TRAINED: the model has gradients from before we came. TIMED (number), before
# an OPTIMIZER_ENDS: its times on the device will come. They do as DEVICE, number, forward, backward, optimizer, and
# DEVICE_REST, number, idle.
OWNER, TRAINED, TIMED, DEVICE, DEVICE_REST = range(16, 21)
# PAUSE (nanoseconds): from here, where a step has ended, steps are only counted, each no longer than so many. RESTED
# (steps): so many went by from `start`, where the pause began, to `end`; the events that follow tell of the next step
# again. UNSEEN: of that one, nothing was told from `start`, where its first forward began, to `end`.
PAUSE, RESTED, UNSEEN = range(21, 24)


class Counted:
    """What is used in each step, one that is only counted too. Python lays the slots of a base class out first: these
    are neighbours in memory, and what is only used where phases are timed follows.
    """

    __slots__ = ("deep", "last_step", "longest", "optimizer", "resting", "rests_until", "steps")

    def __init__(self) -> None:
        self.deep = 0
        self.last_step = 0
        self.longest = 0
        self.optimizer = 0
        self.resting = False
        self.rests_until = 0
        self.steps = 0


class Timed(Counted):
    """What is used in each phase that is timed."""

    __slots__ = ("busy", "cpu_reads", "device", "due", "nested", "owned", "size", "skip", "stepping", "tokens")

    def __init__(self) -> None:
        super().__init__()
        self.busy = False
        self.cpu_reads = 2
        self.device: Any = None
        self.due = 0
        self.nested = 0
        self.owned: Callable[[], bool] = bool
        self.size = -1
        self.skip = 0
        self.stepping = 0
        self.tokens = -1


class Journal(Timed):
    """The live state of the thread that steps (`owner`); `owned` tells whether the calling thread is that one.

    `busy` is set inside an outermost batch, forward or backward. `stepping` is when the optimizer's step began in
    which the thread is, else 0; `optimizer` is the id of that one, and `nested` counts further ones inside it. `fast`
    tells that steps are so short that measuring has to be brief: then `skip` phases go by until one is looked after.
    The arguments of the last forward that was had the leading dimension `size` and `tokens` ids. `inputs` is a measure
    that looks at them too, and counts the ids (-1 for none). `cpu_clock` is read after the next `cpu_reads` steps; it
    gives -1 where it costs too much. `ops_due` backwards from now the graph is counted; 0 for never.
    `tick` is called with the time once it is past `due`.

    While `resting` (see rest.py) steps are only counted, until one is longer than `longest` nanoseconds, the time
    `rests_until` has come, or something happens that is rare: forwards without gradient, but where the model `teaches`,
    as each step has such. While it rests `deep`, which counts down the calls that are left, waits and forwards with
    gradient are not even timed; `shallow` ends that. `forward_began` is when the step's first forward did. With
    `pause_due` a rest begins soon: by `pause`, with the time and the optimizer; `wake` ends it. `nests` tells that an
    optimizer calls another one, or its base.
    """

    __slots__ = (
        "collecting",
        "cpu_clock",
        "extend",
        "fast",
        "forward_began",
        "inputs",
        "nests",
        "ops_due",
        "owner",
        "pause",
        "pause_due",
        "shallow",
        "teaches",
        "tick",
        "wake",
        "words",
    )

    def __init__(self, cpu_clock: Callable[[], int], tick: Callable[[int], None]) -> None:
        super().__init__()
        self.words: list[int] = []
        # Safe in any thread: it adds all five or none, and nothing in between.
        self.extend = self.words.extend
        self.owner = NOBODY
        self.fast = False
        self.ops_due = 0
        self.pause_due = False
        self.forward_began = 0
        self.teaches = False
        self.nests = False
        self.tick = tick
        self.inputs: Callable[[tuple[Any, ...], dict[str, Any], int], int] | None = None
        self.pause: Callable[[int, int], None] = _nothing
        self.wake: Callable[..., None] = _nothing
        self.shallow: Callable[[int], None] = _nothing
        self.collecting = 0
        self.cpu_clock = cpu_clock

    def own(self, owner: int) -> None:
        """Let the calling thread be the owner, or nobody any more (NOBODY, GONE)."""
        self.owned = bool if owner in (NOBODY, GONE) else _is_this_thread()
        self.owner = owner

    def note(self, kind: int, start: int, end: int, a: int = 0, b: int = 0) -> None:
        """Keep an event of the thread that steps (the caller knows that it is `owner`), in monotonic nanoseconds.

        Within one long call there is room for `MOST_WORDS`; what comes then is dropped.
        """
        if len(self.words) < MOST_WORDS:
            self.extend((kind, start, end, a, b))

    @property
    def newest(self) -> int:
        """The kind of the newest event, -1 without one."""
        return self.words[-WORDS] if self.words else -1

    def take(self) -> list[int]:
        """The events so far, which then are no longer here. Other threads may be adding some."""
        words = self.words
        taken = words[:]
        del words[: len(taken)]
        return taken


def _nothing(*args: Any) -> None:
    pass


def _is_this_thread() -> Callable[[], bool]:
    """A function that tells whether the thread that calls it is the one that calls us. A lock of our own that nobody
    waits for knows it sooner than two numbers are compared.
    """
    lock: Any = _thread.RLock()
    lock.acquire()
    return getattr(lock, "_is_owned", None) or _compares(_thread.get_ident())


def _compares(owner: int) -> Callable[[], bool]:
    return lambda: _thread.get_ident() == owner
