"""One look at the threads of processes: `py-spy dump`.

Without `--native` it stops nothing and is done in milliseconds. With it, which shows the C and C++ frames below Python,
a process is stopped for some tenths of a second: only for one that stands still anyway, and where the user asks for it.
Afterwards it must be seen to run on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import msgspec

from aitop.model.stacks import StackDump, ThreadStack
from aitop.model.text import printable
from aitop.sources import procfs
from aitop.sources.source import SourceError
from aitop.sources.stacks.choice import Chooser
from aitop.sources.stacks.source import main_threads
from aitop.sources.stacks.speedscope import MAIN_NAME, MOST_DEPTH, MOST_LINES, RawFrame
from aitop.sources.stacks.spy import PySpy, explain, find_py_spy, no_answer
from aitop.sources.stacks.window import CodeOfProcesses, WindowBuilder

MOST_PROCESSES = 256
# A thousand threads of a hundred frames each.
MOST_BYTES = 16 << 20
AT_ONCE = 4
PATIENCE_SECONDS, NATIVE_PATIENCE_SECONDS = 5.0, 20.0
TRIES = 2
MOST_NATIVE_FRAMES = 24
LONGEST_NATIVE_FRAME = 120

# How long a process may take to run on, and how long one is watched whose tracer was killed: a thread that has just
# been let go may still have to take its signal.
RUNS_ON_SECONDS, WATCHED_SECONDS, POLL_SECONDS = 2.0, 0.2, 0.01
PENDING = 1 << signal.SIGSTOP - 1
TRACED = "it is being traced"
STOPPED = "it is stopped"
STOPS_SOON = "a signal that stops it is under way"


class _Frame(msgspec.Struct):
    name: str
    filename: str | None = None
    line: int | None = None
    module: str | None = None


class Thread(msgspec.Struct):
    """One thread as py-spy has it, the innermost frame first."""

    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] | None = None
    active: bool | None = None
    owns_gil: bool = False


# Made while the module is imported, as in speedscope.py.
_decoder = msgspec.json.Decoder(list[Thread])


class LeftStoppedError(SourceError):
    """A process was stopped for a look, and does not run on."""


def take_dump(tops: Sequence[int], *, script: str | None, wanted: Callable[[], bool] = lambda: True) -> StackDump:
    """The stacks of all threads of the Python processes below `tops`, those that train first.

    `script` is the path of the target's main script, see stacks.origin.is_user. Takes no further process once `wanted`
    says that nobody waits any more. Raises SourceError where no process gave anything.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - brings logging along, and few runs need a dump

    program = find_py_spy()
    pids = Chooser(tops).everyone()[:MOST_PROCESSES]
    builder = WindowBuilder(script, CodeOfProcesses())
    threads: list[ThreadStack] = []
    refused: list[tuple[int, SourceError]] = []

    def look(pid: int) -> list[Thread] | SourceError:
        try:
            return _look(program, pid) if wanted() else []
        except SourceError as error:
            return error
        except OSError as error:
            return SourceError("failed", f"py-spy cannot be started: {error.strerror or error}", transient=True)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="aitop-dump") as pool:
        for pid, answer in zip(pids, pool.map(look, pids), strict=True):
            if isinstance(answer, SourceError):
                refused.append((pid, answer))
            else:
                threads += threads_of(pid, answer, builder)
    if not threads:
        raise refused[0][1] if refused else SourceError("failed", "py-spy saw no Python frame: it may be starting up")
    return StackDump(
        time=time.monotonic(),
        frames=builder.result()[0],
        threads=tuple(threads),
        refused=tuple((pid, str(error)) for pid, error in refused),
    )


