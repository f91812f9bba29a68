"""The comparison of two runs in words for people: as a sentence, and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.model.ledger import Unit
from aitop.model.run import CausePart, Change, LinePart, Part, PhasePart, RunComparison, Scalar, Side
from aitop.model.text import printable
from aitop.model.units import duration
from aitop.model.verdict import Verdict

ROWS = 8
# Smaller parts of a unit are not worth a line of text.
LEAST_SHOWN = 0.01
LABEL = 42


def comparison_text(compared: RunComparison) -> str:
    """The comparison in some thirty lines. Text of the targets is stripped of control characters."""
    unit: Unit | str = compared.after.unit or "unit"
    blocks = [
        headline(compared.change, unit),
        [_side("before", compared.before), _side("after", compared.after)],
        *(_table(title, parts) for title, parts in _parts(compared).items()),
        _verdicts(compared),
        [f"  {each.name}: {_value(each.before)} → {_value(each.after)}" for each in compared.settings],
    ]
    if compared.settings:
        blocks[-1].insert(0, "Settings that differ")
    return "\n\n".join("\n".join(map(printable, lines)) for lines in blocks if lines) + "\n"


def in_a_sentence(compared: RunComparison) -> str | None:
    """'1.42× faster than yesterday 18:02'; None where it cannot be told."""
    change, before = compared.change, compared.before.file
    if change.ratio is None or change.verdict == "cannot-tell":
        return None
    if change.verdict == "same":
        return f"as fast as {before}"
    return f"{max(change.ratio, 1 / change.ratio):.2f}× {change.verdict} than {before}"


def headline(change: Change, unit: str) -> list[str]:
    """The answer, and what limits it."""
    ratio = "" if change.ratio is None else f"  {change.ratio:.2f}× the throughput"
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


def _side(name: str, side: Side) -> str:
    if side.mean_ms is None:
        return f"  {name:<7} {side.file}: no unit was timed"
    warm_up = f", {side.warm_up:,} more left out as warm-up" if side.warm_up else ""
    return f"  {name:<7} {side.file}: {side.units:,} {side.unit}s, {duration(side.mean_ms / 1e3)} each{warm_up}"


def _parts(compared: RunComparison) -> dict[str, Sequence[Part]]:
    return {"phase": compared.phases, "cause": compared.causes, "line": compared.lines}


def _table(title: str, parts: Sequence[Part]) -> list[str]:
    """What takes longer or shorter, the largest change first, all the others in one row, and their sum."""
    if not parts:
        return []
    whole = max(sum(part.before_ms for part in parts), sum(part.after_ms for part in parts))
    named = [part for part in parts if not isinstance(part, CausePart) or part.id is not None]
    shown = [part for part in named if max(part.before_ms, part.after_ms) >= LEAST_SHOWN * whole][:ROWS]
    rest = [part for part in parts if part not in shown]
    lines = [f"{f'Change by {title}':<{LABEL + 2}}{'before':>9}{'after':>9}{'change':>10}"]
    lines += [_row(_label(part), [part]) for part in shown]
    if rest:
        lines.append(_row("no verdict" if title == "cause" else f"other {title}s", rest))
    return [*lines, _row("together", parts)]


def _row(label: str, parts: Sequence[Part]) -> str:
    label = printable(label)
    label = label if len(label) < LABEL - 1 else f"{label[: LABEL - 3]}…"
    before, after = sum(part.before_ms for part in parts), sum(part.after_ms for part in parts)
    change = f"{'+' if after > before else '−' if after < before else ''}{_time(abs(after - before))}"
    return f"  {label:<{LABEL}}{_time(before):>9}{_time(after):>9}{change:>10}"


def _time(milliseconds: float) -> str:
    return duration(milliseconds / 1e3) if milliseconds > 0 else "0"


def _label(part: Part) -> str:
    if isinstance(part, CausePart):
        return part.id or ""
    if isinstance(part, LinePart) and part.where is not None:
        return f"{part.where.file.rsplit('/', 1)[-1]}:{part.where.line} {part.where.function}"
    phase = part.phase if isinstance(part, (PhasePart, LinePart)) else ""
    return f"{phase} (other lines)" if isinstance(part, LinePart) else phase


def _verdicts(compared: RunComparison) -> list[str]:
    verdicts = compared.verdicts
    named = {"gone": verdicts.gone, "new": verdicts.new, "kept": verdicts.kept}
    return [f"  {name:<7} {_verdict(verdict)}" for name, those in named.items() for verdict in those]


def _verdict(verdict: Verdict) -> str:
    subtype = f" · {verdict.subtype}" if verdict.subtype else ""
    place = verdict.where[0] if verdict.where else None
    at = f"  {place.file.rsplit('/', 1)[-1]}:{place.line}" if place is not None else ""
    return f"{verdict.id}{subtype} [{verdict.severity}]{at}"


def _value(value: Scalar) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "–" if value is None else str(value)
