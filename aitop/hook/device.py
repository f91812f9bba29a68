"""The device clock: CUDA events from a pool around the phases, read when they are done and never waited for.

Every call into CUDA is guarded: while a graph is being captured nothing is recorded or asked, and after a few errors
the clock switches itself off. Steps shorter than `ALWAYS_ABOVE_NS` are timed for a twentieth of each second only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from . import layout as at

FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2
ALWAYS_ABOVE_NS = 10_000_000
WINDOW_NS, EVERY_NS = 50_000_000, 1_000_000_000
MOST_PENDING = 256
MOST_SPANS = 64
MOST_ERRORS = 3
NS_PER_MS = 1e6
UNKNOWN = (at.NOT_MEASURED,) * 4

Span = tuple[int, Any]
# The spans (phase, begin, end) of a step and the events at its two ends.
Timing = tuple[list[tuple[int, Any, Any]], Any, Any]


class DeviceClock:
    """Notes events for the steps of one thread. `write` gets each finished record, in order."""

    def __init__(self, torch: Any, write: Callable[[tuple[int, ...]], None]) -> None:
        self._new_event = torch.cuda.Event
        self._capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._write = write
        self._pool: list[Any] = []
        self._pending: deque[tuple[Timing | None, tuple[int, ...]]] = deque()
        self._spans: list[tuple[int, Any, Any]] = []
        self._whole = True
        self._on = False
        self._boundary: Any = None
        self._last_end = 0
        self._optimizer: Span | None = None
        self._errors = 0

    def begin(self, phase: int) -> Span | None:
        """Note the start of a phase on the current stream; None when this step is not timed."""
        if not self._on:
            return None
        event = self._recorded()
        return None if event is None else (phase, event)

    def end(self, span: Span, keep: bool) -> None:
        phase, begun = span
        event = self._recorded() if keep and len(self._spans) < MOST_SPANS else None
        if event is not None:
            self._spans.append((phase, begun, event))
        else:
            self._whole = self._whole and not keep
            self._pool.append(begun)

    def begin_optimizer(self) -> None:
        self._optimizer = self.begin(OPTIMIZER)

    def step_ends(self, now: int) -> Timing | None:
        """End the optimizer and with it a step or a part of one: what was noted, None where not all of it was timed."""
        if self._optimizer is not None:
            self.end(self._optimizer, True)
            self._optimizer = None
        was_on, first, spans, whole = self._on, self._boundary, self._spans, self._whole
        length, self._last_end = now - self._last_end, now
        on = self._errors < MOST_ERRORS and (length > ALWAYS_ABOVE_NS or now % EVERY_NS < WINDOW_NS)
        self._boundary = self._recorded() if was_on or on else None
        self._on = on and self._boundary is not None
        self._spans, self._whole = [], True
        if was_on and whole and first is not None and self._boundary is not None:
            return spans, first, self._boundary
        return None

    def emit(self, timing: Timing | None, fields: tuple[int, ...]) -> None:
        """Write the record when its events are done; at once where it has none and no older one waits."""
        if timing is None and not self._pending:
            self._write(fields + UNKNOWN)
            return
        self._pending.append((timing, fields))
        self._drain()

    def flush(self) -> None:
        """Write what still waits, without its device times."""
        while self._pending:
            self._write(self._pending.popleft()[1] + UNKNOWN)

    def _drain(self) -> None:
        try:
            if self._capturing():
                return
            while self._pending:
                timing, fields = self._pending[0]
                if timing is None:
                    times: tuple[int, ...] = UNKNOWN
                elif _done(timing):
                    times = _read(timing)
                elif len(self._pending) > MOST_PENDING:
                    times = UNKNOWN
                else:
                    return
                self._pending.popleft()
                self._write(fields + times)
                if timing is not None and times is not UNKNOWN:
                    self._recycle(timing)
        except Exception:
            self._errors += 1
            self.flush()

    def _recycle(self, timing: Timing) -> None:
        # The last event is the next step's first, and comes back with that step.
        self._pool.append(timing[1])
        for _, begun, ended in timing[0]:
            self._pool += (begun, ended)

    def _recorded(self) -> Any:
        """An event that was just recorded on the current stream, None where that cannot be."""
        try:
            if self._capturing():
                self._whole = False
                return None
            event = self._pool.pop() if self._pool else self._new_event(enable_timing=True)
            event.record()
        except Exception:
            self._errors += 1
            self._whole = False
            return None
        return event


def joined(one: Timing | None, other: Timing | None) -> Timing | None:
    """Two parts, one after the other, of one step."""
    return None if one is None or other is None else (one[0] + other[0], one[1], other[2])


def _done(timing: Timing) -> bool:
    return timing[2].query() and all(ended.query() for _, _, ended in timing[0])


def _read(timing: Timing) -> tuple[int, ...]:
    """Nanoseconds in forward, backward, optimizer, and between them."""
    spans, first, last = timing
    sums = [0.0, 0.0, 0.0]
    for phase, begun, ended in spans:
        sums[phase] += begun.elapsed_time(ended)
    idle = max(0.0, first.elapsed_time(last) - sum(sums))
    return tuple(int(value * NS_PER_MS) for value in (*sums, idle))


def allocators(torch: Any) -> list[dict[str, int]]:
    """What the caching allocator holds on each device in use, in bytes. Asks the allocator only, not the driver."""
    found = []
    for device in range(min(torch.cuda.device_count(), 16)):
        try:
            stats = torch.cuda.memory_stats(device)
        except RuntimeError:
            # An allocator that the program plugged in may keep no figures.
            break
        reserved = stats.get("reserved_bytes.all.current", 0)
        if not reserved:
            continue
        sample = {
            "device": device,
            "allocated": stats.get("allocated_bytes.all.current", 0),
            "reserved": reserved,
            "capacity": torch.cuda.get_device_properties(device).total_memory,
        }
        optional = {
            "peak_allocated": "allocated_bytes.all.peak",
            "active": "active_bytes.all.current",
            "inactive_split": "inactive_split_bytes.all.current",
            "retries": "num_alloc_retries",
            "ooms": "num_ooms",
        }
        sample.update({name: stats[key] for name, key in optional.items() if key in stats})
        found.append(sample)
    return found
