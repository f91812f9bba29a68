"""The jobs of a cluster as a table of text, and as JSON (schema 1)."""

from __future__ import annotations

from collections.abc import Sequence

from aitop import __version__
from aitop.model.fleet import Fleet, FleetJob, by_waste
from aitop.model.text import printable
from aitop.model.units import NOT_SUPPORTED, factor, period
from aitop.outputs.report import as_json
from aitop.outputs.text import trimmed

SCHEMA = 1
WIDEST = 40
HEADINGS = ("JOB", "USER", "NODES", "RANKS", "WASTED", "VERDICT", "LINE", "GAIN")
AT_THE_RIGHT = frozenset({"RANKS", "WASTED", "GAIN"})


def to_json(fleet: Fleet, address: str) -> str:
    """Indented JSON with a newline at the end. `address` is without name and password."""
    return as_json(
        {
            "schema": SCHEMA,
            "aitop": __version__,
            "prometheus": address,
            "window_s": fleet.window,
            "wasted_device_hours": fleet.wasted,
            "watching": fleet.watching,
            "jobs": by_waste(fleet.jobs),
        }
    )


def to_text(fleet: Fleet, address: str) -> str:
    """A heading, one row per job, and the totals. Control characters in names are replaced."""
    rows = [HEADINGS, *(_row(job) for job in by_waste(fleet.jobs))]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADINGS))]
    lines = [_line(row, widths) for row in rows]
    wasted = f"{fleet.wasted:.1f} device-hours" if fleet.wasted is not None else "not measured"
    there = f"{fleet.ranks} ranks on {fleet.nodes} of {fleet.watching} nodes"
    lines += ["", f"{there}; wasted in the last {period(fleet.window)}: {wasted}", f"from {printable(address)}"]
    return "".join(f"{line}\n" for line in lines)


def _row(job: FleetJob) -> tuple[str, ...]:
    finding = job.finding
    texts = (
        job.job,
        job.user or NOT_SUPPORTED,
        job.nodes_text or NOT_SUPPORTED,
        str(job.ranks),
        f"{job.wasted:.2f} h" if job.wasted is not None else NOT_SUPPORTED,
        job.finding_text or NOT_SUPPORTED,
        finding.place if finding is not None and finding.place else NOT_SUPPORTED,
        factor(finding.speedup if finding is not None else None),
    )
    return tuple(trimmed(printable(text), WIDEST) for text in texts)


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        text.rjust(width) if heading in AT_THE_RIGHT else text.ljust(width)
        for heading, text, width in zip(HEADINGS, texts, widths, strict=True)
    )
    return "  ".join(cells).rstrip()
