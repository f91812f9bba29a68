"""What one distinct stack says by itself: whose line it is on, and what the libraries on it say. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, takewhile

import msgspec

from aitop.model.ledger import QUEUE_WAITS, Handler
from aitop.model.stacks import Frame
from aitop.stacks.libraries import Phase, State, Work, calls_model, makes_steps, meaning
from aitop.stacks.origin import own_hook

# Frames further in may replace a phase by one of these: an optimizer's closure computes the loss, a module may train
# itself, a learning rate scheduler wraps the optimizer's step.
_REFINED: dict[Phase, frozenset[Phase]] = {
    "optimizer": frozenset({"forward", "backward"}),
    "forward": frozenset({"backward", "optimizer"}),
    "data_wait": frozenset({"transfer"}),
    "outside": frozenset({"optimizer", "forward", "backward", "save", "environment", "data_wait"}),
}

# torch's own updates of the parameters. They call other code only to compute the loss anew: the closure.
_UPDATE = re.compile(r"/torch/optim/\w+\.py$")
_TORCH = re.compile(r"/torch/")
# Files of the standard library in which waits end. They say less than the frames that call them.
_PLUMBING = re.compile(r"/(?:selectors|threading|socket|ssl|multiprocessing/(?:connection|popen_\w+|synchronize))\.py$")


class Seen(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """One distinct stack. `frames` are those that the process entered itself (a fork inherits more), outermost first,
    without those of our hook.

    `line` is the user's innermost frame: on a stack that compiles, the one that called the compiler; in a forked worker
    without user code, the parent's line that started it; None without user code on the stack, and where only libraries
    work in an event loop. `via` has the user's frames above `line`.
    `phase`, `state` and `work` are what the libraries on it say. `library` is the index of the first frame that stands
    for the phase, or the number of frames if none does. `leaf`: the user's line is the innermost frame, so its time is
    native code or plain Python.
    `model`: it calls a model. `worker`: it is of a DataLoader worker; `idle`: that worker waits for something to do.
    `importing`: a library is being imported, which happens once and belongs to no step. `handler` says what called the
    user's line for a request, or a library that works for one by itself; None if no known library did. `end` is the
    innermost library frame below that, not counting the plumbing in which waits end; None if there is none.
    `closure`: it is in the closure of an optimizer's step, where other code than torch's updates nothing.
    """

    frames: tuple[Frame, ...]
    line: Frame | None
    via: tuple[Frame, ...]
    phase: Phase
    state: State | None
    work: Work | None
    library: int
    leaf: bool
    model: bool
    worker: bool
    idle: bool
    importing: bool
    handler: Handler | None = None
    end: Frame | None = None
    closure: bool = False

    @property
    def callers(self) -> tuple[Frame, ...]:
        """The user's frames above the library code that stands for its phase, the outermost first."""
        return tuple(frame for frame in self.frames[: self.library] if frame.user)

    @property
    def stages(self) -> tuple[tuple[int, Frame], ...]:
        """Frames that may call the parts of a step one after the other, with their indexes in `frames`.

        These are the user's frames and those of a framework's loop.
        """
        return tuple((index, frame) for index, frame in enumerate(self.frames) if frame.user or makes_steps(frame))


def read_stack(frames: Sequence[Frame]) -> Seen:
    """The meaning of one stack, given with all its frames, the outermost first."""
    start = own_start(frames)
    own = tuple(frame for frame in frames[start:] if not own_hook(frame.file))
    users = _users(own)
    worker = any(frame.function == "_worker_loop" and not frame.user for frame in own)
    phase, library, closure = ("data_wait", 0, False) if worker else _phase(own)
    below = own[users[-1] + 1 :] if users else own
    state, work = _doing(below)
    if work is None and _collates(own):
        work = "collate"
    if phase == "backward" and any(meaning(frame).work == "recompute" for frame in own):
        # Also above the user's modules, whose forward pass runs again.
        work = "recompute"
    line = own[users[-1]] if users else next((frame for frame in reversed(frames[:start]) if frame.user), None)
    in_loop = state != "wait-queue" and any(meaning(frame).handler == "event-loop" for frame in below)
    if in_loop:
        # The line that started the loop is not what the loop works for.
        users, line = [], None
    return Seen(
        frames=own,
        line=line,
        via=tuple(own[index] for index in users[:-1]),
        phase=phase,  # type: ignore[arg-type]
        state=state,
        work=work,
        library=library,
        leaf=bool(users) and not below,
        model=any(not frame.user and calls_model(frame) for frame in own),
        worker=worker,
        idle=worker and not users and (state == "wait-lock" or state in QUEUE_WAITS),
        importing=_imports(own),
        handler="event-loop" if in_loop else _handler(own[: users[-1]]) if users else None,
        end=telling(below) if users or in_loop else None,
        closure=closure,
    )


