"""The comparison of two runs in words for people: as a sentence, and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aitop.diagnosis.evidence import short_place
from aitop.model.ledger import Unit
from aitop.model.run import CausePart, Change, Difference, LinePart, PhasePart, RunComparison, Scalar, Side
from aitop.model.text import printable
from aitop.model.units import duration
from aitop.model.verdict import Verdict

ROWS = 8
# Smaller parts of a unit are not worth a line of text.
LEAST_SHOWN = 0.01
LABEL = 42
BEYOND_CHANCE = "* changed by more than chance: its own 95 % interval leaves out zero"


def comparison_text(compared: RunComparison) -> str:
    """The comparison in some thirty lines. Text of the targets is stripped of control characters."""
    unit: Unit | str = compared.after.unit or "unit"
    tables = {title: rows(title, parts) for title, parts in parts_of(compared).items()}
    blocks = [
        headline(compared.change, unit),
        [f"  before  {side_words(compared.before)}", f"  after   {side_words(compared.after)}"],
        *(_table(title, made) for title, made in tables.items()),
        legend(tables.values()),
        [f"  {name:<7} {words}" for name, words in verdicts_of(compared)],
        ["Settings that differ", *(f"  {words}" for words in settings_of(compared))] if compared.settings else [],
    ]
    return "\n\n".join("\n".join(map(printable, lines)) for lines in blocks if lines) + "\n"


def in_a_sentence(compared: RunComparison) -> str | None:
    """The answer as in '1.42× faster than yesterday 18:02'; None where nothing can be told.

    Without a figure if the range includes 1, so that one phase alone tells it.
    """
    change, before = compared.change, compared.before.file
    if change.ratio is None or change.verdict == "cannot-tell":
        return None
    if change.verdict == "same":
        return f"as fast as {before}"
    low, high = change.range or (1.0, 1.0)
    times = "" if low <= 1 <= high else f"{max(change.ratio, 1 / change.ratio):.2f}× "
    return f"{times}{change.verdict} than {before}"


def headline(change: Change, unit: str) -> list[str]:
    """The answer, its reason, and under which load and beside which other programs it holds."""
    what = "as fast as before" if unit == "request" else "the throughput"
    ratio = "" if change.ratio is None else f"  {change.ratio:.2f}× {what}"
    between = "" if change.range is None else " (95 %: {:.2f}-{:.2f})".format(*change.range)
    lines = [f"{change.verdict.upper().replace('-', ' ')}{ratio}{between}"]
    if change.reason:
        lines.append(f"  {change.reason}")
    if change.record_s is not None:
        lines.append(f"  About {duration(change.record_s)} of each run would tell.")
    if change.load is not None:
        load = change.load
        moved = f"A {unit} holds {load.after:.4g} {load.unit}s instead of {load.before:.4g}"
        lines.append(f"  {moved}: times are those of {load.before:.4g}.")
    if change.other_cores is not None and max(change.other_cores) >= 0.25:
        before, after = change.other_cores
        lines.append(
            f"  Other programs took {after:.1f} cores instead of {before:.1f}: times are those beside {before:.1f}."
        )
    return lines


def side_words(side: Side) -> str:
    """One run in a line: its file, the number of its units, and their mean length."""
    if side.mean_ms is None:
        return f"{side.file}: no unit was timed"
    warm_up = f", {side.warm_up:,} more left out as warm-up" if side.warm_up else ""
    served = f", {side.per_s:.3g} a second" if side.per_s is not None else ""
    if side.latency_ms is not None:
        times = {"p50": side.latency_ms.p50, "p99": side.latency_ms.p99}
        served += ", lately " + ", ".join(f"{at} {duration(value / 1e3)}" for at, value in times.items())
    return f"{side.file}: {side.units:,} {side.unit}s, {duration(side.mean_ms / 1e3)} each{served}{warm_up}"


def parts_of(compared: RunComparison) -> dict[str, Sequence[Difference]]:
    """The parts of the difference: by phase, by cause and by line."""
    return {"phase": compared.phases, "cause": compared.causes, "line": compared.lines}


class Row(NamedTuple):
    """A part of a unit in words: before, after, and the difference. `grew` is None where there is no difference.

    `sure`: chance alone does not make such a difference (95 %).
    """

    label: str
    before: str
    after: str
    change: str
    grew: bool | None
    sure: bool = False


def rows(title: str, parts: Sequence[Difference]) -> list[Row]:
    """At most ROWS parts in the order given (largest change first), then one row for all others, and their sum."""
    if not parts:
        return []
    whole = max(sum(part.before_ms for part in parts), sum(part.after_ms for part in parts))
    named = [part for part in parts if not isinstance(part, CausePart) or part.id is not None]
    shown = [part for part in named if max(part.before_ms, part.after_ms) >= LEAST_SHOWN * whole][:ROWS]
    rest = [part for part in parts if part not in shown]
    made = [_row(_label(part), [part]) for part in shown]
    if any(part.before_ms or part.after_ms for part in rest):
        made.append(_row("no verdict" if title == "cause" else f"other {title}s", rest))
    return [*made, _row("together", parts)]


def _row(label: str, parts: Sequence[Difference]) -> Row:
    before, after = sum(part.before_ms for part in parts), sum(part.after_ms for part in parts)
    change = f"{'+' if after > before else '−' if after < before else ''}{_time(abs(after - before))}"
    bounds = parts[0].range if len(parts) == 1 else None
    sure = bounds is not None and (bounds[0] > 0 or bounds[1] < 0)
    return Row(label, _time(before), _time(after), change, None if after == before else after > before, sure)


def legend(tables: Iterable[Sequence[Row]]) -> list[str]:
    """What the star at a row means; empty where no row has one."""
    return [BEYOND_CHANCE] if any(row.sure for made in tables for row in made) else []


def _table(title: str, made: Sequence[Row]) -> list[str]:
    lines = [Row(f"Change by {title}", "before", "after", "change", None), *made] if made else []
    return [
        f"{_cut(row.label if row is lines[0] else f'  {row.label}'):<{LABEL + 2}}"
        f"{row.before:>9}{row.after:>9}{row.change:>10}{' *' if row.sure else ''}"
        for row in lines
    ]


def _cut(label: str) -> str:
    label = printable(label)
    return label if len(label) <= LABEL else f"{label[: LABEL - 1]}…"


def _time(milliseconds: float) -> str:
    return duration(milliseconds / 1e3) if milliseconds > 0 else "0"


def _label(part: Difference) -> str:
    if isinstance(part, LinePart) and part.where is not None:
        return f"{short_place(part.where)} {part.where.function}"
    if isinstance(part, LinePart):
        return f"{part.phase} (other lines)"
    if isinstance(part, PhasePart):
        return part.phase
    return (part.id if isinstance(part, CausePart) else None) or ""


def verdicts_of(compared: RunComparison) -> list[tuple[str, str]]:
    """Each verdict in words, after `gone`, `new` or `kept`."""
    verdicts = compared.verdicts
    named = {"gone": verdicts.gone, "new": verdicts.new, "kept": verdicts.kept}
    return [(name, _verdict(verdict)) for name, those in named.items() for verdict in those]


def settings_of(compared: RunComparison) -> list[str]:
    """The settings that differ."""
    return [f"{each.name}: {_value(each.before)} → {_value(each.after)}" for each in compared.settings]


def _verdict(verdict: Verdict) -> str:
    subtype = f" · {verdict.subtype}" if verdict.subtype else ""
    at = f"  {short_place(verdict.where[0])}" if verdict.where else ""
    return f"{verdict.id}{subtype} [{verdict.severity}]{at}"


def _value(value: Scalar) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else str(value)
