"""The rows of the live bench as a table, and what they add up to."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from expectation import Row
from expected import BY_NAME, HEALTHY
from results import Figure

# Steps per second as it is and mended, by scenario.
Gains = dict[str, tuple[float, float]]

FAR_OFF, LOW_CONFIDENCE = 0.4, 0.5
RIGHT_BARS = {3: 0.95, 2: 0.9}
LINE_BAR, ERROR_BAR, RANGE_BAR, SECONDS_BAR = 0.9, 0.15, 0.8, 5.0
SAME_FACTOR = 0.02


def actual(row: Row, gains: Gains) -> float | None:
    """The measured factor of the row's fix; a mended run has none left."""
    return gains[row.name][1] / gains[row.name][0] if row.name in gains and not row.mended else None


def error(row: Row, gains: Gains) -> float | None:
    """Predicted against actual, relative; None where one of them is not known.

    Who sees nothing, or nothing to gain, predicts a factor of 1.
    """
    gained = actual(row, gains)
    predicted = 1.0 if row.said in ("nothing", HEALTHY) else row.predicted
    return None if gained is None or predicted is None else predicted / gained - 1


def in_range(row: Row, gains: Gains) -> bool | None:
    """Whether the measured gain lies within the bounds of the prediction.

    None where no bounds are given, or where they are of something else than what `--fixed` does.
    """
    gained = actual(row, gains)
    if gained is None or row.gone_range is None or row.predicted is None or not row.if_gone:
        return None
    if abs(row.predicted / row.if_gone - 1) > SAME_FACTOR:
        return None
    low, high = row.gone_range
    return low <= gained <= high


def rows_in_markdown(rows: Sequence[Row], gains: Gains) -> str:
    """A line for each scenario and tier."""
    head = ("scenario", "tier", "expected", "said", "right", "line", "after", "share", "sure", "predicted", "range")
    lines = ["| " + " | ".join((*head, "actual", "error", "notes")) + " |", "|---" * (len(head) + 3) + "|"]
    for row in rows:
        bounds = row.gone_range and f"{row.gone_range[0]:.2f}–{row.gone_range[1]:.2f}"
        cells = (
            row.name + (", mended" if row.mended else ""), str(row.tier), row.expected.replace("|", " or "), row.said,
            _mark(row.right), _mark(row.right_line), _number(row.seconds, ".1f"), _number(row.share, ".0%"),
            _number(row.confidence, ".2f"), _number(row.predicted, ".2f"), bounds or "–",
            _number(actual(row, gains), ".2f"), _number(error(row, gains), ".0%"), "; ".join(_notes(row, gains)),
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _notes(row: Row, gains: Gains) -> list[str]:
    notes = [row.where or ""] if row.right_line is not None else []
    notes += [f"UNTRUE WARNING {', '.join(row.alarms)}"] if row.alarms else []
    notes += ["out of range"] if in_range(row, gains) is False else []
    notes += ["recommends something else first"] if row.recommended is False and row.name in gains else []
    return [note for note in (*notes, row.note.replace("\n", " ").replace("|", "/")) if note]


def figures(rows: Sequence[Row], gains: Gains | None) -> Iterator[Figure]:
    """Accuracy, untrue warnings, times and, unless `gains` is None, predictions at each tier, with their bars."""
    for tier in sorted({row.tier for row in rows}, reverse=True):
        yield from _of_tier(tier, [row for row in rows if row.tier == tier], gains)


def _of_tier(tier: int, rows: Sequence[Row], gains: Gains | None) -> Iterator[Figure]:
    """Of host and device alone nothing is asked but that they do not mislead."""
    plain = [row for row in rows if not row.mended]
    faulty = [row for row in plain if not BY_NAME[row.name].healthy()]
    if plain:
        yield _share(f"tier {tier}: first verdict right", [row.right for row in plain], RIGHT_BARS.get(tier))
    groups = {
        "healthy": [row for row in plain if BY_NAME[row.name].healthy()],
        "mended": [row for row in rows if row.mended],
        "faulty": faulty,
    }
    for name, group in groups.items():
        warned = [row.name for row in group if row.alarms]
        if group:
            of = f"of {len(group)}{': ' * bool(warned)}{' '.join(warned)}"
            yield Figure(f"tier {tier}: {name} runs with an untrue warning", len(warned), most=0, spread=of)
    if tier == 1:
        return
    marks = [row.right_line for row in plain if row.right_line is not None]
    if marks:
        yield _share(f"tier {tier}: line right", marks, LINE_BAR)
    if gains is not None and any(BY_NAME[row.name].fixed for row in faulty):
        known = [(row, abs(wrong)) for row in faulty if (wrong := error(row, gains)) is not None]
        far = [row.name for row, wrong in known if wrong > FAR_OFF and (row.confidence or 1.0) > LOW_CONFIDENCE]
        spread = f"of {len(known)}; off by more than {FAR_OFF:.0%} and sure of it: {len(far)} {' '.join(far)}".rstrip()
        median, most = statistics.median(wrong for _, wrong in known) * 100 if known else None, ERROR_BAR * 100
        yield Figure(f"tier {tier}: error of a predicted gain, median", median, "%", most=most, spread=spread)
        first = [bool(row.recommended) for row, _ in known if row.recommended is not None]
        yield _share(f"tier {tier}: what the fix does is recommended first", first, None)
        within = [inside for row in faulty if (inside := in_range(row, gains)) is not None]
        yield _share(f"tier {tier}: measured gain within the range", within, RANGE_BAR)
    times = [row.seconds for row in faulty if row.right and row.seconds is not None]
    if faulty:
        slowest = f"slowest {max(times):.1f}" if times else ""
        yield Figure(f"tier {tier}: until the right verdict stays, median", statistics.median(times) if times else None,
                     "s", most=SECONDS_BAR, spread=slowest)  # fmt: skip


def _share(what: str, marks: Sequence[bool], least: float | None) -> Figure:
    value = sum(marks) / len(marks) * 100 if marks else None
    bar = least * 100 if least is not None else None
    return Figure(what, value, "%", least=bar, spread=f"{sum(marks)} of {len(marks)}")


def _mark(good: bool | None) -> str:
    return "–" if good is None else "yes" if good else "NO"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