def native_frames(pids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """By pid, the native frames of the main thread, the innermost first. Raises SourceError where none can be seen.

    Raises LeftStoppedError, and looks at no further process, where one does not run on after the look.
    """
    program, frames_by_pid, refused = find_py_spy(), {}, None
    for pid in pids:
        try:
            frames_by_pid[pid] = innermost(_look(program, pid, native=True), pid)
        except LeftStoppedError:
            raise
        except SourceError as error:
            refused = error
    if not frames_by_pid and refused is not None:
        raise refused
    return frames_by_pid


def _look(program: str, pid: int, *, native: bool = False) -> list[Thread]:
    """The threads of one process; empty where it has ended. Raises SourceError."""
    complaint = ""
    # Native frames only once, as each try stops the process.
    for _ in range(1 if native else TRIES):
        spy = _native_dump(program, pid) if native else _dump(program, pid)
        complaint = spy.complaint
        # py-spy may meet a stack in the middle of a change, as it does not stop the process: it is asked again.
        if spy.code == 0:
            try:
                return parse(spy.output)
            except ValueError as error:
                complaint = f"something unreadable: {error}"
    if procfs.lives(pid):
        raise explain(pid, complaint)
    return []


def _dump(program: str, pid: int) -> PySpy:
    """Run `py-spy dump`, which does not stop the process, to its end. Raises SourceError."""
    return _ended(PySpy(program, ["dump", "--pid", str(pid), "--json", "--nonblocking"]), PATIENCE_SECONDS)


def _native_dump(program: str, pid: int) -> PySpy:
    """Run `py-spy dump`, which stops the process for native frames, and see the process run on. Raises SourceError."""
    runs_on = RunsOn(pid)
    spy = PySpy(program, ["dump", "--pid", str(pid), "--json", "--native"], native=True)
    try:
        return _ended(spy, NATIVE_PATIENCE_SECONDS)
    finally:
        # py-spy lets go of the process before it ends, unless a signal ends it (a negative code).
        hindrance = runs_on.hindrance(killed=spy.code is None or spy.code < 0)
        if hindrance is not None:
            raise LeftStoppedError("failed", hindrance, f"kill -CONT {pid}")


def _ended(spy: PySpy, patience: float) -> PySpy:
    """Wait `patience` seconds for py-spy to end. Raises SourceError where it has not, and ends it."""
    spy.wait(patience)
    spy.stop()
    if spy.late:
        raise no_answer(patience)
    return spy


def parse(data: bytes) -> list[Thread]:
    """The threads in the JSON that py-spy wrote of one process. Raises ValueError for anything else.

    A thread with an impossible line number was read while the process changed it, and is left out.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"py-spy wrote {len(data)} bytes or more")
    try:
        threads = _decoder.decode(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return [thread for thread in threads if all(0 <= (frame.line or 0) <= MOST_LINES for frame in thread.frames)]


def threads_of(pid: int, answer: Sequence[Thread], builder: WindowBuilder) -> list[ThreadStack]:
    """The threads of py-spy's answer as ThreadStacks: frames in the builder's table, the outermost first."""
    ids = main_threads(pid)
    stacks = []
    for thread in answer:
        main = str(thread.os_thread_id) in ids or thread.thread_name == MAIN_NAME or len(answer) == 1
        raw = [RawFrame(frame.name, frame.filename, frame.line) for frame in reversed(thread.frames[:MOST_DEPTH])]
        stacks.append(
            ThreadStack(
                pid=pid,
                thread=MAIN_NAME if main else thread.thread_name or f"thread {thread.os_thread_id}",
                main=main,
                frames=tuple(builder.indices(pid, raw)),
                active=thread.active,
                gil=thread.owns_gil,
            )
        )
    return stacks


def innermost(threads: Sequence[Thread], pid: int) -> tuple[str, ...]:
    """The native frames inside the main thread's innermost Python frame, the innermost first; empty without any."""
    main = next((thread for thread in threads if thread.os_thread_id == pid or thread.thread_name == MAIN_NAME), None)
    names: list[str] = []
    for frame in main.frames if main else ():
        if frame.module is None:
            break
        library = frame.module.rpartition("/")[2]
        # An address says nothing to anybody; which library it lies in does.
        name = frame.name.partition("(")[0] if not frame.name.startswith("0x") else ""
        shown = printable(f"{name} ({library})" if name else library)[:LONGEST_NATIVE_FRAME]
        if names[-1:] != [shown]:
            names.append(shown)
    return tuple(names[:MOST_NATIVE_FRAMES])


class RunsOn:
    """Proof that a process runs on after py-spy has stopped it for native frames.

    Made before the stop; `hindrance` says afterwards what keeps the process from running.

    A tracer may send each thread of a process a SIGSTOP (PTRACE_ATTACH). If it is killed before a thread has taken that
    signal, the signal stays pending: a thread in an uninterruptible sleep takes it when the sleep ends, and then the
    whole process stops, for good. SIGCONT continues a stopped process and removes such pending signals.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._started = self._start()
        self._before = self._state()

    def hindrance(self, *, killed: bool) -> str | None:
        """What still keeps the process from running, in words; None if nothing does, or only what did before the look.

        `killed`: the tracer was killed, so a stop is what it left behind, and is undone.
        """
        now = time.monotonic()
        watched, deadline = now + (WATCHED_SECONDS if killed else 0.0), now + RUNS_ON_SECONDS
        while True:
            state, now = self._state(), time.monotonic()
            if state in (None, self._before):
                if now >= watched:
                    return None
            elif now >= deadline:
                return f"process {self._pid} was stopped for a look, and does not run on: {state}"
            elif killed and state != TRACED:
                try:
                    os.kill(self._pid, signal.SIGCONT)
                except OSError as error:
                    return f"process {self._pid} was left stopped, and cannot be continued: {error.strerror}"
            time.sleep(POLL_SECONDS)

    def _start(self) -> int | None:
        stat = procfs.stat(self._pid)
        return None if stat is None or stat.ended else stat.start

    def _state(self) -> str | None:
        """What keeps any of its threads from running; None where nothing does or the process is gone."""
        if self._started is None or self._start() != self._started:
            return None
        folder = f"{procfs.PROC}/{self._pid}/task"
        threads = [procfs.parse_fields(procfs.text(f"{folder}/{tid}/status") or "") for tid in procfs.numbered(folder)]
        if any(thread.get("TracerPid", "0") != "0" for thread in threads):
            return TRACED
        if any(thread.get("State", "").startswith("T") for thread in threads):
            return STOPPED
        signals = (thread.get(name, "0") for thread in threads for name in ("SigPnd", "ShdPnd"))
        return STOPS_SOON if any(int(text, 16) & PENDING for text in signals) else None
