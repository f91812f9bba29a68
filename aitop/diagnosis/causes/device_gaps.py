"""What the device of a run does while the host does something else, and the calls that tie them together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aitop.diagnosis.evidence import MIN_STEPS, device_busy, main_lines, mean_of, own_devices, records
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import CallKind, CallSite, StepRecord
from aitop.model.units import percent
from aitop.model.verdict import Where

MOST_PLACES = 5
LEAST_PART = 0.03


def share_of(steps: Sequence[StepRecord], value: Callable[[StepRecord], float | None]) -> float | None:
    """Share of the time of those steps for which `value` (seconds of a step) is known; None with too few of them."""
    known = [(step.seconds, seconds) for step in steps if (seconds := value(step)) is not None]
    total = sum(seconds for seconds, _ in known)
    if len(known) < MIN_STEPS or total <= 0:
        return None
    return min(1.0, sum(seconds for _, seconds in known) / total)


def idle_share(snapshot: Snapshot) -> float | None:
    """Share of time (0..1) in which the devices of the run had nothing to do; None where nobody measured it.

    NVML sees every gap but those too short for it, the device clock those between the phases: the larger one counts.
    """
    busy = device_busy(snapshot)
    gaps = share_of(records(snapshot), lambda step: step.device_idle)
    found = [gaps] if busy is None else [1.0 - busy] if gaps is None else [1.0 - busy, gaps]
    known = [max(0.0, idle) for idle in found if idle is not None]
    return max(known) if known else None


def idle_words(snapshot: Snapshot) -> list[str]:
    """How it is known that the device idles."""
    busy = device_busy(snapshot)
    gaps = share_of(records(snapshot), lambda step: step.device_idle)
    told = [] if busy is None else [f"GPU busy {percent(busy)} of the time"]
    return told if gaps is None else [*told, f"{percent(gaps)} of each step are gaps on the device clock"]


def activity_of_devices(snapshot: Snapshot, name: str) -> float | None:
    """Mean over the devices of the run of one of NVML's performance counters (sm, tensor, dram, …), 0..1."""
    found = [mean_of(snapshot, f"gpu{one.index}.{name}") for one in own_devices(snapshot)]
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known else None


def calls_of(snapshot: Snapshot, kind: CallKind) -> tuple[CallSite, ...]:
    """Call sites of one kind, the dearest first."""
    calls = [call for call in snapshot.facts.calls if call.kind == kind] if snapshot.facts else []
    return tuple(sorted(calls, key=lambda call: (-(call.seconds or 0.0), -call.calls)))


def per_step(snapshot: Snapshot, call: CallSite) -> float | None:
    """Calls a step of one site; None without steps to hold them against."""
    count = snapshot.steps.count if snapshot.steps else None
    return call.calls / count if count else None


def call_places(snapshot: Snapshot, calls: Sequence[CallSite], lines: Sequence[Entry]) -> tuple[Where, ...]:
    """Call sites as places, the dearest first, with the text of a sampled line where there is one."""
    pid = snapshot.steps.pid if snapshot.steps and snapshot.steps.pid else snapshot.target.pid
    texts = {(entry.file, entry.line): entry.where.text for entry in lines if entry.where is not None}
    seconds: dict[tuple[str, int, str], float] = {}
    for call in calls:
        key = call.file, call.line, call.function
        seconds[key] = seconds.get(key, 0.0) + (call.seconds or 0.0)
    total = sum(seconds.values())
    ordered = sorted(seconds, key=lambda key: -seconds[key])[:MOST_PLACES]
    return tuple(
        Where(
            pid=pid,
            file=file,
            line=line,
            function=function,
            share=seconds[file, line, function] / total if total else None,
            text=texts.get((file, line)),
        )
        for file, line, function in ordered
        if not total or seconds[file, line, function] >= LEAST_PART * total
    )


def text_of(snapshot: Snapshot, file: str, line: int) -> str:
    """The source line as sampled, empty where it never was."""
    entries = main_lines(snapshot, lambda entry: entry.file == file and entry.line == line).lines
    return next((entry.where.text for entry in entries if entry.where is not None and entry.where.text), "")


def short_place(file: str, line: int) -> str:
    """train.py:88."""
    return f"{file.rsplit('/', 1)[-1]}:{line}"
