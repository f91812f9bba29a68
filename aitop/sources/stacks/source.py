"""The source `stacks`: windows of sampled Python stacks of the target's tree."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from aitop.model.event import Sample
from aitop.model.source import SourceName
from aitop.model.stacks import Look, StackWindow
from aitop.sources import procfs
from aitop.sources.host.tree import Stepping
from aitop.sources.source import Source, SourceError
from aitop.sources.stacks.choice import Chooser, Working
from aitop.sources.stacks.kernel_waits import KernelWaits
from aitop.sources.stacks.pace import Budget, GilWatch, IdleCores
from aitop.sources.stacks.speedscope import RawFrame, ThreadSamples, parse
from aitop.sources.stacks.spy import Spy, Threads, explain, find_py_spy, no_answer
from aitop.sources.stacks.window import CodeOfProcesses, WindowBuilder

WINDOW_SECONDS = 2
# The first windows are short: the user waits for them.
FIRST_WINDOWS, FIRST_SECONDS = 3, 1
# A child that looks only at threads in one state costs 15 to 20 ms of CPU in a window: most of it to start, 0.07 ms for
# a look at the lock, 0.3 ms for one at the cores. It takes many looks to see which lines hold the lock for long.
LOOK_RATE, GIL_RATE = 20, 100
GRACE_SECONDS = 4.0
# How long a window that is to end early waits for what py-spy writes.
FINISH_SECONDS = 1.0
EMPTY_WINDOWS = 3
# Idle cores are measured only after these seconds: before, our own start takes most of them.
IDLE_SECONDS = 0.5
# How often a pause checks whether the first step was made.
POLL_SECONDS = 0.5


class StackSource(Source):
    """Samples with py-spy, which reads the memory of the processes and never stops them.

    Windows follow each other back to back at first, with more samples, so that a good picture comes early. Once the
    credit is used up, pauses grow until sampling costs no more than its budget, and each window takes as few processes,
    in turn, as that pays for. The first step ends a pause: a run that was watched from its start has used the budget up
    for its imports. `measured` returns whether something else measures steps or requests: then stacks are only needed
    for the lines of code.
    On `interrupt` a read ends its py-spy children and returns nothing; on `finish` it returns what they have seen.
    """

    name: SourceName = "stacks"

    def __init__(
        self,
        pid_roots: Sequence[int],
        *,
        script: str | None,
        working: Working = tuple,
        stepping: Stepping = tuple,
        measured: Callable[[], bool] = bool,
        budget: Budget | None = None,
    ) -> None:
        self.interval = 0.0
        self.patience = WINDOW_SECONDS + GRACE_SECONDS + 4.0
        self._script = script
        self._chooser = Chooser(pid_roots, working, stepping)
        self._stepping = stepping
        self._measured = measured
        self._working = working
        self._steps_seen = False
        self._due = 0.0
        self._code = CodeOfProcesses()
        self._budget = budget or Budget(time.monotonic())
        self._idle, self._began = IdleCores(), time.monotonic()
        self._gil = GilWatch()
        self._kernel = KernelWaits()
        self._given_up = threading.Event()
        self._ending = threading.Event()
        self._program = ""
        self._taken = 0
        self._turn = 0
        self._empty = 0

    @property
    def note(self) -> str | None:
        return "stacks are sampled less often, because no core is idle" if self._budget.seldom else None

    def open(self) -> None:
        self._program = find_py_spy()
        self._chooser.next(1)

    def read(self) -> list[Sample]:
        return self._read() if self._is_due() else []

    def interrupt(self) -> None:
        self._given_up.set()

    def finish(self) -> None:
        self._ending.set()

    def _is_due(self) -> bool:
        first_step = not self._steps_seen and bool(self._stepping())
        self._steps_seen |= first_step
        return first_step or time.monotonic() >= self._due

    def _read(self) -> list[Sample]:
        budget = self._budget
        started = time.monotonic()
        if started - self._began > IDLE_SECONDS:
            budget.found_idle(self._idle.last())
        budget.alone = not self._measured()
        first = budget.eager and self._taken < FIRST_WINDOWS
        planned = FIRST_SECONDS if first and not budget.seldom else WINDOW_SECONDS
        spies: list[Spy] = []
        kernel_cpu = 0.0
        try:
            pids = self._chooser.next(budget.children)
            rate = budget.rate(len(pids))
            for pid in pids:
                spies.append(Spy(self._program, pid, planned, rate))
            for pid, threads, look_rate in self._looks(pids, first):
                spies.append(Spy(self._program, pid, planned, look_rate, threads))
            kernel_cpu = self._wait(pids, spies, started + planned)
        finally:
            for spy in spies:
                spy.stop()
        cpu = sum(spy.cpu for spy in spies) + kernel_cpu
        working = bool(self._working())
        pause = budget.spend(cpu, started, time.monotonic(), children=len(spies), works=working)
        self._due, self.interval = started + pause, pause if self._steps_seen else min(pause, POLL_SECONDS)
        if self._given_up.is_set():
            return []
        seconds = float(planned)
        if self._ending.is_set():
            seconds = max(0.1, min(seconds, time.monotonic() - started))
        window = self._window(seconds, rate, spies, seconds / planned)
        if window is None:
            if not self._ending.is_set():
                self._account_for_nothing(spies, planned + GRACE_SECONDS)
            return []
        self._taken += 1
        self._empty = 0
        return [window]

    def _looks(self, pids: Sequence[int], first: bool) -> list[tuple[int, Threads, int]]:
        """The looks that the next window takes besides the stacks of all threads, each with its rate per second.

        The GIL is looked at only in the first process, cores also in one of the others, in turn.
        """
        if not self._gil.due(first=first):
            return []
        # Between the windows that look at both, only the GIL is looked at, with fewer looks.
        looks: list[tuple[int, Threads, int]] = [(pids[0], "gil", GIL_RATE if self._gil.cores else LOOK_RATE)]
        if self._gil.cores:
            on_cores = [pids[0]]
            if (others := pids[1:]) and not self._budget.tight:
                self._turn += 1
                on_cores.append(others[self._turn % len(others)])
            # py-spy cannot ask the kernel about threads in another pid namespace, and takes them for running ones.
            looks += [(pid, "cpu", LOOK_RATE) for pid in on_cores if procfs.inner_pid(pid) == pid]
        return looks

    def _wait(self, pids: Sequence[int], spies: Sequence[Spy], planned_end: float) -> float:
        """Look at the threads of these processes until the spies have ended. Returns the CPU seconds that this took."""
        deadline, ending = planned_end + GRACE_SECONDS, False
        before = time.thread_time()
        self._kernel.begin(pids)
        try:
            while not all(spy.finished() for spy in spies) and (now := time.monotonic()) < deadline:
                if now < planned_end:
                    self._kernel.look()
                # Short enough not to keep `interrupt` waiting, and cheaper than to wait for its event.
                time.sleep(self._kernel.pause() if now < planned_end - 0.05 else 0.02)
                if self._given_up.is_set():
                    break
                if self._ending.is_set():
                    if not ending:
                        ending, planned_end, deadline = True, now, now + FINISH_SECONDS
                    # More than once: one that is only starting does not listen yet.
                    for spy in spies:
                        spy.finish()
        finally:
            self._kernel.end()
        return time.thread_time() - before

    def _window(self, seconds: float, rate: int, spies: Sequence[Spy], part: float) -> StackWindow | None:
        """The window of what the spies have sampled in `part` of the time planned; None if they sampled nothing."""
        builder = WindowBuilder(self._script, self._code)
        names: dict[int, dict[str, str]] = {}
        mains: dict[int, frozenset[str]] = {}
        looks: list[Look] = []
        # Spies on all threads come first: they tell which thread is the main one.
        for spy in spies:
            pid = spy.pid
            if not spy.output:
                continue
            if spy.threads == "all":
                raw, threads = _parsed(spy, main_threads(pid))
                builder.add(pid, raw, threads)
                # Without threads that have no frame: a library's thread that once called into Python keeps its
                # interpreter state.
                names[pid] = {thread.id: thread.name for thread in threads if not thread.main and thread.stacks}
                mains[pid] = frozenset(thread.id for thread in threads if thread.main)
                continue
            raw, threads = _parsed(spy, main_threads(pid) | mains.get(pid, frozenset()))
            # Before Python 3.11 py-spy does not know the kernel's thread ids, and takes every thread for a running one.
            if spy.threads == "cpu" and not all(thread.id.isdecimal() for thread in threads):
                continue
            stacks = tuple(builder.counts(pid, raw, threads))
            asked = max([1, round(part * spy.asked), *(thread.stacks.total() for thread in threads)])
            looks.append(Look(pid=pid, kind=spy.threads, asked=asked, stacks=stacks))
            if spy.threads == "gil":
                self._gil.saw(threads, asked)
        frames, stacks = builder.result()
        states = self._kernel.states(names)
        if not stacks:
            return None
        return StackWindow(
            time=time.monotonic(),
            seconds=seconds,
            rate=float(rate),
            frames=frames,
            stacks=stacks,
            looks=tuple(looks),
            states=states,
            flows=builder.flows(),
        )

    def _account_for_nothing(self, spies: Sequence[Spy], patience: float) -> None:
        """Raise SourceError if an empty window is no accident: py-spy was refused or late, or several were empty."""
        alive = [spy for spy in spies if spy.threads == "all" and procfs.lives(spy.pid)]
        refused = [spy for spy in alive if spy.code != 0]
        if refused:
            spy = refused[0]
            raise no_answer(patience) if spy.late else explain(spy.pid, spy.complaint)
        self._empty += 1
        if alive and self._empty >= EMPTY_WINDOWS:
            raise SourceError("failed", f"py-spy saw no Python frame of process {alive[0].pid}: it may be starting up")


def _parsed(spy: Spy, mains: frozenset[str]) -> tuple[list[RawFrame], list[ThreadSamples]]:
    try:
        return parse(spy.output, mains, every_thread=spy.threads == "all")
    except ValueError as error:
        raise SourceError("failed", f"py-spy wrote something unreadable: {error}") from error


def main_threads(pid: int) -> frozenset[str]:
    """Ids of the main thread: the pid here, and in the process's own pid namespace."""
    return frozenset((str(pid), str(procfs.inner_pid(pid))))
