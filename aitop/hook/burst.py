"""A burst on request: torch.profiler around a few steps of the run, and the trace handed out through anonymous memory.

It begins and ends between two steps, in the thread that steps. The trace is written by torch to a file in a directory
of its own, copied into a memfd that the monitor reads, and removed at once.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from .patches import Patches

MEMFD_NAME = "aitop-burst"
MAGIC = int.from_bytes(b"AITOPBST", "little")
# Header of the memfd, 8-byte words; then, at `TEXT_AT`, the reason of a refusal; at `TRACE_AT` the trace.
HEADER = struct.Struct("=10Q")
TEXT_AT, TEXT_ROOM, TRACE_AT = 128, 1024, 4096
WAITING, RUNNING, DONE, REFUSED = 1, 2, 3, 4
MOST_STEPS = 1000
LONGEST_NS = 60_000_000_000
TRAINING_ENDS_AFTER_NS = 60_000_000_000
# How long a finished trace is held for a monitor to read it.
KEPT_FOR_NS = 60_000_000_000
# A variable of c10's: messages below this level are not printed. Without it, memory that is older than the profile and
# is freed in it would be warned about in the user's output.
LOG_LEVEL_SYMBOL, FATAL = "FLAGS_caffe2_log_level", 3
QUIET = {"KINETO_LOG_LEVEL": "99"}
TEARDOWN = "TEARDOWN_CUPTI"

_CLOEXEC = 0x0001


class Burst:
    """At most one at a time. `tick` is called in the thread that steps, between two of its phases."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pid = os.getpid()
        self._serial = 0
        self._steps = 0
        self._left = 0
        self._fd = -1
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
        """Whether `tick` has to be called at every phase."""
        return self._state in (WAITING, RUNNING)

    def ask(self, request: int, now: int) -> None:
        """Look at the monitor's request: a serial number above 16 bits, the steps below; 0 is none."""
        if self._fd >= 0 and not self.active and now > self._ended + KEPT_FOR_NS:
            self._close()
        serial, steps = request >> 16, request & 0xFFFF
        if not steps or serial == self._serial or self.active:
            return
        self._close()
        self._serial, self._steps = serial, min(steps, MOST_STEPS)
        self._fd = os.memfd_create(MEMFD_NAME, _CLOEXEC)
        self._thread = self._last_step = 0
        self._holds = [0, 0, 0]
        self._begun = self._ended = now
        self._say(WAITING)

    def tick(self, now: int, last_step: int, forward: bool) -> None:
        """A phase has ended: a `forward` or another one; `last_step` is when the last optimizer step did, 0 for never.

        A step is from the first phase after an optimizer step to the next such: inside the optimizer its own range in
        the trace would be cut. Where nothing trains, it is from forward to forward.
        """
        thread = _thread.get_ident()
        if self._thread not in (0, thread):
            return
        if self._state == RUNNING and now > self._begun + LONGEST_NS:
            self._stop()
        elif now - last_step > TRAINING_ENDS_AFTER_NS:
            if forward:
                self._step_ended(thread)
        elif last_step not in (now, self._last_step):
            first, self._last_step = not self._last_step, last_step
            # The step in which the request was met is not taken: its beginning is past.
            if not first:
                self._step_ended(thread)

    def _step_ended(self, thread: int) -> None:
        if self._state == WAITING:
            self._thread = thread
            self._start()
            return
        self._left -= 1
        if self._left <= 0:
            self._stop()

    @property
    def runs_elsewhere(self) -> bool:
        """Whether a profile runs in another thread, which alone can end it. For a thread that stopped stepping nobody
        waits for ever.
        """
        if self._profile is None or self._thread == _thread.get_ident() or self._pid != os.getpid():
            return False
        return time.monotonic_ns() < self._begun + 2 * LONGEST_NS

    def abandon(self) -> None:
        """The hook leaves: end the profile without a trace, and let go of the memory. Torch's errors end here."""
        kept: dict[str, str | None] = {}
        try:
            self._guards.take_all_back()
            # In a forked child neither the profiler's threads nor the device are there.
            if self._profile is not None and self._pid == os.getpid():
                kept = self._let_cupti_go()
                profile, self._profile = self._profile, None
                self._exit(profile)
        except Exception:
            # The hook leaves all the same.
            pass
        finally:
            self._speak()
            _restore(kept)
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
            return
        self._left = self._steps
        self._stand_guard()
        self._begun = time.monotonic_ns()
        self._holds[0] = self._begun - start
        self._say(RUNNING)

    def _stand_guard(self) -> None:
        """Make way where the thread forks, as a child would go on recording for as long as it lives, and where the
        program starts a profiler of its own.
        """
        # Each set of patches is good for one time.
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
                # The program goes on with what it was about to do.
                pass
            return original(*args, **kwargs)

        return guarded

    def _make_way(self) -> None:
        """End the profile early: with the steps that are done, or none, and then at the next step again."""
        if self._left < self._steps:
            self._stop()
            return
        profile, self._profile = self._profile, None
        self._guards.take_all_back()
        self._last_step = 0
        self._say(WAITING)
        try:
            self._exit(profile)
        finally:
            self._speak()

    def _entered(self) -> Any:
        """A running profile. The settings that keep it from printing hold only while it is made."""
        kept = {name: os.environ.get(name) for name in QUIET}
        os.environ.update(QUIET)
        try:
            device = "cuda" if self._torch.cuda.is_initialized() else None
            make = self._torch.autograd.profiler.profile
            profile = make(use_kineto=True, use_device=device, record_shapes=True, profile_memory=True)
            # Older torch makes Python objects of all events as it stops, which takes seconds. Nobody needs them.
            profile._parse_kineto_results = lambda *args, **kwargs: []
            self._hush()
            return profile.__enter__()
        except BaseException:
            self._end_recording()
            self._speak()
            raise
        finally:
            _restore(kept)

    def _hush(self) -> None:
        """Hold torch's C++ messages back for as long as the profile runs, where torch has the switch for that."""
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
        kept: dict[str, str | None] = {}
        try:
            self._guards.take_all_back()
            kept = self._let_cupti_go()
            profile, self._profile = self._profile, None
            self._exit(profile)
            self._holds[1] = time.monotonic_ns() - start
            size = self._save(profile.kineto_results)
            self._holds[2] = time.monotonic_ns() - start - self._holds[1]
            self._say(DONE, size)
        except Exception as error:
            self._refuse(f"the trace could not be written: {type(error).__name__}: {error}")
        finally:
            self._speak()
            _restore(kept)

    def _let_cupti_go(self) -> dict[str, str | None]:
        """Have CUPTI detached with the profile: otherwise every launch of the run pays for it from then on. Returns
        what to restore in the environment.
        """
        kept = {TEARDOWN: os.environ.get(TEARDOWN)}
        if kept[TEARDOWN] is None and self._torch.cuda.is_initialized() and not _graphs_in_use():
            os.environ[TEARDOWN] = "1"
        return kept

    def _exit(self, profile: Any) -> None:
        """End the profile, also where an interrupt of the user's comes in the middle of that."""
        try:
            profile.__exit__(None, None, None)
        except BaseException:
            self._end_recording()
            raise

    def _end_recording(self) -> None:
        """Have nothing recorded any more, after whatever went wrong. Does not raise."""
        try:
            autograd = self._torch.autograd
            if autograd._profiler_enabled():
                autograd._disable_profiler()
        except Exception:
            # Torch has taken its profiler back by itself.
            pass

    def _save(self, results: Any) -> int:
        """Bytes of the trace, which now is in the memfd."""
        folder = _folder()
        try:
            path = os.path.join(folder, "trace.json")
            results.save(path)
            with open(path, "rb") as trace:
                size = os.fstat(trace.fileno()).st_size
                os.lseek(self._fd, TRACE_AT, os.SEEK_SET)
                sent = 0
                while sent < size:
                    some = os.sendfile(self._fd, trace.fileno(), sent, size - sent)
                    if not some:
                        break
                    sent += some
                return sent
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _refuse(self, reason: str) -> None:
        text = reason.encode(errors="replace")[:TEXT_ROOM]
        if self._fd >= 0:
            os.pwrite(self._fd, text, TEXT_AT)
        self._say(REFUSED, len(text))

    def _say(self, state: int, size: int = 0) -> None:
        self._state = state
        if self._fd >= 0:
            done = max(0, self._steps - max(0, self._left)) if state != WAITING else 0
            words = (MAGIC, self._serial, state, done, self._begun, self._ended, *self._holds, size)
            os.pwrite(self._fd, HEADER.pack(*words), 0)

    def _close(self) -> None:
        self._state = 0
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _folder() -> str:
    """A new directory that only this user can look into, in memory where that is there. If we are killed meanwhile,
    a monitor that comes by its name knows that it may go.
    """
    prefix = f"aitop-burst-{os.getpid()}-"
    try:
        return tempfile.mkdtemp(prefix=prefix, dir="/dev/shm")
    except OSError:
        return tempfile.mkdtemp(prefix=prefix)


def _graphs_in_use() -> bool:
    """Tearing CUPTI down crashes CUDA graphs, as torch's own profiler knows."""
    return "torch._inductor.cudagraph_trees" in sys.modules


def _restore(kept: dict[str, str | None]) -> None:
    for name, value in kept.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _level_of_torch() -> Any:
    """The switch in the libraries that torch's extension module brings along; None where there is none."""
    extension = getattr(sys.modules.get("torch._C"), "__file__", None)
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(extension), LOG_LEVEL_SYMBOL) if extension else None
    except (OSError, ValueError):
        return None
