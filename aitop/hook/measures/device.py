"""Times the phases on the device with CUDA events from a pool. Events are read once they are done, never waited for.

An event belongs to the device that it was recorded on, so each device has a pool of its own, and a step that changes
the device is not timed. While any thread captures a CUDA graph, nothing is recorded or queried, because that would
abort the capture. After a few errors the clock switches itself off. Steps shorter than `ALWAYS_ABOVE_NS` are timed only
for a twentieth of each second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...protocol.events import DEVICE, DEVICE_REST, NOT_MEASURED, TIMED
from ..compiler import keep_from_compiling
from ..errors import raise_if_of_program
from ..journal import Journal
from ..patches import Patches
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2
ALWAYS_ABOVE_NS = 10_000_000
WINDOW_NS, EVERY_NS = 50_000_000, 1_000_000_000
MOST_PENDING = 256
MOST_SPANS = 64
MOST_ERRORS = 3
NS_PER_MS = 1e6
UNKNOWN = (NOT_MEASURED,) * 4

Span = tuple[int, Any]
# The spans of a step (phase, begin event, end event), the events at its beginning and end, and the pool of them all.
Timing = tuple[list[tuple[int, Any, Any]], Any, Any, list[Any]]


class Device(Measure):
    """Starts the DeviceClock as soon as the program uses CUDA, and reports the caching allocator's figures."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._torch = torch
        self._patches = patches
        self._journal = session.journal

    def look(self, now: int) -> None:
        if self._journal.device is None and self._torch.cuda.is_initialized():
            self._journal.device = DeviceClock(self._torch, self._journal, self._patches)

    def facts(self) -> dict[str, Any]:
        return {"allocators": allocators(self._torch)} if self._journal.device is not None else {}

    def over(self) -> None:
        if self._journal.device is not None:
            self._journal.device.flush()


class DeviceClock:
    """Times the steps of one thread on the device. Each has a number, and times are noted in order of the numbers."""

    def __init__(self, torch: Any, journal: Journal, patches: Patches) -> None:
        self._new_event = torch.cuda.Event
        self._captures_here: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._captures = 0
        graph = getattr(torch.cuda, "CUDAGraph", None)
        if hasattr(graph, "capture_begin") and hasattr(graph, "capture_end"):
            patches.put(graph, "capture_begin", self._wrap_begin)
            patches.put(graph, "capture_end", self._wrap_end)
        self._journal = journal
        self._device: Callable[[], int] = torch.cuda.current_device
        # Unused events by device. `_pool` has those of the device that was recorded on last.
        self._pools: dict[int, list[Any]] = {}
        self._pool: list[Any] = []
        self._pending: deque[tuple[int, Timing]] = deque()
        self._number = 0
        self._spans: list[tuple[int, Any, Any]] = []
        self._whole = True
        self._on = False
        self._boundary: Any = None
        self._last_end = 0
        self._window_ends = 0
        self._window_due = 0
        self._optimizer: Span | None = None
        self._errors = 0

    def _capturing(self) -> bool:
        return self._captures > 0 or self._captures_here()

    def _wrap_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self._captures += 1
            try:
                return original(*args, **kwargs)
            except BaseException:
                self._captures -= 1
                raise

        return capture_begin

    def _wrap_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                # A capture that began before the hook came in was not counted.
                self._captures = max(0, self._captures - 1)

        return capture_end

    def begin(self, phase: int) -> Span | None:
        """Record the start of a phase on the current stream. Returns its span; None if this step is not timed."""
        if not self._on:
            return None
        event = self._recorded()
        return None if event is None else (phase, event)

    def end(self, span: Span, keep: bool) -> None:
        """Record the end of a phase. Without `keep` the phase is dropped."""
        phase, begun = span
        event = self._recorded() if keep and len(self._spans) < MOST_SPANS else None
        if event is not None:
            self._spans.append((phase, begun, event))
        else:
            self._whole = self._whole and not keep
            self._pool.append(begun)

    def begin_optimizer(self) -> None:
        """Record the start of an optimizer step, which `step_ends` ends."""
        self._optimizer = self.begin(OPTIMIZER)

    def step_ends(self, now: int) -> None:
        """Record the end of an optimizer step, which ends a step or part of one. Note its number if all was timed."""
        if self._optimizer is not None:
            self.end(self._optimizer, True)
            self._optimizer = None
        was_on, first = self._on, self._boundary
        length, self._last_end = now - self._last_end, now
        on = self._errors < MOST_ERRORS and (length > ALWAYS_ABOVE_NS or self._in_window(now))
        self._boundary = self._recorded() if was_on or on else None
        self._on = on and self._boundary is not None
        spans, whole, self._spans, self._whole = self._spans, self._whole, [], True
        if was_on and whole and first is not None and self._boundary is not None:
            self._number += 1
            self._pending.append((self._number, (spans, first, self._boundary, self._pool)))
            self._journal.note(TIMED, now, now, self._number)

    def _in_window(self, now: int) -> bool:
        """Return whether short steps are timed at `now`: for WINDOW_NS of every EVERY_NS."""
        if now > self._window_due:
            self._window_due, self._window_ends = now + EVERY_NS, now + WINDOW_NS
        return now < self._window_ends

    def pause(self) -> None:
        """Stop timing steps until `resume`."""
        if self._whole:
            # A pending step may have the boundary as its last event: then the event is still needed.
            if self._boundary is not None and not self._pending:
                self._pool.append(self._boundary)
            self._pool += [event for _, begun, ended in self._spans for event in (begun, ended)]
        self._spans, self._whole, self._boundary, self._optimizer, self._on = [], True, None, None, False

    def resume(self, last_end: int) -> None:
        """Time steps again. The last one ended at `last_end`."""
        self._last_end = last_end

    def flush(self) -> None:
        """Give up on the pending steps: note that they have no times."""
        while self._pending:
            self._note(self._pending.popleft()[0], UNKNOWN)

    def drain(self) -> None:
        """Note the times of the pending steps that the device has finished."""
        if not self._pending:
            return
        try:
            if self._capturing():
                return
            while self._pending:
                number, timing = self._pending[0]
                times = UNKNOWN
                if _done(timing):
                    times = _read(timing)
                    self._recycle(timing)
                elif len(self._pending) <= MOST_PENDING:
                    return
                self._pending.popleft()
                self._note(number, times)
        except Exception:
            raise_if_of_program()
            self._errors += 1
            self.flush()

    def _note(self, number: int, times: tuple[int, ...]) -> None:
        forward, backward, optimizer, idle = times
        self._journal.note(DEVICE, number, forward, backward, optimizer)
        self._journal.note(DEVICE_REST, number, idle)

    def _recycle(self, timing: Timing) -> None:
        # The last event is also the next step's first one, and returns to the pool with that step.
        spans, first, _, pool = timing
        pool.append(first)
        for _, begun, ended in spans:
            pool += (begun, ended)

    def _recorded(self) -> Any:
        """Record an event on the current stream and return it; None on an error or during a CUDA graph capture."""
        try:
            if self._capturing():
                self._whole = False
                return None
            pool = self._pools.setdefault(self._device(), [])
            if pool is not self._pool:
                self._pool, self._whole = pool, False
            event = pool.pop() if pool else self._new_event(enable_timing=True)
            event.record()
        except Exception:
            raise_if_of_program()
            self._errors += 1
            self._whole = False
            return None
        return event


