"""Steps, requests and iterations as a Chrome trace, which Perfetto and chrome://tracing open. Pure.

Only the length of a phase within its step is known. So phases are drawn one after the other, in the order of a step,
and the rest of the step at its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from aitop import __version__
from aitop.model.event import Event
from aitop.model.gpu import GpuSample
from aitop.model.host import HostSample
from aitop.model.phases import MEASURED, SERVED
from aitop.model.serving import IterationRecord, RequestRecord
from aitop.model.steps import HookSample, StepRecord
from aitop.model.text import printable

STEPS, ENGINE, PAUSES = 1, 2, 3
"""Thread numbers of the tracks of a process."""
TRACKS = {STEPS: "steps", ENGINE: "engine iterations", PAUSES: "pauses"}
GPUS = 0
"""The process number that devices have in the trace."""
REQUEST_PARTS = ("queue", "preprocess", "model", "postprocess")

TraceEvent = dict[str, Any]


def to_trace(events: Iterable[Event]) -> str:
    """The whole trace as JSON; times in microseconds of CLOCK_MONOTONIC."""
    made = _Trace()
    for event in events:
        made.add(event)
    return json.dumps(
        {
            "displayTimeUnit": "ms",
            "otherData": {
                "exporter": f"aitop {__version__}",
                "phases": "in the order of a step; only lengths are measured",
            },
            "traceEvents": [*made.names(), *sorted(made.events, key=lambda event: event["ts"])],
        }
    )


class _Trace:
    """Collects the events of a trace. `_ends` is where the last slice of each track ended, in microseconds."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []
        self._ends: dict[tuple[int, int], float] = {}
        self._processes: dict[int, str] = {}
        self._requests = 0

    def add(self, event: Event) -> None:
        """Take an event; kinds that have no place in a trace are ignored."""
        if isinstance(event, HookSample):
            for step in event.steps:
                self._step(event.pid, step)
            for turn in event.iterations:
                self._iteration(event.pid, turn)
            for request in event.requests:
                self._request(event.pid, request)
            for pause in event.pauses:
                self._slices((event.pid, PAUSES), pause.kind, pause.end, pause.seconds)
        elif isinstance(event, HostSample):
            for process in event.processes:
                rank = f" {process.rank}" if process.role == "rank" and process.rank is not None else ""
                self._processes[process.pid] = f"{process.part or process.role}{rank}: {printable(process.name)}"
                self._counter(process.pid, event.time, "cpu", cores=process.cpu)
                self._counter(process.pid, event.time, "memory", bytes=process.rss)
        elif isinstance(event, GpuSample):
            for device in event.devices:
                self._counter(GPUS, event.time, f"GPU {device.index} busy", share=device.busy)
                self._counter(GPUS, event.time, f"GPU {device.index} memory", bytes=device.memory_used)

    def names(self) -> Iterator[TraceEvent]:
        """The names of processes and tracks."""
        pids = {event["pid"] for event in self.events}
        for pid in sorted(pids):
            name = "GPUs" if pid == GPUS else self._processes.get(pid, f"pid {pid}")
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, tid in sorted(self._ends):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": TRACKS[tid]}}

    def _step(self, pid: int, step: StepRecord) -> None:
        parts = [(phase.key, phase.seconds(step)) for phase in MEASURED]
        facts = {
            "samples": step.samples,
            "tokens": step.tokens,
            "batches ready": step.queue_ready,
            "estimated": step.estimated or None,
        }
        self._slices((pid, STEPS), f"step {step.index}", step.end, step.seconds, parts=parts, facts=facts)
        self._counter(pid, step.end - step.seconds, "loader queue", batches=step.queue_ready)

    def _iteration(self, pid: int, turn: IterationRecord) -> None:
        parts = [
            (phase.key, getattr(turn, phase.iteration) or 0.0)
            for phase in SERVED
            if phase.iteration is not None and phase.key != "idle"
        ]
        facts = {
            "requests": turn.requests,
            "waiting": turn.waiting,
            "prefill": turn.prefill_tokens,
            "decode": turn.decode_tokens,
        }
        self._slices((pid, ENGINE), turn.kind or "iteration", turn.end, turn.seconds, parts=parts, facts=facts)

    def _request(self, pid: int, request: RequestRecord) -> None:
        """Add a request, as a pair of events around pairs for its parts: requests overlap, so each is its own track."""
        self._requests += 1
        start, end = (request.end - request.seconds) * 1e6, request.end * 1e6
        self._pair(pid, "request", start, end, {"tokens": request.tokens, "prompt tokens": request.prompt_tokens})
        for part in REQUEST_PARTS:
            length = (getattr(request, part) or 0.0) * 1e6
            if length:
                self._pair(pid, part, start, min(end, start + length), {})
                start = min(end, start + length)

    def _pair(self, pid: int, name: str, start: float, end: float, facts: dict[str, Any]) -> None:
        common = {"cat": "request", "name": name, "pid": pid, "tid": 0, "id": self._requests}
        self.events.append({"ph": "b", "ts": start, **common, "args": _known(facts)})
        self.events.append({"ph": "e", "ts": end, **common})

    def _slices(
        self,
        track: tuple[int, int],
        name: str,
        end: float,
        seconds: float,
        *,
        parts: Iterable[tuple[str, float]] = (),
        facts: dict[str, Any] | None = None,
    ) -> None:
        """Add a slice and its parts. Slices of a track must not overlap, so it begins after the end of the last one."""
        finish = end * 1e6
        start = min(finish, max(finish - seconds * 1e6, self._ends.get(track, 0.0)))
        self._ends[track] = finish
        self.events.append(_slice(track, name, start, finish, facts or {}))
        for part, length in parts:
            if length > 0:
                beyond = min(finish, start + length * 1e6)
                self.events.append(_slice(track, part, start, beyond, {}))
                start = beyond

    def _counter(self, pid: int, time: float, name: str, **values: float | None) -> None:
        known = _known(values)
        if known:
            self.events.append({"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": time * 1e6, "args": known})


def _slice(track: tuple[int, int], name: str, start: float, end: float, facts: dict[str, Any]) -> TraceEvent:
    pid, tid = track
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start, "dur": end - start, "args": _known(facts)}


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
