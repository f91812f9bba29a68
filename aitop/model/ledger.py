"""The ledger: where the time of one unit of work goes. Every verdict is read from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from aitop.model.host import Role
from aitop.model.phases import Phase
from aitop.model.stacks import Frame
from aitop.model.verdict import Base, Where

Lane = Literal["main", "producers"]
Activity = Literal[
    "python", "native", "wait", "wait-gil", "wait-lock", "wait-core", "wait-disk", "wait-network", "wait-queue",
    "wait-room", "wait-child", "wait-device", "sleep", "spawn", "collect", "compile",
]  # fmt: skip
ACTIVITIES: dict[Activity, str] = {
    "python": "runs Python",
    "native": "runs native code",
    "wait": "waits",
    "wait-gil": "waits for the GIL",
    "wait-lock": "waits for a lock",
    "wait-core": "waits for a core",
    "wait-disk": "waits for storage",
    "wait-network": "waits for network",
    "wait-queue": "waits for a queue",
    "wait-room": "waits, queue full",
    "wait-child": "waits for a child",
    "wait-device": "waits for device",
    "sleep": "sleeps",
    "spawn": "starts processes",
    "collect": "collects garbage",
    "compile": "compiles",
}
"""Each activity in words, at most 17 cells wide."""
# Waits for other threads or processes of the run, or for whoever hands out work.
HANDED_WAITS: frozenset[Activity] = frozenset({"wait-queue", "wait-room", "wait-lock", "wait-child", "wait"})
# Waits at a queue: for something to take from it, or for room to put something in.
QUEUE_WAITS: frozenset[Activity] = frozenset({"wait-queue", "wait-room"})
# What a thread does while it has no work. A server's threads wait for the network between requests.
RESTS: frozenset[Activity] = HANDED_WAITS | {"sleep", "wait-network"}
Basis = Literal["measured", "sampled"]
# Host code before the model's call, from there to the backward, between that and the optimizer, or after both.
Position = Literal["before", "within", "gradients", "after"]
# What calls a line for a request: an event loop, whose thread does nothing else meanwhile; a loop that takes requests
# and calls one function after the other for them; a thread for each request.
Handler = Literal["event-loop", "request-loop", "thread"]
Unit = Literal["step", "request", "iteration", "second"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the unit that belongs to one phase, one activity and one line.

    `share` (0..1) is of the time of the lane; in a lane of several threads, of the thread's own. The entries of the
    main lane add up to 1. `seconds` is per unit, None where the length of a unit is not known. `low` and `high` bound
    the share (95 %). `samples` is the number of stack samples it comes from, 0 where it was only measured. `where` is
    the user's innermost line, None where none was on the stack. `position` says where host code stands in the function
    that makes steps, `work` what the library below the line does. `via` are the user's frames above the line, the
    outermost first. `callers`: how many of the user's frames, counted from the outermost (`via`, then the line itself),
    were entered before the library call that gives the phase. `thread` and `role` say whose time it is.
    `instead` is what a line that waits for a core would do if it had one.
    `by_window` is the number of samples of its line in each window of stacks, the oldest first. `handler` is what calls
    its line for a request, None where nothing is known to. `below` has the library functions in which most samples of
    its line end, each with its share of them; without a line, the function that most of them pass through. `closure`:
    its line runs in the closure of an optimizer's step, which the hook's clock counts as the optimizer's. `apart`: its
    line runs in one of several calls of the model for the same request, none of which needs what another gave.
    """

    lane: Lane
    phase: Phase
    activity: Activity
    share: float
    low: float
    high: float
    basis: Basis
    pid: int
    thread: str = "MainThread"
    role: Role = "rank"
    samples: float = 0.0
    seconds: float | None = None
    where: Where | None = None
    position: Position | None = None
    work: str | None = None
    instead: Activity | None = None
    via: tuple[Frame, ...] = ()
    callers: int = 0
    by_window: tuple[int, ...] = ()
    handler: Handler | None = None
    below: tuple[tuple[Frame, float], ...] = ()
    closure: bool = False
    apart: bool = False

    @property
    def does(self) -> Activity:
        """What the thread does there, or would do if it had a core."""
        return self.instead or self.activity

    @property
    def within_step(self) -> bool:
        """Whether it is host code between the model's call and its backward: a loss, or a model that is no module."""
        return self.phase == "host" and self.position == "within"

    @property
    def at(self) -> tuple[str, int]:
        """File and line."""
        return self.file, self.line

    @property
    def file(self) -> str:
        """The file of its line, empty where it has none."""
        return self.where.file if self.where is not None else ""

    @property
    def line(self) -> int:
        """The number of its line, 0 where it has none."""
        return self.where.line if self.where is not None else 0

    @property
    def function(self) -> str:
        """The function of its line, empty where it has none."""
        return self.where.function if self.where is not None else ""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one working process, heaviest entry first. `length` is seconds of one unit, None if unknown.
    `base` is what the shares of its main lane are parts of.

    It is about the thread named `thread`; where `threads` threads like it take the same work in turns, about them as
    one worker.
    """

    pid: int
    thread: str
    unit: Unit
    base: Base = "step"
    entries: tuple[Entry, ...] = ()
    length: float | None = None
    threads: int = 1

    @property
    def main(self) -> tuple[Entry, ...]:
        """The entries of the main lane."""
        return tuple(entry for entry in self.entries if entry.lane == "main")

    def account(self, lane: Lane) -> tuple[Entry, ...]:
        """The entries of a lane for people to read, heaviest first: entries that read the same become one.

        They differ only in what rules ask for, such as their position. Entries of one thread are added up; of several
        threads, which are workers that do the same, the mean is given.
        """
        alike: dict[tuple[object, ...], list[Entry]] = {}
        for entry in self.entries:
            if entry.lane == lane:
                reads = entry.phase, entry.activity, entry.at, entry.function, entry.basis
                alike.setdefault(reads, []).append(entry)
        return tuple(sorted(map(_as_one, alike.values()), key=lambda entry: -entry.share))


def _as_one(entries: Sequence[Entry]) -> Entry:
    """Join entries that read the same: the sum for one thread, the mean over several threads."""
    threads = len({(entry.pid, entry.thread) for entry in entries})
    seconds = [entry.seconds for entry in entries if entry.seconds is not None]
    return msgspec.structs.replace(
        entries[0],
        share=sum(entry.share for entry in entries) / threads,
        low=sum(entry.low for entry in entries) / threads,
        high=min(1.0, sum(entry.high for entry in entries) / threads),
        seconds=sum(seconds) / threads if seconds else None,
        samples=sum(entry.samples for entry in entries),
    )
