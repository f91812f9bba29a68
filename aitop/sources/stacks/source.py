"""The source `stacks`: windows of sampled Python stacks of the target's tree."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from aitop.model.event import Sample
from aitop.model.source import SourceName
from aitop.model.stacks import GilHold, StackWindow
from aitop.sources import procfs
from aitop.sources.source import SourceError
from aitop.sources.stacks.budget import Budget, rate_of
from aitop.sources.stacks.choice import Chooser
from aitop.sources.stacks.gil import GilWatch
from aitop.sources.stacks.refusal import explain
from aitop.sources.stacks.speedscope import RawFrame, ThreadSamples, parse
from aitop.sources.stacks.spy import Spy, find_py_spy
from aitop.sources.stacks.window import CodeOfProcesses, WindowBuilder

# So many windows at the start are short: whoever watches waits for them.
FIRST_WINDOWS, FIRST_SECONDS = 3, 1.0
# One such look costs about 15 ms of CPU: a third of a window of all threads.
GIL_SECONDS, GIL_RATE = 1, 50
GRACE_SECONDS = 4.0
EMPTY_WINDOWS = 3


@dataclass(frozen=True)
class Outcome:
    """What one py-spy left: its output, the first line of its complaint, its exit code."""

    pid: int
    data: bytes
    complaint: str
    code: int | None


class StackSource:
    """Samples with py-spy, which reads the memory of the processes and never stops them.

    Windows follow each other back to back at first, with more samples, so that a good picture comes early; then
    `interval` grows until sampling costs no more than its budget, and each window takes fewer processes in turn.
    `close` may be called from any thread: a read in progress ends its py-spy children and returns nothing.
    """

    name: SourceName = "stacks"

    def __init__(self, pid_roots: Sequence[int], *, script: str | None, seconds: float = 2.0) -> None:
        self.interval = 0.0
        self.patience = seconds + GRACE_SECONDS + 4.0
        self._seconds = seconds
        self._script = script
        self._chooser = Chooser(pid_roots)
        self._code = CodeOfProcesses()
        self._budget = Budget(time.monotonic())
        self._gil = GilWatch()
        self._closing = threading.Event()
        self._reading = threading.Lock()
        self._program = ""
        self._taken = 0
        self._sampled = 0.0
        self._empty = 0

    def open(self) -> None:
        self._closing.clear()
        self._program = find_py_spy()
        self._chooser.next(few=True)

    def read(self) -> list[Sample]:
        with self._reading:
            return self._read()

    def close(self) -> None:
        self._closing.set()
        if self._reading.acquire(timeout=3.0):
            self._reading.release()

    def interrupt(self) -> None:
        """End the window that is being taken."""
        self._closing.set()

    def _read(self) -> list[Sample]:
        started = time.monotonic()
        seconds = max(1, round(min(FIRST_SECONDS, self._seconds) if self._taken < FIRST_WINDOWS else self._seconds))
        spies: list[Spy] = []
        asked: list[Spy] = []
        try:
            pids = self._chooser.next(few=self._budget.tight)
            rate = rate_of(self._sampled, len(pids))
            for pid in pids:
                spies.append(Spy(self._program, pid, seconds, rate))
            if self._gil.due():
                asked.append(Spy(self._program, pids[0], GIL_SECONDS, GIL_RATE, gil=True))
            self._wait([*spies, *asked], started + seconds)
        finally:
            for spy in [*spies, *asked]:
                spy.stop()
            outcomes = [Outcome(spy.pid, *spy.result(), spy.code) for spy in spies]
            answers = [Outcome(spy.pid, *spy.result(), spy.code) for spy in asked]
        cpu = sum(spy.cpu for spy in [*spies, *asked])
        self.interval = self._budget.spend(cpu, started, time.monotonic())
        if self._closing.is_set():
            return []
        window = self._window(seconds, rate, outcomes, cpu, self._holds(answers[0]) if answers else None)
        if window is None:
            self._account_for_nothing(outcomes)
            return []
        self._taken += 1
        self._sampled += seconds
        self._empty = 0
        return [window]

    def _wait(self, spies: Sequence[Spy], planned_end: float) -> None:
        deadline = planned_end + GRACE_SECONDS
        while not all(spy.finished() for spy in spies):
            now = time.monotonic()
            if now >= deadline or self._closing.wait(0.25 if now < planned_end - 0.25 else 0.02):
                return

    def _holds(self, outcome: Outcome) -> tuple[GilHold, ...] | None:
        """Who held the interpreter's lock; None where it could not be asked."""
        if not outcome.data:
            return None
        _, threads = _parsed(outcome, every_thread=False)
        return self._gil.taken(outcome.pid, threads, GIL_SECONDS * GIL_RATE)

    def _window(
        self, seconds: int, rate: int, outcomes: Sequence[Outcome], cpu: float, gil: tuple[GilHold, ...] | None
    ) -> StackWindow | None:
        builder = WindowBuilder(self._script, self._code)
        for outcome in outcomes:
            if outcome.data:
                builder.add(outcome.pid, *_parsed(outcome))
        frames, stacks = builder.result()
        if not stacks:
            return None
        return StackWindow(
            time=time.monotonic(),
            seconds=float(seconds),
            rate=float(rate),
            frames=frames,
            stacks=stacks,
            sampler_cpu=cpu,
            gil=gil,
        )

    def _account_for_nothing(self, outcomes: Sequence[Outcome]) -> None:
        """Raise SourceError when a window without a sample is more than bad luck."""
        alive = [outcome for outcome in outcomes if lives(outcome.pid)]
        refused = [outcome for outcome in alive if outcome.code != 0]
        if refused:
            raise explain(refused[0].pid, refused[0].complaint)
        self._empty += 1
        if alive and self._empty >= EMPTY_WINDOWS:
            raise SourceError("failed", f"py-spy saw no Python frame of process {alive[0].pid}: it may be starting up")


def _parsed(outcome: Outcome, *, every_thread: bool = True) -> tuple[list[RawFrame], list[ThreadSamples]]:
    try:
        return parse(outcome.data, main_threads(outcome.pid), every_thread=every_thread)
    except ValueError as error:
        raise SourceError("failed", f"py-spy wrote something unreadable: {error}") from error


def main_threads(pid: int) -> frozenset[str]:
    """Ids of the main thread: the pid here, and in the process's own pid namespace."""
    return frozenset((str(pid), *procfs.status(pid).get("NSpid", "").split()[-1:]))


def lives(pid: int) -> bool:
    """Whether the process runs, in whatever state but a zombie's."""
    stat = procfs.stat(pid)
    return stat is not None and stat.state not in "ZXx"
