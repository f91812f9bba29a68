"""The comparison of two runs: what `compare --format json` writes (schema 1), and the same as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from aitop import __version__
from aitop.model.run import Change, Outcome, Run, RunComparison, Scalar, SettingChange, Share, Side
from aitop.model.text import printable
from aitop.model.units import duration
from aitop.model.verdict import Verdict, Where
from aitop.outputs.ledger_table import UNITS
from aitop.outputs.report import SCHEMA, ReportPlace, as_json

LINES_SHOWN = 8
# Smaller parts of a unit are not worth a line of text.
LEAST_SHOWN = 0.01
REST = {"phase": "other phases", "cause": "no verdict", "line": "other lines"}


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs. `units` of it were compared, `warm_up` left out; `mean_ms` is at the load of the first."""

    file: str
    basis: str
    command: str
    kind: str
    unit: str | None
    units: int
    warm_up: int
    watched_s: float
    mean_ms: float | None
    mean_range_ms: tuple[float, float] | None


class ComparedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into a unit on average, where that moved: units are compared at that of the run before."""

    unit: str
    before: float
    after: float


class ComparedChange(msgspec.Struct, frozen=True, kw_only=True):
    """`ratio` is throughput after by throughput before, `range` its 95 % interval."""

    ratio: float | None
    range: tuple[float, float] | None
    verdict: Outcome
    at_equal_load: bool | None
    load: ComparedLoad | None
    reason: str | None
    record_s: float | None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a unit and by how much longer it takes. One of the names is set; all are null for the rest."""

    phase: str | msgspec.UnsetType | None = msgspec.UNSET
    id: str | msgspec.UnsetType | None = msgspec.UNSET
    where: ReportPlace | msgspec.UnsetType | None = msgspec.UNSET
    before_ms: float
    after_ms: float
    delta_ms: float
    range: tuple[float, float] | None


class ComparedVerdicts(msgspec.Struct, frozen=True, kw_only=True):
    """Those of the first run alone, of the second alone, and of both (as the second has them)."""

    gone: tuple[Verdict, ...]
    new: tuple[Verdict, ...]
    kept: tuple[Verdict, ...]


class ComparisonReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a comparison says, in the order in which it is written."""

    schema: int
    aitop: str
    before: ComparedRun
    after: ComparedRun
    change: ComparedChange
    phases: tuple[Part, ...]
    causes: tuple[Part, ...]
    lines: tuple[Part, ...]
    settings: tuple[SettingChange, ...]
    verdicts: ComparedVerdicts


def comparison_json(before: Run, after: Run, compared: RunComparison) -> str:
    """The contract's JSON, with a newline at the end."""
    change = compared.change
    load = change.load
    return as_json(
        ComparisonReport(
            schema=SCHEMA,
            aitop=__version__,
            before=_run(before, compared.before),
            after=_run(after, compared.after),
            change=ComparedChange(
                ratio=change.ratio,
                range=_pair(change.low, change.high, 1.0),
                verdict=change.outcome,
                at_equal_load=change.equal_load,
                load=None if load is None else ComparedLoad(unit=load.unit, before=load.before, after=load.after),
                reason=change.reason,
                record_s=change.record_seconds,
            ),
            phases=tuple(_part(share, phase=share.name) for share in compared.phases),
            causes=tuple(_part(share, id=share.name) for share in compared.causes),
            lines=tuple(_part(share, where=_place(share.where), phase=share.name) for share in compared.lines),
            settings=compared.settings,
            verdicts=ComparedVerdicts(gone=compared.gone, new=compared.new, kept=compared.kept),
        )
    )


def comparison_text(before: Run, after: Run, compared: RunComparison) -> str:
    """The same for people. Text of the targets is stripped of control characters."""
    unit = UNITS.get(after.unit or "second", "a unit").split(" ", 1)[1]
    parts = [
        _headline(compared.change, unit),
        [_side("before", before, compared.before, unit), _side("after", after, compared.after, unit)],
        _table("phase", compared.phases, unit),
        _table("cause", compared.causes, unit),
        _table("line", compared.lines, unit),
        _verdicts(compared),
        _settings(compared.settings),
    ]
    return "\n\n".join("\n".join(map(printable, lines)) for lines in parts if lines) + "\n"


def _headline(change: Change, unit: str) -> list[str]:
    lines = [f"{change.outcome.upper().replace('-', ' ')}{_ratio(change)}"]
    if change.reason:
        lines.append(f"  {change.reason}")
    if change.record_seconds is not None:
        lines.append(f"  Record both runs for {duration(change.record_seconds)}.")
    if change.load is not None:
        load = change.load
        lines.append(
            f"  A {unit} had {load.after:.4g} {load.unit}s instead of {load.before:.4g}: "
            f"times are those of {load.before:.4g} {load.unit}s."
        )
    return lines


