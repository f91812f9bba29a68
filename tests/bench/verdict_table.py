"""Tables of the bench of verdicts, and what they add up to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from expected import BY_NAME
from verdict_watch import Row

Gains = dict[str, tuple[float, float]]

FAR_OFF = 0.4
LOW_CONFIDENCE = 0.5
BARS = {3: 0.95, 2: 0.85}
LINE_BAR, ERROR_BAR, SECONDS_BAR = 0.9, 0.15, 5.0


def actual(row: Row, gains: Gains) -> float | None:
    """The measured factor of the row's fix."""
    return gains[row.name][1] / gains[row.name][0] if row.name in gains else None


def error(row: Row, gains: Gains) -> float | None:
    """Predicted against actual, relative; None where one of them is not known."""
    gained = actual(row, gains)
    return None if gained is None or row.predicted is None else row.predicted / gained - 1


def show_rows(rows: Sequence[Row], gains: Gains) -> None:
    """One line for each scenario and tier."""
    codes = {row.code for row in rows}
    print(
        f"\n{'scenario':<22}{'tier':<5}{'expected':<31}{'said':<25}{'ok':<4}{'line':<5}{'after':>7}{'share':>7}"
        f"{'sure':>6}{'gone':>8}{'predicted':>10}{'actual':>9}{'error':>8}  notes"
    )
    for row in rows:
        wrong = error(row, gains) if row.right else None
        print(
            f"{row.name:<22}{row.tier:<5}{row.expected:<31}{row.said:<25}{_mark(row.right):<4}"
            f"{_mark(row.right_line):<5}{_seconds(row.seconds):>7}{_share(row.share):>7}{_share(row.confidence):>6}"
            f"{_times(row.if_gone):>8}{_times(row.predicted):>10}{_times(actual(row, gains)):>9}{_share(wrong):>8}  "
            + "; ".join([*_notes(row, wrong), *([row.code] if len(codes) > 1 and row.code else [])])
        )


def _notes(row: Row, wrong: float | None) -> list[str]:
    notes = [row.where or ""] if row.right_line is not None else []
    if row.alarms:
        notes.append("FALSE ALARM " + ", ".join(row.alarms))
    if wrong is not None and abs(wrong) > FAR_OFF:
        notes.append("far off, said with low confidence" if unsure(row) else "FAR OFF and sure of it")
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


def summarize(rows: Sequence[Row], gains: Gains) -> None:
    """Accuracy, false alarms, predictions and times at each tier, against what they have to be."""
    print()
    for tier in sorted({row.tier for row in rows}, reverse=True):
        _summarize_tier(tier, [row for row in rows if row.tier == tier], gains)


def _summarize_tier(tier: int, rows: Sequence[Row], gains: Gains) -> None:
    healthy = [row for row in rows if BY_NAME[row.name].healthy()]
    faulty = [row for row in rows if not BY_NAME[row.name].healthy()]
    lines = [row.right_line for row in rows if row.right_line is not None]
    bar = f" (to reach: {BARS[tier]:.0%})" if tier in BARS else ""
    print(f"tier {tier}: primary verdict right {_of([row.right for row in rows])}{bar}")
    print(
        f"        healthy runs with a warning {sum(bool(row.alarms) for row in healthy)}/{len(healthy)} (to reach: 0)"
    )
    print(
        f"        faulty runs with a warning that is not true {sum(bool(row.alarms) for row in faulty)}/{len(faulty)}"
    )
    if tier > 1:
        print(f"        guilty line right {_of(lines)} (to reach: {LINE_BAR:.0%})")
        _summarize_predictions(faulty, gains)
        times = [row.seconds for row in faulty if row.right and row.seconds is not None]
        if times:
            slowest = f"slowest {max(times):.1f} s"
            print(f"        right verdict after {statistics.median(times):.1f} s median, {slowest} (≤ {SECONDS_BAR} s)")


def _summarize_predictions(rows: Sequence[Row], gains: Gains) -> None:
    known = [(row, abs(wrong)) for row in rows if row.right and (wrong := error(row, gains)) is not None]
    if not known:
        return
    median = statistics.median(wrong for _, wrong in known)
    far = [row.name for row, wrong in known if wrong > FAR_OFF and not unsure(row)]
    doubted = sum(wrong > FAR_OFF and unsure(row) for row, wrong in known)
    print(f"        predicted speed-up off by {median:.0%} median of {len(known)} (to reach: ≤ {ERROR_BAR:.0%})")
    print(f"        off by more than {FAR_OFF:.0%}: {len(far)} {' '.join(far)} (to reach: 0), doubted {doubted}")


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
