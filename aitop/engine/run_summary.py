"""A recording to what is known of the whole run: its units of work, where their time goes, and how it was set up."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from aitop.engine.core import Engine
from aitop.engine.replay import JUDGED_TICKS
from aitop.model.event import Event
from aitop.model.host import HostSample
from aitop.model.ledger import Ledger, Unit
from aitop.model.phases import MEASURED, SERVED
from aitop.model.run import Run, Scalar, Stretch
from aitop.model.serving import IterationRecord, RequestRecord
from aitop.model.snapshot import Snapshot, Tick
from aitop.model.steps import HookFacts, HookSample, StepRecord
from aitop.sources.replay import Recording

# From here on, neighbouring units are put together: a run of hours must not take more memory than one of minutes.
MOST_STRETCHES = 4096
# Facts of the hook that a user sets, or that follow from what a user installs.
FACTS = (
    "torch", "python", "cuda", "threads", "optimizers", "foreach", "fused", "parameters", "parameter_dtypes",
    "input_dtypes", "autocast", "matmul_precision", "world_size",
)  # fmt: skip
LOADER_FACTS = ("workers", "batch_size", "prefetch", "pin_memory", "persistent")


@dataclass
class Units:
    """Units of work of one process in order, as at most MOST_STRETCHES stretches of equally many."""

    stretches: list[Stretch] = field(default_factory=list)
    _open: Stretch | None = None
    _each: int = 1

    def add(self, unit: Stretch) -> None:
        """Take the next unit."""
        self._open = unit if self._open is None else _joined(self._open, unit)
        if self._open.count < self._each:
            return
        self.stretches.append(self._open)
        self._open = None
        if len(self.stretches) >= MOST_STRETCHES:
            pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
            self.stretches = [_joined(first, second) for first, second in pairs]
            self._each *= 2


@dataclass
class _Process:
    """What one process did."""

    steps: Units = field(default_factory=Units)
    requests: Units = field(default_factory=Units)
    iterations: Units = field(default_factory=Units)
    began: float | None = None
    ended: float = 0.0

    def take(self, sample: HookSample) -> None:
        for step in sample.steps:
            self.steps.add(_step(step))
        for iteration in sample.iterations:
            self.iterations.add(_iteration(iteration))
        for request in sample.requests:
            self.requests.add(_request(request))
            self.began = request.end if self.began is None else self.began
            self.ended = request.end

    def by_kind(self) -> dict[Unit, Units]:
        """Its units by what they are."""
        return {"step": self.steps, "iteration": self.iterations, "request": self.requests}

    def concurrency(self) -> float | None:
        """Requests under way on average, by how long all of them took together."""
        if self.began is None or self.ended <= self.began:
            return None
        return sum(stretch.seconds for stretch in self.requests.stretches) / (self.ended - self.began)


def run_of(recording: Recording, file: str) -> Run | None:
    """What `recording` holds, None where it ends before its first tick. `file` is its name."""
    ticks = sum(1 for _ in recording.events().ticks())
    engine, processes = Engine(recording.header.target), dict[int, _Process]()
    hosts: list[float] = []
    snapshot, first, at = None, None, 0
    for event in recording.events():
        _take(event, processes, hosts)
        if isinstance(event, Tick):
            at += 1
            first = event.time if first is None else first
        snapshot = engine.handle(event, judged=at > ticks - JUDGED_TICKS) or snapshot
    if snapshot is None or first is None:
        return None
    ledger = snapshot.ledgers[0] if snapshot.ledgers else None
    shown, unit, units = _shown(processes, ledger)
    return Run(
        file=file,
        basis="recording",
        command=snapshot.target.command,
        script=snapshot.target.script,
        kind=snapshot.kind,
        unit=unit,
        watched=snapshot.time - first,
        stretches=tuple(units.stretches),
        entries=ledger.entries if ledger is not None else (),
        verdicts=snapshot.diagnosis.verdicts,
        settings=_settings(snapshot, recording.header.aitop),
        other_load=fmean(hosts) if hosts else None,
        concurrency=shown.concurrency() if shown is not None else None,
    )


def _take(event: Event, processes: dict[int, _Process], hosts: list[float]) -> None:
    if isinstance(event, HookSample):
        processes.setdefault(event.pid, _Process()).take(event)
    elif isinstance(event, HostSample):
        load = _other_load(event)
        if load is not None:
            hosts.append(load)


def _other_load(host: HostSample) -> float | None:
    """Cores that are busy with anything but the run."""
    busy = host.machine.core_busy
    own = [process.cpu for process in host.processes if process.cpu is not None]
    return max(0.0, sum(busy) - sum(own)) if busy is not None and own else None


def _shown(processes: dict[int, _Process], ledger: Ledger | None) -> tuple[_Process | None, Unit | None, Units]:
    """A process, its unit and the units of it that were timed.

    Those of the ledger if they were; else of the process that did most, as the hook may be in another one.
    """
    unit, pid = (ledger.unit, ledger.pid) if ledger is not None else (None, None)
    candidates = [
        (own, process, kind, units)
        for own, process in ((key == pid, process) for key, process in processes.items())
        for kind, units in process.by_kind().items()
        if units.stretches
    ]
    if not candidates:
        return None, unit, Units()
    return max(candidates, key=lambda each: (each[2] == unit, each[0], len(each[3].stretches)))[1:]


def _step(step: StepRecord) -> Stretch:
    phases: dict[str, float] = {phase.key: phase.seconds(step) for phase in MEASURED if phase.is_measured(step)}
    return Stretch(count=1, seconds=step.seconds, samples=step.samples, tokens=step.tokens, phases=phases)


def _iteration(turn: IterationRecord) -> Stretch:
    fields = {phase.key: getattr(turn, phase.iteration) for phase in SERVED if phase.iteration and phase.key != "idle"}
    phases: dict[str, float] = {key: seconds for key, seconds in fields.items() if seconds is not None}
    tokens = None
    if turn.prefill_tokens is not None and turn.decode_tokens is not None:
        tokens = turn.prefill_tokens + turn.decode_tokens
    return Stretch(count=1, seconds=turn.seconds, samples=turn.requests, tokens=tokens, phases=phases)


def _request(request: RequestRecord) -> Stretch:
    fields = {phase.key: getattr(request, phase.request) for phase in SERVED if phase.request}
    phases: dict[str, float] = {key: seconds for key, seconds in fields.items() if seconds is not None}
    if request.queue is not None:
        phases = {"queue": request.queue, **phases}
    tokens = None
    if request.prompt_tokens is not None and request.tokens is not None:
        tokens = request.prompt_tokens + request.tokens
    return Stretch(count=1, seconds=request.seconds, tokens=tokens, phases=phases)


def _joined(first: Stretch, second: Stretch) -> Stretch:
    keys = dict.fromkeys((*first.phases, *second.phases))
    return Stretch(
        count=first.count + second.count,
        seconds=first.seconds + second.seconds,
        samples=_sum(first.samples, second.samples),
        tokens=_sum(first.tokens, second.tokens),
        phases={key: first.phases.get(key, 0.0) + second.phases.get(key, 0.0) for key in keys},
    )


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _settings(snapshot: Snapshot, version: str) -> dict[str, Scalar]:
    """What a user may have changed, by the name that users know."""
    named: dict[str, object] = {"aitop": version, "engine": snapshot.engine, "ranks": _ranks(snapshot)}
    host = snapshot.host
    if host is not None:
        named |= {"cores": host.machine.cores, "usable cores": host.usable_cores}
        workers = sum(process.role == "loader-worker" for process in host.processes)
        named["loader workers"] = workers
    if snapshot.gpu is not None:
        named["GPU"] = tuple(sorted({device.name for device in snapshot.gpu.devices if device.name}))
    if snapshot.facts is not None:
        named |= _facts(snapshot.facts)
    return {name: _scalar(value) for name, value in named.items() if value not in (None, ())}


def _ranks(snapshot: Snapshot) -> int | None:
    processes = snapshot.host.processes if snapshot.host is not None else ()
    return sum(process.role == "rank" for process in processes) or None


def _facts(facts: HookFacts) -> dict[str, object]:
    named: dict[str, object] = {name.replace("_", " "): getattr(facts, name) for name in FACTS}
    if facts.loaders:
        named |= {f"loader {name.replace('_', ' ')}": getattr(facts.loaders[0], name) for name in LOADER_FACTS}
    return named


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, (int, float, str, bool)):
        return value
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
