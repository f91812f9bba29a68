"""Runs torch.profiler around a few steps when a monitor asks for it (a burst), and hands out the trace.

It begins and ends between two steps, in the stepping thread. torch writes the trace to a file in a temporary directory.
The file is copied into anonymous memory that the monitor reads, and the directory is removed at once.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...protocol import burst as at
from ..errors import raise_if_of_program
from ..patches import Patches
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

LONGEST_NS = 60_000_000_000
# Without an optimizer step for this long, a step is from forward to forward.
TRAINING_OVER_NS = 60_000_000_000
# How long a finished trace is kept for a monitor to read it.
HELD_FOR_NS = 60_000_000_000
# A variable of c10 (torch's C++ core): messages below this level are not printed. Without it torch would warn, in the
# user's output, of memory that was allocated before the profile and freed during it.
LOG_LEVEL_SYMBOL, FATAL = "FLAGS_caffe2_log_level", 3
QUIET = {"KINETO_LOG_LEVEL": "99"}
TEARDOWN = "TEARDOWN_CUPTI"

_CLOEXEC = 0x0001


class Burst(Measure):
    """Runs at most one profile at a time. `tick` is called in the stepping thread, between two phases."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        session.burst = self
        self._torch = torch
        self._session = session
        self._pid = os.getpid()
        self._serial = 0
        self._steps = 0
        self._left = 0
        self._fd = -1
        # Which file that was when we made it.
        self._file: tuple[int, int] | None = None
        self._state = 0
        self._thread = 0
        self._profile: Any = None
        self._guards = Patches()
        self._level: tuple[Any, int] | None = None
        self._begun = 0
        self._ended = 0
        self._holds = [0, 0, 0]
        self._last_step = 0

    @property
    def active(self) -> bool:
        """Whether `tick` has to be called after every phase."""
        return self._state in (at.WAITING, at.RUNNING)

    def look(self, now: int) -> None:
        """Accept a monitor's new request, or its withdrawal, and drop a trace that was kept for long enough."""
        request = self._session.ring.burst if self._session.ring is not None else 0
        if self._state == at.RUNNING and now > self._begun + 2 * LONGEST_NS:
            # The thread that began it, which would end it, seems to be gone.
            self._stop()
        if self._fd >= 0 and not self.active and now > self._ended + HELD_FOR_NS:
            self._close()
        serial, steps = request >> 16, request & 0xFFFF
        if not steps and self._state == at.WAITING:
            # Whoever asked waits no more. A profile that runs already ends by itself within a few steps.
            self._close()
        if not steps or serial == self._serial or self.active:
            return
        self._close()
        try:
            self._fd = os.memfd_create(at.MEMFD_NAME, _CLOEXEC)
        except OSError:
            # The program has no descriptor left, or there is no memory. The next look tries again.
            return
        self._file = _file_of(self._fd)
        self._serial, self._steps = serial, min(steps, at.MOST_STEPS)
        self._thread = self._last_step = 0
        self._holds = [0, 0, 0]
        self._begun = self._ended = now
        self._say(at.WAITING)

    def tick(self, now: int, last_step: int, forward: bool) -> None:
        """Begin or end the profile if a step has ended. Called after each phase; `forward`: it was one for inference.

        `last_step` is when the last optimizer step ended, 0 if there was none. A profiled step lasts from the end of
        the first phase after an optimizer step to the next such moment: right at the optimizer step, the optimizer's
        own range in the trace would be cut. Where nothing trains, a step is from forward to forward.
        """
        thread = _thread.get_ident()
        if self._thread not in (0, thread):
            return
        if self._state == at.RUNNING and now > self._begun + LONGEST_NS:
            self._stop()
        elif now - last_step > TRAINING_OVER_NS:
            if forward:
                self._step_ended(thread)
        elif last_step not in (now, self._last_step):
            first, self._last_step = not self._last_step, last_step
            # The step in which the request came is not profiled, because its beginning is over.
            if not first:
                self._step_ended(thread)

    def _step_ended(self, thread: int) -> None:
        if self._state == at.WAITING:
            self._thread = thread
            self._start()
            return
        self._left -= 1
        if self._left <= 0:
            self._stop()

    @property
    def runs_elsewhere(self) -> bool:
        """Whether a profile runs in another thread, which alone can end it and still seems to be making steps."""
        if self._profile is None or self._thread == _thread.get_ident() or self._pid != os.getpid():
            return False
        return time.monotonic_ns() < self._begun + 2 * LONGEST_NS

    def over(self) -> None:
        """End the profile without writing a trace, as the hook leaves. Errors of torch are not raised."""
        try:
            # A forked child has neither the profiler's threads nor the device, so nothing can be ended there.
            with self._ending() as profile:
                if profile is not None and self._pid == os.getpid():
                    self._exit(profile)
        except Exception:
            # The hook leaves in any case.
            raise_if_of_program()
        finally:
            self._close()

    def _start(self) -> None:
        start = time.monotonic_ns()
        if self._torch.autograd._profiler_enabled():
            self._refuse("a profiler is already running in the process")
            return
        try:
            self._profile = self._entered()
        except Exception as error:
            self._refuse(f"torch's profiler does not start: {type(error).__name__}: {error}")
            raise_if_of_program()
            return
        self._left = self._steps
        self._stand_guard()
        self._begun = time.monotonic_ns()
        self._holds[0] = self._begun - start
        self._say(at.RUNNING)

    def _stand_guard(self) -> None:
        """Patch the calls before which our profile must end: a fork, and the start of a profiler by the program.

        Otherwise the child of a fork would go on recording for as long as it lives.
        """
        # A Patches object can take its patches back only once.
        self._guards = Patches()
        profiler = self._torch.autograd.profiler
        for owner, name in ((os, "fork"), (profiler, "_prepare_profiler"), (profiler, "_enable_profiler")):
            if hasattr(owner, name):
                self._guards.put(owner, name, self._after_making_way)

    def _after_making_way(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                if self._profile is not None and self._thread == _thread.get_ident():
                    self._make_way()
            except Exception:
                # The program must go on with what it was about to do.
                raise_if_of_program()
            return original(*args, **kwargs)

        return guarded

    def _make_way(self) -> None:
        """End the profile early, with the steps that it has. If it has none yet, start again at the next step."""
        if self._left < self._steps:
            self._stop()
            return
        profile, self._profile = self._profile, None
        self._guards.take_all_back()
        self._last_step = 0
        self._say(at.WAITING)
        try:
            self._exit(profile)
        finally:
            self._speak()

    def _entered(self) -> Any:
        """Start and return a profile. The environment that keeps Kineto from printing is set only during the start."""
        before = {name: os.environ.get(name) for name in QUIET}
        os.environ.update(QUIET)
        try:
            device = "cuda" if self._torch.cuda.is_initialized() else None
            make = self._torch.autograd.profiler.profile
            profile = make(use_kineto=True, use_device=device, record_shapes=True, profile_memory=True)
            # Older torch makes Python objects of all events when it stops, which takes seconds and is not needed.
            profile._parse_kineto_results = lambda *args, **kwargs: []
            self._hush()
            return profile.__enter__()
        except BaseException:
            self._end_recording()
            self._speak()
            raise
        finally:
            _restore(before)

    def _hush(self) -> None:
        """Suppress torch's C++ messages while the profile runs, if this torch has the switch for that."""
        level = _level_of_torch()
        if level is not None:
            self._level = level, level.value
            level.value = FATAL

    def _speak(self) -> None:
        if self._level is not None:
            level, before = self._level
            level.value = before
            self._level = None

    def _stop(self) -> None:
        start = self._ended = time.monotonic_ns()
        try:
            with self._ending() as profile:
                self._exit(profile)
                self._holds[1] = time.monotonic_ns() - start
                size = self._save(profile.kineto_results)
            self._holds[2] = time.monotonic_ns() - start - self._holds[1]
            self._say(at.DONE, size)
        except Exception as error:
            self._refuse(f"the trace could not be written: {type(error).__name__}: {error}")
            raise_if_of_program()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[Any]:
        """Take the guards out, yield the profile (None without one) for the caller to end, and restore all settings.

        CUPTI is torn down as the profile ends, unless CUDA graphs are in use: otherwise it would slow down every later
        kernel launch of the run.
        """
        before = {TEARDOWN: os.environ.get(TEARDOWN)}
        try:
            self._guards.take_all_back()
            if before[TEARDOWN] is None and self._torch.cuda.is_initialized() and not _graphs_in_use():
                os.environ[TEARDOWN] = "1"
            profile, self._profile = self._profile, None
            yield profile
        finally:
            self._speak()
            if before != {TEARDOWN: os.environ.get(TEARDOWN)}:
                _restore(before)

    def _exit(self, profile: Any) -> None:
        """End the profile. If that fails or is interrupted, stop torch's recording, then raise the error again."""
        try:
            profile.__exit__(None, None, None)
        except BaseException:
            self._end_recording()
            raise

    def _end_recording(self) -> None:
        """Stop recording after an error of any kind. Does not raise."""
        try:
            autograd = self._torch.autograd
            if autograd._profiler_enabled():
                autograd._disable_profiler()
        except Exception:
            # torch has already ended its profiler by itself.
            pass

    def _save(self, results: Any) -> int:
        """Copy the trace into the memory that the monitor reads. Returns its size in bytes."""
        folder = _folder()
        try:
            path = os.path.join(folder, "trace.json")
            results.save(path)
            with open(path, "rb") as trace:
                size = os.fstat(trace.fileno()).st_size
                memory, sent = self._memory(), 0
                os.lseek(memory, at.TRACE_AT, os.SEEK_SET)
                while sent < size:
                    some = os.sendfile(memory, trace.fileno(), sent, size - sent)
                    if not some:
                        break
                    sent += some
                return sent
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _refuse(self, reason: str) -> None:
        text = reason.encode(errors="replace")[: at.TEXT_ROOM]
        if self._memory() >= 0:
            os.pwrite(self._fd, text, at.TEXT_AT)
        self._say(at.REFUSED, len(text))

    def _say(self, state: int, size: int = 0) -> None:
        self._state = state
        if self._memory() >= 0:
            done = max(0, self._steps - max(0, self._left)) if state != at.WAITING else 0
            words = (at.MAGIC, self._serial, state, done, self._begun, self._ended, *self._holds, size)
            os.pwrite(self._fd, at.HEADER.pack(*words), 0)

    def _memory(self) -> int:
        """Return the descriptor of the memory that the monitor reads, -1 without one.

        The program may have closed it, and opened something else that has its number now: that is left alone.
        """
        if self._fd >= 0 and _file_of(self._fd) != self._file:
            self._fd = -1
        return self._fd

    def _close(self) -> None:
        self._state = 0
        fd = self._memory()
        if fd >= 0:
            self._fd = -1
            os.close(fd)


def _file_of(fd: int) -> tuple[int, int] | None:
    """Return the device and the inode that a descriptor is open on, None if it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _folder() -> str:
    """Make a directory that only this user can read, in memory (/dev/shm) where possible.

    If the process is killed before it removes the directory, a monitor recognises it by its name and removes it.
    """
    prefix = f"{at.FOLDER_PREFIX}{os.getpid()}-"
    try:
        return tempfile.mkdtemp(prefix=prefix, dir="/dev/shm")
    except OSError:
        return tempfile.mkdtemp(prefix=prefix)


def _graphs_in_use() -> bool:
    """Return whether CUDA graphs may be in use. They crash if CUPTI is torn down (torch's own profiler says so)."""
    return "torch._inductor.cudagraph_trees" in sys.modules


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _level_of_torch() -> Any:
    """Return torch's C++ log level variable, as a ctypes integer; None if this torch does not export it."""
    extension = getattr(sys.modules.get("torch._C"), "__file__", None)
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(extension), LOG_LEVEL_SYMBOL) if extension else None
    except (OSError, ValueError):
        return None
