"""Sampled Python stacks. Source: py-spy."""

from __future__ import annotations

from typing import Literal

import msgspec

# What a thread that is not running waits in, told by the system call it is in and by the file it uses there. "gil" is
# the interpreter's lock, "lock" any other; "native" is one for which it waits while threads of a library are at work.
WaitKind = Literal["gil", "lock", "native", "disk", "network", "queue", "child", "device", "sleep", "other"]


class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of one function. `user` is False in the standard library, site-packages, torch and our own hook.

    `text` is the source line as the target's user sees it, stripped; None where it could not be read. `guard` is
    the condition that it stands under within its function; None without one. `packages` is the folder of
    packages that a library's file lies in, where its name does not tell (`pip install --target`); else None.
    """

    function: str
    file: str
    line: int
    user: bool = False
    text: str | None = None
    guard: str | None = None
    packages: str | None = None


class StackCount(msgspec.Struct, frozen=True):
    """`count` equal samples of one thread: `frames` index `StackWindow.frames`, the outermost first."""

    pid: int
    thread: str
    main: bool
    frames: tuple[int, ...]
    count: int


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Stacks of the threads of one process that were in one state, of `asked` looks at it within a window.

    `kind` is the state: "cpu", running on a core or waiting for one; "gil", holding the interpreter's lock.
    """

    pid: int
    kind: Literal["cpu", "gil"]
    asked: int
    stacks: tuple[StackCount, ...]


class ThreadState(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel said of one thread in `asked` looks within a window. `running` counts looks on or for a core.

    `waits` counts the other looks by what the thread waited in. `counted` is the share (0..1) of the time between the
    first look and the last in which it was on or for a core, as the kernel counts it: a look misses waits that are
    shorter than itself. `delayed` is the share of that time in which it was for a core. None where that cannot be read.
    Source: /proc/PID/task/TID.
    """

    pid: int
    thread: str
    main: bool
    asked: int
    running: int
    waits: dict[WaitKind, int]
    counted: float | None = None
    delayed: float | None = None

    @property
    def on_core(self) -> float:
        """The share (0..1) of the time in which it was on or for a core."""
        return self.running / self.asked if self.counted is None else self.counted

    @property
    def at_work(self) -> float:
        """The same with the time in which a library's threads computed for it."""
        waits = sum(self.waits.values())
        return self.on_core + (1.0 - self.on_core) * (self.waits.get("native", 0) / waits if waits else 0.0)


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One statement, by its first and last line; of a compound one its head. `uses`: the first lines of the statements
    of the same function that may have made the values that it uses, in an earlier round of a loop included.
    `collects`: it is a call of the garbage collector, which no stack shows."""

    first: int
    last: int
    uses: tuple[int, ...] = ()
    collects: bool = False


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Which statements of one function use each other's values. `loops`: its loops, by their first and last lines.

    A module is a function, too. Lines only: nothing here tells what anything is called.
    """

    file: str
    first: int
    last: int
    statements: tuple[Statement, ...]
    loops: tuple[tuple[int, int], ...] = ()


class StackWindow(msgspec.Struct, frozen=True, kw_only=True, tag="stacks"):
    """What was sampled in the `seconds` before `time`, at `rate` samples a second, idle threads included.

    `flows` has the dataflow of the user's functions on these stacks, where no earlier window gave it.
    """

    time: float
    seconds: float
    rate: float
    frames: tuple[Frame, ...]
    stacks: tuple[StackCount, ...]
    looks: tuple[Look, ...] = ()
    states: tuple[ThreadState, ...] = ()
    flows: tuple[Flow, ...] = ()


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    """One thread at one moment: `frames` index `StackDump.frames`, the outermost first.

    `active` says that it ran or could run on a CPU at that moment; None where that was not asked. `gil`: it held the
    interpreter's lock.
    """

    pid: int
    thread: str
    main: bool
    frames: tuple[int, ...]
    active: bool | None = None
    gil: bool = False


class StackDump(msgspec.Struct, frozen=True, kw_only=True, tag="dump"):
    """All threads of several processes, each looked at once at about `time` (monotonic seconds).

    `refused` has the processes that gave none, each with why, in words.
    """

    time: float
    frames: tuple[Frame, ...]
    threads: tuple[ThreadStack, ...]
    refused: tuple[tuple[int, str], ...] = ()
