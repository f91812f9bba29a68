"""What a distinct stack says, worked out once however often it is seen again. Pure but for its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aitop.engine.activity import Activity, activity_of
from aitop.engine.phases import Phase, marker, own_start, phase_of
from aitop.model.stacks import Frame, StackWindow

MOST_STACKS = 20_000
MOST_WINDOWS = 128


@dataclass(frozen=True, eq=False)
class Seen:
    """One distinct stack. `frames` are those the process entered itself, the outermost first.

    `line` is the innermost user frame: its own, else, in a forked worker, the line of the parent that started it; None
    where no user code is on the stack. `via` has the user's frames above `line`. `loop` is the head of the innermost
    loop around it, inside of the model also of one around what calls it.
    `phase` is what the stack says alone, before others tell which functions evaluate.
    `worker` says that it is a DataLoader's worker, `idle` that this worker waits for something to do. `importing`: a
    library is being imported, which happens once and is no part of any step.
    """

    frames: tuple[Frame, ...]
    line: Frame | None
    via: tuple[Frame, ...]
    activity: Activity
    phase: Phase
    worker: bool
    idle: bool
    importing: bool
    loop: str | None = None


class ThreadKey(NamedTuple):
    """A thread of the window; all threads of a process with one name are one. `main` for its main thread."""

    pid: int
    thread: str
    main: bool


Digest = dict[ThreadKey, dict[Seen, int]]


class Digester:
    """Turns windows into counts of distinct stacks, remembering both windows and stacks."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], Seen] = {}
        self._windows: dict[int, tuple[StackWindow, Digest]] = {}

    def digest(self, window: StackWindow) -> Digest:
        """Samples of each distinct stack by thread. Equal stacks of all windows are the same object."""
        known = self._windows.get(id(window))
        # The window is kept, so that its id cannot become another window's.
        if known is not None and known[0] is window:
            return known[1]
        self._make_room()
        numbers = [self._frames.setdefault(frame, len(self._frames)) for frame in window.frames]
        digest: Digest = {}
        for stack in window.stacks:
            thread = digest.setdefault(ThreadKey(stack.pid, stack.thread, stack.main), {})
            key = tuple(numbers[index] for index in stack.frames)
            seen = self._stacks.get(key)
            if seen is None:
                seen = self._stacks[key] = look_at([window.frames[index] for index in stack.frames])
            thread[seen] = thread.get(seen, 0) + stack.count
        self._windows[id(window)] = window, digest
        return digest

    def _make_room(self) -> None:
        if len(self._stacks) > MOST_STACKS or len(self._frames) > MOST_STACKS:
            self._frames.clear()
            self._stacks.clear()
            self._windows.clear()
        while len(self._windows) >= MOST_WINDOWS:
            del self._windows[next(iter(self._windows))]


def _imports(frames: Sequence[Frame]) -> bool:
    """Whether the import system runs below the user's innermost line."""
    for frame in reversed(frames):
        if frame.user:
            return False
        if frame.file.startswith("<frozen importlib"):
            return True
    return False


def _inner_loop(frames: Sequence[Frame], phase: Phase) -> str | None:
    """The head of the innermost loop that the user's line stands in; inside of the model also of the lines above it."""
    users = [index for index, frame in enumerate(frames) if frame.user]
    if phase in ("backward", "optimizer"):
        return frames[users[-1]].loop if users else None
    found = (index for index, frame in enumerate(frames) if not frame.user and marker(frame.file, frame.function))
    model = next(found, None)
    inside = users[-1:] if model is None else [index for index in users if index > model]
    return next((loop for index in reversed(inside) if (loop := frames[index].loop)), None)


def look_at(frames: Sequence[Frame]) -> Seen:
    """What one stack (all its frames, the outermost first) says."""
    start = own_start(frames)
    own = tuple(frames[start:])
    user = [frame for frame in own if frame.user]
    worker = any(frame.function == "_worker_loop" and not frame.user for frame in own)
    activity = activity_of(own)
    phase: Phase = "data_wait" if worker else phase_of(own)
    line = user[-1] if user else next((frame for frame in reversed(frames[:start]) if frame.user), None)
    return Seen(
        frames=own,
        line=line,
        via=tuple(user[:-1]),
        activity=activity,
        phase=phase,
        worker=worker,
        idle=worker and not user and activity in ("queue", "lock"),
        importing=_imports(own),
        loop=_inner_loop(own, phase),
    )