def telling(below: Sequence[Frame]) -> Frame | None:
    """The innermost of these frames that is not plumbing, in which waits end; None if all are."""
    return next((frame for frame in reversed(below) if not _PLUMBING.search(frame.file)), None)


def _users(own: Sequence[Frame]) -> list[int]:
    """The indexes of the user's frames; of a stack that compiles, only of those above the compiler.

    A compiler may trace a function by calling it, and its lines do not do then what they say.
    """
    users: list[int] = []
    for index, frame in enumerate(own):
        if frame.user:
            users.append(index)
        elif users and meaning(frame).state == "compile":
            break
    return users


def own_start(frames: Sequence[Frame]) -> int:
    """Index of the first frame that the process itself entered: a forked child inherits its parent's stack."""
    for index in range(len(frames) - 1, -1, -1):
        if frames[index].function.endswith("_bootstrap") and frames[index].file.endswith("/multiprocessing/process.py"):
            return index
    return 0


def _phase(frames: Sequence[Frame]) -> tuple[Phase, int, bool]:
    """The phase that library frames stand for and the index of the first; else "outside" and the number of frames.

    Last, whether the stack is in an optimizer's closure, whose own code is no part of the update.
    """
    phase: Phase | None = None
    updates = closure = False
    first = len(frames)
    users = max((index for index, frame in enumerate(frames) if frame.user), default=-1)
    for index, frame in enumerate(frames):
        torch = not frame.user and _TORCH.search(frame.file) is not None
        updates |= torch and frame.function.rpartition(".")[2] == "step" and _UPDATE.search(frame.file) is not None
        if updates and phase == "optimizer" and not torch:
            phase, closure = None, True
        if frame.user:
            continue
        meant = meaning(frame)
        says = None if meant.rests and index < users else meant.phase
        if says is not None and (phase is None or says in _REFINED.get(phase, ())):
            if phase in (None, "outside"):
                first = index
            phase = says
    return (phase, first, closure) if phase not in (None, "outside") else ("outside", len(frames), closure)


def _doing(below: Sequence[Frame]) -> tuple[State | None, Work | None]:
    """State and work of the library frames below the user's line: compiling wins, else the outermost with a meaning."""
    says = [meaning(frame) for frame in below]
    says = [each for index, each in enumerate(says) if not each.rests or index == len(says) - 1]
    loop = next((index for index, each in enumerate(says) if each.handler == "event-loop"), None)
    if loop is not None:
        # What starts an event loop says nothing of what the loop does. A coroutine that awaits is on no stack: where
        # the stack goes on below the loop, a library is at work in it. Its own reads and writes do not wait.
        says = [each for each in says[loop:] if each.handler != "event-loop" and each.work != "network"]
        if not says or says[-1].state == "wait-queue":
            return "wait-queue", None
    state: State | None = "compile" if any(each.state == "compile" for each in says) else None
    if state is not None and any(frame.user for frame in below):
        # The compiler calls the user's function to see what it does: every compilation begins like this.
        return state, "trace"
    if any(each.work == "anomaly" for each in says):
        # The operation inside of which it is done would take its time anyway.
        return state, "anomaly"
    for each in says:
        if state is None and (each.state is not None or each.work is not None):
            # Work above a wait says what is waited for: a socket read below an HTTP client waits for the network.
            state = each.state
            break
    return state, next((each.work for each in says if each.work is not None), None)


def _handler(above: Sequence[Frame]) -> Handler | None:
    """What called the user's line for a request, by the innermost library frame above it that calls handlers."""
    handlers = (meaning(frame).handler for frame in reversed(above) if not frame.user)
    return next((handler for handler in handlers if handler is not None), None)


def _collates(frames: Sequence[Frame]) -> bool:
    """Whether the user's collate function runs, which makes one batch of samples.

    It is what torch's fetcher calls and is not named `__getitem__` or `__getitems__`, as the data set's methods are.
    """
    for above, frame in pairwise(frames):
        # An IterableDataset's own generator is called from the other fetcher.
        if frame.user and above.function.endswith("_MapDatasetFetcher.fetch") and not above.user:
            return frame.function.rpartition(".")[2] not in ("__getitem__", "__getitems__")
    return False


def _imports(frames: Sequence[Frame]) -> bool:
    """Whether the import system runs below the user's innermost line."""
    below = takewhile(lambda frame: not frame.user, reversed(frames))
    return any(frame.file.startswith("<frozen importlib") for frame in below)
