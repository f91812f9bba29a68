"""Sampled Python stacks. Source: py-spy."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

# What a thread that is not running waits for, told by the system call it is in and by the file it uses there. "gil" is
# the interpreter's lock, "lock" any other lock, "native" a lock that it waits for while threads of a library work.
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
    count: Annotated[int, msgspec.Meta(gt=0)]


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Stacks of only those threads of one process that were in one state, sampled `asked` times within a window.

    `kind` is the state: "cpu", running on a core or waiting for one; "gil", holding the interpreter's lock.
    """

    pid: int
    kind: Literal["cpu", "gil"]
    asked: int
    stacks: tuple[StackCount, ...]


class ThreadState(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel said of one thread in `asked` looks within a window.

    `running` is the number of looks in which it ran on a core or waited for one; `waits` counts the other looks by what
    it waited for. `counted` is the share (0..1) of the time from the first to the last look in which it ran on a core
    or waited for one, by the kernel's own counters, as looks miss waits that are shorter than a look. `delayed` is the
    share of that time in which it waited for a core. Both are None where they cannot be read.
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
        """The share (0..1) of the time in which it ran on a core or waited for one."""
        return self.running / self.asked if self.counted is None else self.counted

    @property
    def at_work(self) -> float:
        """`on_core`, and the share of the time in which threads of a library computed for it."""
        waits = sum(self.waits.values())
        return self.on_core + (1.0 - self.on_core) * (self.waits.get("native", 0) / waits if waits else 0.0)


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One statement by its first and last line, of a compound statement only the head. `uses` are the first lines of
    the statements of the same function that may have made the values it uses, also in an earlier round of a loop.
    `collects` says that it calls the garbage collector, which no stack shows. `outer` has the names of the functions
    that it calls, beside other calls, but not for an argument of another call: `f` and `h` in `f(g(x)) + h(x)`.
    `apart` says that it calls in a loop or a comprehension, and that nothing it gives to a call came of an earlier one.
    """

    first: int
    last: int
    uses: tuple[int, ...] = ()
    collects: bool = False
    outer: tuple[str, ...] = ()
    apart: bool = False


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Which statements of one function use each other's values. `loops` are its loops, by first and last line.

    A module counts as a function, too. Statements are given as lines only, without any names.
    """

    file: str
    first: int
    last: int
    statements: tuple[Statement, ...]
    loops: tuple[tuple[int, int], ...] = ()


class StackWindow(msgspec.Struct, frozen=True, kw_only=True, tag="stacks"):
    """What was sampled in the `seconds` before `time`, at `rate` samples a second, idle threads included.

    `flows`: the dataflow of the user's functions on these stacks that call the model or may collect garbage.
    """

    time: float
    seconds: Annotated[float, msgspec.Meta(gt=0)]
    rate: Annotated[float, msgspec.Meta(gt=0)]
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

    `refused` has the processes whose stacks could not be read, each with the reason in words.
    """

    time: float
    frames: tuple[Frame, ...]
    threads: tuple[ThreadStack, ...]
    refused: tuple[tuple[int, str], ...] = ()
