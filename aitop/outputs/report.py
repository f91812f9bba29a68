"""The report of a diagnosis as `diagnose --format json` writes it (schema 1): what SCRIPTING.md lists, in that order.

Built from one Snapshot, without input, output or clock. None means not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from aitop import __version__
from aitop.diagnosis.run_comparison import compared
from aitop.diagnosis.run_summary import run_of
from aitop.model.host import ProcessSample
from aitop.model.ledger import Entry, Ledger
from aitop.model.phases import TIMED_ALONE
from aitop.model.serving import Serving
from aitop.model.snapshot import Phases, Snapshot, Steps
from aitop.model.source import SOURCE_NAMES, SourceName, SourceStatus
from aitop.model.text import escaped_json

SCHEMA = 1
DIGITS = 4
# Seconds since the epoch: rounded, such a time would be days off.
TIMES = frozenset({"since", "ended"})
NO_STEPS = Steps(basis="", phases=Phases())


def report_of(snapshot: Snapshot) -> dict[str, Any]:
    """The report of this snapshot, ready to be written as JSON."""
    target, serving, diagnosis = snapshot.target, snapshot.serving, snapshot.diagnosis
    return {
        "schema": SCHEMA,
        "aitop": __version__,
        "window_s": snapshot.window,
        "target": {
            "pid": target.pid,
            "command": target.command,
            "kind": snapshot.kind,
            "processes": [_process(process) for process in snapshot.processes],
            "engine": snapshot.engine,
            "working": [_worker(ledger) for ledger in snapshot.ledgers],
            "ended": target.ended,
        },
        "sources": {name: _source(status) for name, status in sources_of(snapshot).items()},
        "step": _step(snapshot.steps or NO_STEPS),
        "ledger": _entries(snapshot.ledgers),
        "serving": None if serving is None else _serving(serving),
        "verdicts": diagnosis.verdicts,
        "cost": snapshot.cost,
        "abstained": diagnosis.abstained,
        "comparison": compared(snapshot),
        "run": run_of(snapshot),
    }


def as_json(report: Any) -> str:
    """Indented JSON with the keys in the order of the schema and a newline at the end."""
    written = msgspec.json.encode(rounded(msgspec.to_builtins(report)))
    return escaped_json(msgspec.json.format(written, indent=2).decode()) + "\n"


def rounded(value: Any) -> Any:
    """`value` (of plain types) with every fraction in it rounded to DIGITS significant digits, but for TIMES."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: each if key in TIMES else rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def sources_of(snapshot: Snapshot) -> dict[SourceName, SourceStatus]:
    """The sources to report: those that every job may have, and a server's metrics if they were looked for."""
    unheard = {
        name: SourceStatus(time=snapshot.time, source=name, state="absent", reason="nothing was heard of it")
        for name in SOURCE_NAMES
    }
    return {**unheard, **snapshot.sources}


def phase_shares(phases: Phases) -> dict[str, float | None]:
    """The share (0..1) of every phase that can be measured, None where it was not. The shares add up to 1."""
    shares = phases.shares()
    outside = shares.pop("outside")
    return {**shares, **{phase.key: shares.get(phase.key) for phase in TIMED_ALONE}, "outside": outside}


def _process(process: ProcessSample) -> dict[str, Any]:
    """A process of the tree. `rank` of a loader worker is the rank it feeds; only processes of servers have `part`."""
    part = {} if process.part is None else {"part": process.part}
    return {"pid": process.pid, "role": process.role, "rank": process.rank, **part}


def _worker(ledger: Ledger) -> dict[str, Any]:
    """A working process: its thread (or one of several `threads` that take turns), and the mean length of a unit."""
    unit = {"unit": ledger.unit, "seconds": ledger.length}
    return {"pid": ledger.pid, "thread": ledger.thread, **unit, "threads": ledger.threads}


def _source(status: SourceStatus) -> dict[str, str]:
    """The state of a source, with its reason and, where it does not work, a remedy."""
    words = {"reason": status.reason, "remedy": status.remedy if status.state != "ok" else None}
    return {"state": status.state, **{name: text for name, text in words.items() if text is not None}}


def _step(steps: Steps) -> dict[str, Any]:
    """Steps of the window. `mfu` is the share of the device's peak that `flops_per_s` comes to."""
    return {
        "count": steps.count,
        "p50_ms": _milliseconds(steps.p50),
        "p95_ms": _milliseconds(steps.p95),
        "mean_ms": _milliseconds(steps.mean),
        "per_s": steps.per_second,
        "samples_per_s": steps.samples_per_second,
        "tokens_per_s": steps.tokens_per_second,
        "flops_per_s": steps.flops_per_second,
        "mfu": steps.mfu,
        "phases": phase_shares(steps.phases),
        "basis": steps.basis or None,
    }


def _serving(serving: Serving) -> dict[str, Any]:
    """The figures of a server over the last `window_s` seconds."""
    times = {"latency_ms": serving.latency, "ttft_ms": serving.first_token, "itl_ms": serving.inter_token}
    return {
        "window_s": serving.seconds,
        "requests_per_s": serving.requests_per_second,
        "tokens_per_s": serving.tokens_per_second,
        "concurrency": serving.concurrency,
        "queue": serving.queue,
        **{name: seconds and seconds.in_milliseconds() for name, seconds in times.items()},
        "ttft_basis": serving.first_token_basis,
        "batch_mean": serving.batch_mean,
        "kv_used": serving.kv_used,
        "preemptions_per_s": serving.preemptions_per_second,
        "alive": serving.alive,
        "still_s": serving.still,
        "basis": serving.basis,
    }


def _entries(ledgers: Sequence[Ledger]) -> list[dict[str, Any]]:
    """The entries of all ledgers, heaviest first; equally heavy ones in the order of the ledgers."""
    entries = [(ledger.pid, entry) for ledger in ledgers for entry in ledger.entries]
    return [_entry(pid, entry) for pid, entry in sorted(entries, key=lambda each: -each[1].share)]


def _entry(pid: int, entry: Entry) -> dict[str, Any]:
    """An entry of the working process `pid`. The pid of `where` is that of the process that runs the line."""
    at = entry.where
    return {
        "pid": pid,
        "lane": entry.lane,
        "phase": entry.phase,
        "activity": entry.activity,
        "share": entry.share,
        "seconds": entry.seconds,
        "basis": entry.basis,
        "where": at and {"pid": at.pid, "file": at.file, "line": at.line, "function": at.function, "text": at.text},
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
