"""The report as an HTML page: its template has the words and tables, its script draws the charts.

In everything that came from the target, control characters are replaced. The template escapes it, and to the script it
is only data, of which it makes text nodes. A content security policy in the page lets no other script run and nothing
load.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from aitop import __version__
from aitop.diagnosis.catalogue import page
from aitop.diagnosis.fix_edit import Edit, SourceAround, find_edits
from aitop.model.host import HostSample
from aitop.model.ranks import Ranks, RankView
from aitop.model.snapshot import Snapshot
from aitop.model.text import printable
from aitop.model.units import duration, percent, size
from aitop.model.verdict import Fix, Verdict, Where
from aitop.outputs import text
from aitop.outputs.html.charts import HUES, OUTSIDE, Charts, charts_of
from aitop.outputs.ledger_table import tables
from aitop.outputs.report import rounded, sources_of

LINES_AROUND = 5
MOST_PLACES = 8
"""Places of a verdict whose source is shown."""
# Columns of the ranks: heading, field of RankView or of its phases, and the function that makes words of it.
RANK_COLUMNS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("step", "p50", duration),
    ("late", "lateness", duration),
    ("data", "data_wait", duration),
    ("forward", "forward", duration),
    ("backward", "backward", duration),
    ("optimizer", "optimizer", duration),
    ("host", "outside", duration),
    ("wait", "wait", duration),
    ("cpu", "cpu", percent),
    ("memory", "rss", size),
    ("gpu", "gpu_busy", percent),
    ("gpu memory", "gpu_memory", size),
)


def to_html(snapshot: Snapshot, source_around: SourceAround | None = None) -> str:
    """The page of a Snapshot, with source where that can be read."""
    return rendered(
        "report",
        charts_of(snapshot),
        target=snapshot.target,
        sources=sources_of(snapshot),
        facts=[*text.target_facts(snapshot), *text.step_figures(snapshot)],
        compared=text.comparison_text(snapshot).split("\n"),
        no_verdict=text.no_verdict(snapshot),
        findings=[_finding(snapshot, verdict, source_around) for verdict in snapshot.diagnosis.verdicts],
        tables=tables(snapshot),
        phases=[
            (key, text.PHASE_NAMES.get(key, key), _hue(key), share) for key, share in text.measured_phases(snapshot)
        ],
        served=_served(snapshot),
        serving_times=text.serving_times(snapshot),
        ranks=_rank_table(snapshot.ranks) if snapshot.ranks is not None else None,
        gaps=text.gaps(snapshot),
        abstentions=text.abstentions(snapshot),
        costs=text.costs(snapshot),
    )


def rendered(name: str, charts: Charts, **values: Any) -> str:
    """The page of the template `name`, with charts in it."""
    script = _part("report.js")
    return _template(name).render(
        charts=charts,
        data=_data(charts),
        version=__version__,
        style=Markup(_part("report.css")),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - a file of this package
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **values,
    )


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader(__package__, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["percent"] = percent
    return environment.get_template(f"{name}.html.jinja")


def _shown(value: Any) -> Any:
    """What the template puts into the page for an expression: text without control characters."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _data(charts: Charts) -> Any:
    """The charts as values for JSON: text without control characters, fractions with no more digits than in the report.

    A recording may say anything and JSON has no infinity, so figures that are not finite become 0.
    """

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return printable(value)
        if isinstance(value, float):
            return rounded(value) if math.isfinite(value) else 0.0
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items()}
        return [clean(each) for each in value] if isinstance(value, (list, tuple)) else value

    return clean(msgspec.to_builtins(charts))


def _served(snapshot: Snapshot) -> list[str]:
    """The figures of a server in words; empty where none is known."""
    figures, state, serving = text.serving_figures(snapshot), text.serving_state(snapshot), snapshot.serving
    words = [*figures, *([state] if state else [])]
    known = words or text.serving_times(snapshot)
    return [*words, f"from {serving.basis}"] if known and serving is not None else []


def _hue(key: str) -> str:
    return HUES.get(key, key if key in HUES.values() else OUTSIDE)


def _finding(snapshot: Snapshot, verdict: Verdict, source_around: SourceAround | None) -> dict[str, Any]:
    """All that the page shows of a verdict. `changes` are the fixes in words and, where possible, as a diff."""
    edits: dict[str, Edit] = {}
    host, target = snapshot.host, snapshot.target
    if host is not None and source_around is not None:
        places = [(place.pid, place.file) for place in verdict.where[:MOST_PLACES]]
        named = dict.fromkeys([(target.pid, target.script or ""), *places])
        files = [(process, file) for pid, file in named if (process := host.id_of(pid)) is not None]
        edits = find_edits(source_around, verdict.fixes, tuple(files))
    return {
        "verdict": verdict,
        "figures": text.losses(snapshot, verdict),
        "places": [
            _place(place, host, source_around if number < MOST_PLACES else None)
            for number, place in enumerate(verdict.where)
        ],
        "changes": [(text.fix_text(fix), edits.get(fix.text) or _setting(fix)) for fix in verdict.fixes],
        "about": page(verdict.id),
    }


def _place(place: Where, host: HostSample | None, source_around: SourceAround | None) -> dict[str, Any]:
    """A place in words, its recorded line, and the lines around it where they could be read: number and text."""
    process = host.id_of(place.pid) if host is not None else None
    around = None
    if source_around is not None and process is not None:
        around = source_around(process, place.file, place.line)
    if around is not None:
        around = [(number, line) for number, line in around if abs(number - place.line) <= LINES_AROUND]
    recorded = place.text.strip() if place.text else None
    return {"words": text.place_text(place), "line": place.line, "recorded": recorded, "around": around or None}


def _setting(fix: Fix) -> Edit | None:
    """The change of a setting as a diff, where no line of source is known that sets it; None without its old value."""
    setting = fix.setting
    if setting is None or setting.current is None:
        return None
    return Edit(0, f"{setting.name}={setting.current}", f"{setting.name}={setting.to}")


def _rank_table(ranks: Ranks) -> dict[str, Any]:
    """The table that compares the ranks, with the columns that have a measured figure.

    A cell is a figure in words, and how far above the least of its column it lies, as a share (0..1) of a step; 0 for
    figures that are no time.
    """
    longest = max((rank.p50 or 0.0 for rank in ranks.ranks), default=0.0)
    columns: list[tuple[str, list[tuple[str, float]]]] = []
    for heading, field, words in RANK_COLUMNS:
        values = [_figure(rank, field) for rank in ranks.ranks]
        known = [value for value in values if value is not None]
        scale = 1.0 / longest if words is duration and longest > 0 else 0.0
        if known:
            cells = [(words(value), 0.0 if value is None else (value - min(known)) * scale) for value in values]
            columns.append((heading, cells))
    names = [f"rank {rank.rank}" if rank.rank is not None else f"pid {rank.pid}" for rank in ranks.ranks]
    rows = [(name, [cells[number] for _, cells in columns]) for number, name in enumerate(names)]
    return {"headings": [heading for heading, _ in columns], "rows": rows}


def _figure(rank: RankView, field: str) -> float | None:
    """A figure of the rank or of its phases."""
    of = rank if field in rank.__struct_fields__ else rank.phases
    return getattr(of, field, None)
