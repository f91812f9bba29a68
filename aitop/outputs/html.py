"""The report as one HTML file that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from html import escape

from aitop.diagnosis.catalogue import Block, page
from aitop.model.phases import MEASURED
from aitop.model.text import printable
from aitop.model.units import percent
from aitop.model.verdict import Verdict
from aitop.outputs.ledger_table import Table, tables
from aitop.outputs.report import Report
from aitop.outputs.text import (
    PHASE_NAMES,
    abstentions,
    costs,
    fix_text,
    gaps,
    losses,
    measured_phases,
    no_verdict,
    place_text,
    serving_figures,
    serving_state,
    serving_times,
    step_figures,
)

_HUES = {
    "data_wait": "#d9822b",
    "transfer": "#b8a036",
    "forward": "#3f8fd2",
    "backward": "#7a6fd0",
    "optimizer": "#3aa17e",
    "communication": "#c0599f",
    "outside": "#8a929c",
}
_HUES |= {phase.key: _HUES[phase.hue] for phase in MEASURED if phase.hue in _HUES}

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8883; --loss: #d64545; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font: 600 1.1rem ui-monospace, monospace; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
section { border: 1px solid var(--line); border-radius: .5rem; padding: .7rem 1rem; margin: 1rem 0; }
section.critical { border-left: .35rem solid var(--loss); }
section.warning { border-left: .35rem solid #d9822b; }
section.info { border-left: .35rem solid #3aa17e; }
section h2 { margin: 0; }
code, pre { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
pre { background: var(--soft); padding: .3rem .6rem; margin: .2rem 0; border-radius: .3rem; }
details { margin-top: .8rem; border-top: 1px solid var(--soft); padding-top: .5rem; }
summary { cursor: pointer; } h3 { font-size: .95rem; margin: .9rem 0 .2rem; } details p { margin: .3rem 0; }
table { border-collapse: collapse; width: 100%; } td { padding: .15rem .8rem .15rem 0; vertical-align: top; }
td:first-child { text-align: right; white-space: nowrap; } tr + tr td { border-top: 1px solid var(--soft); }
.soft { opacity: .75; } ul { padding-left: 1.2rem; margin: .3rem 0; }
.bar { display: flex; height: 1.4rem; border-radius: .3rem; overflow: hidden; background: var(--soft); }
.bar i { display: block; } .key i { display: inline-block; width: .8em; height: .8em; border-radius: .2em; }
.key span { margin-right: 1.2em; white-space: nowrap; }
"""


def to_html(report: Report) -> str:
    """The whole report as a page."""
    target = report.target
    facts = [f"pid {target.pid}", target.engine or "", target.kind, f"{report.window_s:.0f} s watched"]
    facts = [fact for fact in facts if fact] + step_figures(report)
    body = [
        f"<h1>{_safe(target.command)}</h1>",
        f'<p class="soft">{_safe(" · ".join(facts))}</p>',
        f"<p>{_safe(target.ended)}</p>" if target.ended else "",
        *(
            [_finding(report, verdict) for verdict in report.verdicts]
            or [f"<section>No verdict: {_safe(no_verdict(report))}</section>"]
        ),
        *map(_table, tables(report)),
        _serving(report),
        _phases(report),
        _list("Not measured", gaps(report)),
        _list("Could not be judged", abstentions(report)),
        f'<p class="soft">{_safe(costs(report))}</p>' if costs(report) else "",
        f'<p class="soft">aitop {_safe(report.aitop)}</p>',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>aitop: {_safe(target.command)[:120]}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _finding(report: Report, verdict: Verdict) -> str:
    name = verdict.id + (f" · {verdict.subtype}" if verdict.subtype else "")
    places = "".join(
        f"<li><code>{_safe(place_text(place))}</code>"
        + (f"<pre>{_safe(place.text)}</pre>" if place.text else "")
        + "</li>"
        for place in verdict.where
    )
    parts = [
        f"<h2>{_safe(name)}</h2>",
        f'<p class="soft">{_safe(" · ".join(losses(report, verdict)))}</p>',
        f"<p>{_safe(verdict.title)}</p>",
        f"<ul>{places}</ul>" if places else "",
        _list("Why", verdict.evidence),
        _list("What to change", [fix_text(fix) for fix in verdict.fixes]),
        _explanation(verdict.id),
    ]
    return f'<section class="{_safe(verdict.severity)}">{"".join(parts)}</section>'


def _explanation(verdict: str) -> str:
    """The page of the catalogue, folded up; nothing where there is none."""
    about = page(verdict)
    if about is None:
        return ""
    parts = "".join(f"<h3>{title}</h3>{''.join(map(_block, blocks))}" for title, blocks in about.parts)
    return f"<details><summary>About {about.id}: {_safe(about.summary)}</summary>{parts}</details>"


def _block(block: Block) -> str:
    if block.kind == "code":
        return f"<pre>{escape(block.text)}</pre>"
    return f"<ul><li>{_safe(block.text)}</li></ul>" if block.kind == "item" else f"<p>{_safe(block.text)}</p>"


def _table(table: Table) -> str:
    """The heaviest entries of a ledger; a source line stands below its place."""
    rows = "".join(
        f"<tr><td>{percent(row.share)}</td><td>{_safe(row.phase)}</td><td>{_safe(row.activity)}</td>"
        "<td>"
        + (f"<code>{_safe(row.place)}</code>" if row.place else "")
        + (f'<br><code class="soft">{_safe(row.source)}</code>' if row.source else "")
        + "</td></tr>"
        for row in table.rows
    )
    rest = f'<p class="soft">{_safe(table.rest)}</p>' if table.rest else ""
    return f"<h2>{_safe(table.title)}</h2><table>{rows}</table>{rest}"


def _serving(report: Report) -> str:
    figures, times, state = serving_figures(report), serving_times(report), serving_state(report)
    if report.serving is None or not (figures or times or state):
        return ""
    rows = "".join(
        f"<tr><td>{name}</td>{''.join(f'<td>{_safe(value)}</td>' for value in values)}</tr>" for name, values in times
    )
    head = "<tr><td></td><td>p50</td><td>p95</td><td>p99</td></tr>" if rows else ""
    words = " · ".join([*figures, *([state] if state else []), f"from {report.serving.basis}"])
    return f"<h2>What is served</h2><p>{_safe(words)}</p>" + (f"<table>{head}{rows}</table>" if rows else "")


def _phases(report: Report) -> str:
    phases = measured_phases(report)
    if not phases:
        return ""
    hues = {key: _HUES.get(key, _HUES["outside"]) for key, _ in phases}
    bar = "".join(f'<i style="width:{share * 100:.1f}%;background:{hues[key]}"></i>' for key, share in phases)
    legend = "".join(
        f'<span><i style="background:{hues[key]}"></i> {PHASE_NAMES.get(key, key)} {percent(share)}</span>'
        for key, share in phases
    )
    return f'<h2>Where a step goes</h2><div class="bar">{bar}</div><p class="key">{legend}</p>'


def _list(title: str, lines: list[str] | tuple[str, ...]) -> str:
    items = "".join(f"<li>{_safe(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>" if items else ""


def _safe(text: str) -> str:
    return escape(printable(text))
