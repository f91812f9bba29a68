"""Tables of the bench of verdicts, and what they add up to."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "accuracy"))

from expectation import Row
from expected import BY_NAME

Gains = dict[str, tuple[float, float]]

FAR_OFF = 0.4
LOW_CONFIDENCE = 0.5
RIGHT_BARS = {3: 0.95, 2: 0.9}
LINE_BAR, ERROR_BAR, RANGE_BAR, SECONDS_BAR = 0.9, 0.15, 0.8, 5.0
SAME_FACTOR = 0.02


@dataclass(frozen=True)
class Bar:
    """A figure of the bench in words, and whether it is good enough; None where nothing is asked of it."""

    text: str
    reached: bool | None = None


def actual(row: Row, gains: Gains) -> float | None:
    """The measured factor of the row's fix; a mended run has none left."""
    return gains[row.name][1] / gains[row.name][0] if row.name in gains and not row.mended else None


def error(row: Row, gains: Gains) -> float | None:
    """Predicted against actual, relative; None where one of them is not known."""
    gained = actual(row, gains)
    return None if gained is None or row.predicted is None else row.predicted / gained - 1


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


def show_rows(rows: Sequence[Row], gains: Gains) -> None:
    """One line for each scenario and tier."""
    codes = {row.code for row in rows}
    print(
        f"\n{'scenario':<22}{'tier':<5}{'expected':<31}{'said':<25}{'ok':<4}{'line':<5}{'after':>7}{'share':>7}"
        f"{'sure':>6}{'gone':>8}{'range':>12}{'predicted':>10}{'actual':>9}{'error':>8}  notes"
    )
    for row in rows:
        notes = [*_notes(row, gains), *([row.code] if len(codes) > 1 and row.code else [])]
        print(
            f"{row.name:<22}{row.tier:<5}{row.expected:<31}{row.said:<25}{_mark(row.right):<4}"
            f"{_mark(row.right_line):<5}{_seconds(row.seconds):>7}{_share(row.share):>7}{_share(row.confidence):>6}"
            f"{_times(row.if_gone):>8}{_bounds(row.gone_range):>12}{_times(row.predicted):>10}"
            f"{_times(actual(row, gains)):>9}{_share(error(row, gains)):>8}  " + "; ".join(notes)
        )


def _notes(row: Row, gains: Gains) -> list[str]:
    notes = ["mended"] if row.mended else []
    if row.right_line is not None:
        notes.append(row.where or "")
    if row.alarms:
        notes.append("UNTRUE WARNING " + ", ".join(row.alarms))
    wrong = error(row, gains)
    if wrong is not None and abs(wrong) > FAR_OFF:
        notes.append("far off, said with low confidence" if unsure(row) else "FAR OFF and sure of it")
    if in_range(row, gains) is False:
        notes.append("OUT OF RANGE")
    if row.recommended is False and row.name in gains:
        notes.append("recommends something else first")
    notes.append(row.note)
    return [note for note in notes if note]


def unsure(row: Row) -> bool:
    """Whether the verdict was given with low confidence."""
    return row.confidence is not None and row.confidence <= LOW_CONFIDENCE


def show_gains(gains: Gains) -> None:
    """What the fixes give."""
    print(f"\n{'scenario':<22}{'plain steps/s':>15}{'fixed steps/s':>15}{'gain':>8}")
    for name, (plain, fixed) in gains.items():
        print(f"{name:<22}{plain:>15.2f}{fixed:>15.2f}{fixed / plain:>7.2f}×")


def show_bars(rows: Sequence[Row], gains: Gains) -> bool:
    """Accuracy, untrue warnings, predictions and times at each tier; whether all are as they have to be."""
    reached = True
    for tier in sorted({row.tier for row in rows}, reverse=True):
        print()
        for bar in bars(tier, [row for row in rows if row.tier == tier], gains):
            missed = bar.reached is False
            print(f"tier {tier}: {bar.text}{'  MISSED' if missed else ''}")
            reached = reached and not missed
    return reached


def bars(tier: int, rows: Sequence[Row], gains: Gains) -> Iterator[Bar]:
    """All figures of one tier. Of host and device alone nothing is asked but that they do not mislead."""
    plain = [row for row in rows if not row.mended]
    faulty = [row for row in plain if not BY_NAME[row.name].healthy()]
    yield _at_least("first verdict right", [row.right for row in plain], RIGHT_BARS.get(tier))
    groups = {
        "healthy": [row for row in plain if BY_NAME[row.name].healthy()],
        "mended": [row for row in rows if row.mended],
        "faulty": faulty,
    }
    for name, group in groups.items():
        warned = [row.name for row in group if row.alarms]
        text = f"{name} runs with an untrue warning {len(warned)}/{len(group)} (to reach: 0) {' '.join(warned)}"
        if group:
            yield Bar(text.rstrip(), not warned)
    if tier == 1:
        return
    yield _at_least("line right", [row.right_line for row in plain if row.right_line is not None], LINE_BAR)
    yield from _predictions(faulty, gains)
    times = [row.seconds for row in faulty if row.right and row.seconds is not None]
    if times:
        median = statistics.median(times)
        text = f"right verdict after {median:.1f} s median, slowest {max(times):.1f} s (median ≤ {SECONDS_BAR} s)"
        yield Bar(text, median <= SECONDS_BAR)


def _predictions(rows: Sequence[Row], gains: Gains) -> Iterator[Bar]:
    known = [(row, abs(wrong)) for row in rows if (wrong := error(row, gains)) is not None]
    if not known:
        return
    median = statistics.median(wrong for _, wrong in known)
    text = f"predicted speedup off by {median:.0%} median of {len(known)} (to reach: ≤ {ERROR_BAR:.0%})"
    yield Bar(text, median <= ERROR_BAR)
    far = [row.name for row, wrong in known if wrong > FAR_OFF and not unsure(row)]
    doubted = sum(wrong > FAR_OFF and unsure(row) for row, wrong in known)
    yield Bar(f"off by more than {FAR_OFF:.0%} and sure of it: {len(far)} {' '.join(far)}, doubted {doubted}")
    first = [bool(row.recommended) for row, _ in known if row.recommended is not None]
    yield Bar(f"what the fix does is recommended first {_of(first)}")
    within = [inside for row in rows if (inside := in_range(row, gains)) is not None]
    if within:
        yield _at_least("measured gain within the range", within, RANGE_BAR)


def _at_least(what: str, marks: Sequence[bool], least: float | None) -> Bar:
    text = f"{what} {_of(marks)}"
    if least is None or not marks:
        return Bar(text)
    return Bar(f"{text} (to reach: {least:.0%})", sum(marks) >= least * len(marks))


def _bounds(bounds: tuple[float, float] | None) -> str:
    return "–" if bounds is None else f"{bounds[0]:.2f}–{bounds[1]:.2f}"


def _of(marks: Sequence[bool]) -> str:
    return f"{sum(marks)}/{len(marks)}" + (f" = {sum(marks) / len(marks):.0%}" if marks else "")


def _mark(good: bool | None) -> str:
    return "–" if good is None else "yes" if good else "NO"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _times(factor: float | None) -> str:
    return "–" if factor is None else f"{factor:.2f}×"


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"