def _ratio(change: Change) -> str:
    if change.ratio is None:
        return ""
    bounds = _pair(change.low, change.high, 1.0)
    return f"  {change.ratio:.2f}× the throughput" + (f" (95 %: {bounds[0]:.2f}–{bounds[1]:.2f})" if bounds else "")


def _side(name: str, run: Run, side: Side, unit: str) -> str:
    facts = [f"{side.count:,} {unit}s"] if side.count else []
    bounds = _pair(side.low, side.high, 1.0)
    if side.mean is not None:
        spread = f" ({duration(bounds[0])}–{duration(bounds[1])})" if bounds else ""
        facts.append(f"{duration(side.mean)} each{spread}")
    facts += [f"{side.warm_up:,} left out as warm-up"] if side.warm_up else []
    return f"  {name:<7} {run.file}: {', '.join(facts) or 'no unit was timed'}"


def _table(title: str, shares: Sequence[Share], unit: str) -> list[str]:
    """What takes longer or shorter, the largest change first, and all the others in one row."""
    if not shares:
        return []
    whole = max(sum(share.before for share in shares), sum(share.after for share in shares))
    shown = [share for share in shares if share.name or share.where]
    shown = [share for share in shown if max(share.before, share.after) >= LEAST_SHOWN * whole][:LINES_SHOWN]
    rest = [share for share in shares if share not in shown]
    lines = [f"{f'Change by {title}':<44}{'before':>9}{'after':>9}{'change':>10}"]
    lines += [_row(_label(title, share), share.before, share.after) for share in shown]
    if any(share.before or share.after for share in rest):
        lines.append(_row(REST[title], sum(share.before for share in rest), sum(share.after for share in rest)))
    total = _row(f"a {unit}", sum(share.before for share in shares), sum(share.after for share in shares))
    return [*lines, total]


def _row(label: str, before: float, after: float) -> str:
    label = printable(label)
    label = label if len(label) <= 40 else f"{label[:39]}…"
    delta = after - before
    change = f"{'+' if delta > 0 else '−' if delta < 0 else ''}{duration(abs(delta))}"
    return f"  {label:<42}{_time(before):>9}{_time(after):>9}{change:>10}"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds > 0 else "0"


def _label(title: str, share: Share) -> str:
    where = share.where
    if where is None:
        return f"{share.name} (no line)" if share.name and title == "line" else share.name or "other"
    return f"{where.file.rsplit('/', 1)[-1]}:{where.line} {where.function}"


def _verdicts(compared: RunComparison) -> list[str]:
    named = {"gone": compared.gone, "new": compared.new, "kept": compared.kept}
    return [f"  {name:<7} {_verdict(verdict)}" for name, verdicts in named.items() for verdict in verdicts]


def _verdict(verdict: Verdict) -> str:
    subtype = f" · {verdict.subtype}" if verdict.subtype else ""
    place = verdict.where[0] if verdict.where else None
    at = f"  {place.file.rsplit('/', 1)[-1]}:{place.line}" if place is not None else ""
    return f"{verdict.id}{subtype} [{verdict.severity}]{at}"


def _settings(settings: Sequence[SettingChange]) -> list[str]:
    if not settings:
        return []
    lines = [f"  {one.name}: {_value(one.before)} → {_value(one.after)}" for one in settings]
    return ["Settings that differ", *lines]


def _value(value: Scalar) -> str:
    return "–" if value is None else str(value)


def _run(run: Run, side: Side) -> ComparedRun:
    return ComparedRun(
        file=run.file,
        basis=run.basis,
        command=run.command,
        kind=run.kind,
        unit=run.unit,
        units=side.count,
        warm_up=side.warm_up,
        watched_s=run.watched,
        mean_ms=None if side.mean is None else side.mean * 1e3,
        mean_range_ms=_pair(side.low, side.high, 1e3),
    )


def _part(share: Share, **names: Any) -> Part:
    return Part(
        **names,
        before_ms=share.before * 1e3,
        after_ms=share.after * 1e3,
        delta_ms=share.delta * 1e3,
        range=_pair(share.low, share.high, 1e3),
    )


def _pair(low: float | None, high: float | None, times: float) -> tuple[float, float] | None:
    return None if low is None or high is None else (low * times, high * times)


def _place(where: Where | None) -> ReportPlace | None:
    if where is None:
        return None
    return ReportPlace(pid=where.pid, file=where.file, line=where.line, function=where.function, text=where.text)
