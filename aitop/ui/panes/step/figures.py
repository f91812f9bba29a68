"""Figures of a step beside its phases: how much it computes, waits for the device, talks to others, and compiles. Pure.

Each is there only where it was measured, in an order and in widths that do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aitop.model.snapshot import Snapshot, Steps
from aitop.model.steps import CallKind, CallSite, HookFacts, StepRecord
from aitop.model.units import count, duration, percent
from aitop.ui.panes.since_mark import change
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, COMMUNICATION, DIM, FAINT, TEXT
from aitop.ui.widgets.line import Line, shorten
from aitop.ui.words import base_name, flops_text, one_line, share_text, significant

LABEL = 8
GAP = "  "
LEAST_WORDS = 20


class Figure(NamedTuple):
    """The same in a line of its own, and as a piece of a line shared with others."""

    full: Line
    short: Line


class PerStep(NamedTuple):
    """Calls of one kind: how many a step makes, the seconds they take of it, and which share of it that is."""

    calls: float
    seconds: float
    share: float


def measured_figures(view: View, width: int) -> list[Figure]:
    """Every figure that was measured, in its order, with its change since the mark."""
    if view.snapshot is None:
        return []
    return [figure for make in FIGURES if (figure := make(view, view.snapshot, width)) is not None]


def figure_lines(figures: Sequence[Figure], width: int, rows: int) -> list[Line]:
    """The figures in at most `rows` lines: one each where there is room, else side by side, the rest left out."""
    if len(figures) <= rows:
        return [figure.full.fit(width) for figure in figures]
    lines: list[Line] = []
    for figure in figures:
        if lines and lines[-1].width + 3 + figure.short.width <= width:
            lines[-1].add(" · ", FAINT).join(figure.short)
        elif len(lines) < rows:
            lines.append(Line().join(figure.short))
    return lines


def speed(view: View, snapshot: Snapshot, width: int) -> Figure | None:
    """Achieved operations per second, which part of the device's peak that is, and tokens per second."""
    steps = snapshot.steps
    if steps is None or (steps.flops_per_second is None and steps.tokens_per_second is None):
        return None
    full, short = _label("speed"), Line()
    if steps.flops_per_second is not None:
        full.add(flops_text(steps.flops_per_second), BRIGHT)
        full.join(change(view, lambda one: one.steps.flops_per_second if one.steps else None))
        full.add("  MFU ", DIM).add(share_text(steps.mfu), BRIGHT)
        if steps.mfu is not None:
            full.join(change(view, lambda one: one.steps.mfu if one.steps else None, points=True))
        short.add(flops_text(steps.flops_per_second), TEXT)
        if steps.mfu is not None:
            short.add(" MFU ", DIM).add(share_text(steps.mfu), BRIGHT)
    if steps.tokens_per_second is not None:
        tokens = Line(GAP if full.width > LABEL else "").add(significant(steps.tokens_per_second, 5), TEXT)
        tokens.add(" tokens/s", DIM)
        tokens.join(change(view, lambda one: one.steps.tokens_per_second if one.steps else None))
        if full.width + tokens.width <= width:
            full.join(tokens)
        if steps.flops_per_second is None:
            short.add(significant(steps.tokens_per_second, 5), TEXT).add(" tokens/s", DIM)
    basis = snapshot.facts.flops_basis if snapshot.facts else None
    if basis and steps.flops_per_second is not None and full.width + 2 + LEAST_WORDS <= width:
        full.add(GAP).add(shorten(one_line(basis), max(0, width - full.width - 2)), FAINT)
    return Figure(full, short)


def waits(view: View, snapshot: Snapshot, width: int) -> Figure | None:
    """Calls that block until the device is done."""
    facts = snapshot.facts
    each = _waits(snapshot)
    if each is None:
        return None
    full = _calls("syncs", each).join(_share_change(view, _waits))
    return Figure(_site(full, facts, "blocking", width), Line("syncs ", DIM).join(_terse(each)))


def collectives(view: View, snapshot: Snapshot, width: int) -> Figure | None:
    """Collectives and waits for them, whichever phase they lie in; what DDP says of its own overlap."""
    facts = snapshot.facts
    each = _collectives(snapshot)
    if each is None:
        return None
    full = _calls("comms", each).join(_share_change(view, _collectives))
    ddp = facts.ddp if facts else None
    if ddp is not None and ddp.communication and ddp.overlap is not None:
        overlap = Line(GAP).add(percent(ddp.overlap / ddp.communication).rjust(5), TEXT).add(" overlapped", DIM)
        if full.width + overlap.width <= width:
            full.join(overlap)
    short = Line("comms ", COMMUNICATION.ink).join(_terse(each))
    return Figure(_site(full, facts, "collective", width), short)