def _done(timing: Timing) -> bool:
    return timing[2].query() and all(ended.query() for _, _, ended in timing[0])


def _read(timing: Timing) -> tuple[int, int, int, int]:
    """Return the nanoseconds in forward, backward and optimizer, and the rest of the step (idle)."""
    spans, first, last, _ = timing
    sums = [0.0, 0.0, 0.0]
    for phase, begun, ended in spans:
        sums[phase] += begun.elapsed_time(ended)
    idle = max(0.0, first.elapsed_time(last) - sum(sums))
    forward, backward, optimizer = (int(value * NS_PER_MS) for value in sums)
    return forward, backward, optimizer, int(idle * NS_PER_MS)


def allocators(torch: Any) -> list[dict[str, Any]]:
    """Return the caching allocator's figures for each device in use, in bytes. Does not ask the driver."""
    samples = []
    for device in range(min(torch.cuda.device_count(), 16)):
        try:
            stats = torch.cuda.memory_stats(device)
        except RuntimeError:
            raise_if_of_program()
            # The program may have installed an allocator without statistics.
            break
        reserved = stats.get("reserved_bytes.all.current", 0)
        if not reserved:
            continue
        properties = torch.cuda.get_device_properties(device)
        sample = {
            "device": device,
            "allocated": stats.get("allocated_bytes.all.current", 0),
            "reserved": reserved,
            "capacity": properties.total_memory,
        }
        if hasattr(properties, "uuid"):  # torch 2.4 and later
            sample["uuid"] = str(properties.uuid)
        optional = {
            "peak_allocated": "allocated_bytes.all.peak",
            "inactive_split": "inactive_split_bytes.all.current",
            "retries": "num_alloc_retries",
            "ooms": "num_ooms",
        }
        sample.update({name: stats[key] for name, key in optional.items() if key in stats})
        samples.append(sample)
    return samples


keep_from_compiling(DeviceClock.begin.__code__, DeviceClock.end.__code__, inner=True)
