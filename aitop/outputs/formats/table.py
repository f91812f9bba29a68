"""A recording as a table (CSV) with one row per Snapshot. An empty cell was not measured, or not lately. Pure."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable
from datetime import datetime, timezone

from aitop.model.snapshot import Snapshot

Cell = float | int | str | None
# An older value of a series is left out, as it is no longer of the present. Two ticks or two steps may take longer.
PRESENT_SECONDS = 5.0
# Series of single loader workers are left out: they come and go with their pids.
_OF_WORKERS = re.compile(r"worker\d+\.")


def to_csv(snapshots: Iterable[Snapshot]) -> str:
    """The rows in order, with every column that any of them has; empty without rows."""
    rows: list[dict[str, Cell]] = []
    before = math.inf
    for snapshot in snapshots:
        usual = snapshot.steps.p95 if snapshot.steps is not None else None
        rows.append(_row(snapshot, 2 * max(PRESENT_SECONDS / 2, snapshot.time - before, usual or 0.0)))
        before = snapshot.time
    if not rows:
        return ""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(snapshot: Snapshot, present: float) -> dict[str, Cell]:
    """Time and verdict, figures of steps and of a server, and the newest value of each series.

    A value is left out if it is older than `present` seconds.
    """
    verdict = snapshot.diagnosis.primary
    row: dict[str, Cell] = {
        "tick": snapshot.tick,
        "seconds": snapshot.time,
        "wall": _wall(snapshot.wall),
        "verdict": verdict.id if verdict else None,
        "subtype": verdict.subtype if verdict else None,
        "share": verdict.share if verdict else None,
    }
    steps, serving = snapshot.steps, snapshot.serving
    if steps is not None:
        row |= {
            "steps": steps.count,
            "step_p50_s": steps.p50,
            "step_p95_s": steps.p95,
            "steps_per_s": steps.per_second,
            "samples_per_s": steps.samples_per_second,
            "tokens_per_s": steps.tokens_per_second,
        }
        row |= {f"phase_{phase}": share for phase, share in steps.phases.shares().items()}
    if serving is not None:
        row |= {
            "requests_per_s": serving.requests_per_second,
            "concurrency": serving.concurrency,
            "queue": serving.queue,
            "latency_p50_s": serving.latency.p50 if serving.latency else None,
            "latency_p99_s": serving.latency.p99 if serving.latency else None,
        }
    row |= {
        name: series.values[-1] if snapshot.time - series.times[-1] <= present else None
        for name, series in snapshot.series.items()
        if series.values and not _OF_WORKERS.match(name)
    }
    return row


def _wall(seconds: float) -> str | None:
    """ISO 8601 in UTC; None for a time outside of the calendar."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return None