def compiler(_view: View, snapshot: Snapshot, width: int) -> Figure | None:
    """torch.compile's counters, with the newest reason for compiling again."""
    facts = snapshot.facts
    if facts is None or facts.compiles is None:
        return None
    full = _label("compile").add(count(facts.compiles).rjust(5), TEXT).add(" graphs", DIM)
    short = Line("recompiles ", DIM).add(count(facts.recompiles), TEXT)
    for number, word in ((facts.recompiles, " again"), (facts.graph_breaks, " breaks")):
        if number is not None:
            full.add(GAP).add(count(number).rjust(4), BRIGHT if number else TEXT).add(word, DIM)
    if facts.recompile_reasons and full.width + 2 + LEAST_WORDS <= width:
        full.add(GAP).add(shorten(one_line(facts.recompile_reasons[-1]), max(0, width - full.width - 2)), FAINT)
    if facts.graph_breaks:
        short.add(" breaks ", DIM).add(count(facts.graph_breaks), TEXT)
    return Figure(full, short)


def scaler(_view: View, snapshot: Snapshot, _width: int) -> Figure | None:
    """Steps whose update a GradScaler left out."""
    skips = snapshot.facts.scaler_skips if snapshot.facts else None
    if skips is None:
        return None
    full = _label("scaler").add(count(skips).rjust(5), BRIGHT if skips else TEXT).add(" steps skipped", DIM)
    return Figure(full, Line("skipped ", DIM).add(count(skips), TEXT))


FIGURES: tuple[Callable[[View, Snapshot, int], Figure | None], ...] = (speed, waits, collectives, compiler, scaler)


def _waits(snapshot: Snapshot) -> PerStep | None:
    return per_step(snapshot.steps, lambda record: record.blockings, lambda record: record.blocking)


def _collectives(snapshot: Snapshot) -> PerStep | None:
    return per_step(snapshot.steps, lambda record: record.collectives, lambda record: record.communication)


def _share_change(view: View, each_of: Callable[[Snapshot], PerStep | None]) -> Line:
    def share_of(snapshot: Snapshot) -> float | None:
        each = each_of(snapshot)
        return None if each is None else each.share

    return change(view, share_of, points=True)


def per_step(
    steps: Steps | None, calls: Callable[[StepRecord], int | None], seconds: Callable[[StepRecord], float | None]
) -> PerStep | None:
    """The mean over the steps of which it was measured; None where there are none."""
    timed = [record for record in steps.recent if seconds(record) is not None] if steps else []
    total = sum(record.seconds for record in timed)
    if total <= 0:
        return None
    taken = sum(seconds(record) or 0.0 for record in timed)
    return PerStep(sum(calls(record) or 0 for record in timed) / len(timed), taken / len(timed), taken / total)


def dearest(calls: Sequence[CallSite], kind: CallKind) -> CallSite | None:
    """The call site of this kind that takes most time; where none was timed, the one called most."""
    return max(
        (call for call in calls if call.kind == kind), key=lambda call: (call.seconds or 0.0, call.calls), default=None
    )


def _label(name: str) -> Line:
    return Line(name.ljust(LABEL), DIM)


def _calls(name: str, each: PerStep) -> Line:
    line = _label(name).add(significant(each.calls), TEXT).add("/step", DIM)
    return line.add(GAP).add(duration(each.seconds).rjust(7), TEXT).add(" ").add(share_text(each.share), BRIGHT)


def _terse(each: PerStep) -> Line:
    return Line(significant(each.calls), TEXT).add("/step ", DIM).add(share_text(each.share), TEXT)


def _site(line: Line, facts: HookFacts | None, kind: CallKind, width: int) -> Line:
    """The line, with the dearest call site of that kind where there is room for it."""
    call = dearest(facts.calls, kind) if facts else None
    if call is None:
        return line
    place = f"{base_name(call.file)}:{call.line}"
    name = f"{one_line(call.name)} "
    if line.width + 2 + len(name) + len(place) <= width:
        return line.add(GAP).add(name, DIM).add(place, TEXT)
    return line.add(GAP).add(place, TEXT) if line.width + 2 + len(place) <= width else line
