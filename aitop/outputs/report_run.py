"""A JSON report of `diagnose` as a run that can be compared. It has no single steps, so less can be told from it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aitop.errors import UnreadableRecordingError
from aitop.model.ledger import Entry
from aitop.model.run import Mean, Run
from aitop.model.verdict import Where
from aitop.outputs.report import SCHEMA, Report, ReportEntry

LARGEST_REPORT = 64 * 1024 * 1024
_KINDS = ("training", "inference")


def run_of_report(path: Path, file: str) -> Run | None:
    """The run that a report is about; None where the file is no JSON report. Raises UnreadableRecordingError."""
    try:
        with path.open("rb") as opened:
            if opened.read(1) != b"{":
                return None
            text = b"{" + opened.read(LARGEST_REPORT)
        head = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (OSError, ValueError, RecursionError):
        return None
    if "schema" not in head or "ledger" not in head:
        return None
    if bytes(head["schema"]) != str(SCHEMA).encode():
        raise UnreadableRecordingError(f"{file} is a report of another schema; this aitop reads schema {SCHEMA}")
    try:
        return _run(msgspec.json.decode(text, type=Report), file)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise UnreadableRecordingError(f"the report {file} is damaged") from None


def _run(report: Report, file: str) -> Run:
    worker = report.target.working[0] if report.target.working else None
    step = report.step
    mean = None
    if step.mean_ms is not None and step.mean_range_ms is not None and step.mean_ms > 0:
        low, high = step.mean_range_ms
        mean = Mean(seconds=step.mean_ms / 1e3, low=low / 1e3, high=high / 1e3)
    workers = sum(process.role == "loader-worker" for process in report.target.processes)
    ranks = sum(process.role == "rank" for process in report.target.processes)
    return Run(
        file=file,
        basis="report",
        command=report.target.command,
        kind=report.target.kind if report.target.kind in _KINDS else "unknown",  # type: ignore[arg-type]
        unit="step" if mean is not None else worker.unit if worker is not None else None,
        watched=report.window_s,
        mean=mean,
        entries=tuple(_entry(entry) for entry in report.ledger if worker is not None and entry.pid == worker.pid),
        verdicts=report.verdicts,
        settings={"aitop": report.aitop, "loader workers": workers, "ranks": ranks},
    )


def _entry(entry: ReportEntry) -> Entry:
    """The entry of the ledger, without an interval: a report has none."""
    at = entry.where
    return Entry(
        lane=entry.lane,
        phase=entry.phase,
        activity=entry.activity,
        share=entry.share,
        low=entry.share,
        high=entry.share,
        basis=entry.basis,
        pid=entry.pid,
        seconds=entry.seconds,
        where=Where(pid=at.pid, file=at.file, line=at.line, function=at.function, text=at.text) if at else None,
    )
