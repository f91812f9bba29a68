"""Figures of a step beside its phases: speed, device synchronisation, collectives, compilation and AMP scaling. Pure.

A figure is shown only if it was measured. Order and widths are fixed, so that nothing moves when values change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from rich.cells import cell_len

from aitop.diagnosis.evidence import records, share_of_steps
from aitop.model.snapshot import Snapshot
from aitop.model.steps import CallKind, HookFacts, total
from aitop.model.units import count, duration, operations, percent
from aitop.ui.panes.since_mark import change, field_of
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, COMMUNICATION, DIM, FAINT, TEXT
from aitop.ui.widgets.line import Line, shorten
from aitop.ui.words import one_line, place, share_text, significant

LABEL = 8
GAP = "  "
LEAST_WORDS = 20


class Figure(NamedTuple):
    """A named row of parts, the most important first. Its short form is the first `brief` parts.

    `words` follow the parts and may be cut off. `measured` says whether the value of at least one part is known.
    """

    name: str
    parts: list[Line]
    brief: int = 1
    measured: bool = True
    words: str = ""

    @property
    def width(self) -> int:
        return LABEL + sum(part.width for part in self.parts) + len(GAP) * (len(self.parts) - 1)

    def line(self, width: int) -> Line:
        """The full form: the name, as many parts as fit, and as much of the words as fits."""
        line = Line(self.name.ljust(LABEL), DIM).join_fitting(self.parts, width, GAP)
        room = width - line.width - len(GAP)
        fits = self.words and room >= min(LEAST_WORDS, cell_len(self.words))
        return line.add(GAP).add(shorten(self.words, room), FAINT) if fits else line

    def short(self) -> Line:
        """The short form, for a line that is shared with other figures."""
        line = Line(self.name, COMMUNICATION.ink if self.name == "exchange" else DIM)
        for part in self.parts[: self.brief]:
            line.add(" ").join(part)
        return line


def measured_figures(view: View) -> list[Figure]:
    """The figures that were measured, in fixed order, with their changes since the mark."""
    made = [make(view, view.snapshot) for make in FIGURES] if view.snapshot is not None else []
    return [figure for figure in made if figure is not None]


def figure_lines(figures: Sequence[Figure], width: int, rows: int) -> list[Line]:
    """The figures in at most `rows` lines: one line each if there is room, else in short form side by side.

    Those that still do not fit are left out.
    """
    if len(figures) <= rows:
        return [figure.line(width).fit(width) for figure in figures]
    lines: list[Line] = []
    for short in (figure.short() for figure in figures):
        if lines and lines[-1].width + 3 + short.width <= width:
            lines[-1].add(" · ", FAINT).join(short)
        elif len(lines) < rows:
            lines.append(short)
    return lines


def speed(view: View, snapshot: Snapshot) -> Figure | None:
    """Achieved FLOP/s, MFU (the share of the device's peak) and tokens per second."""
    steps, parts = snapshot.steps, list[Line]()
    if steps is not None and steps.flops_per_second is not None:
        flops = change(view, field_of("steps.flops_per_second"))
        parts.append(Line(operations(steps.flops_per_second).rjust(12), BRIGHT).join(flops))
        used = change(view, field_of("steps.mfu"), points=True)
        parts.append(Line("MFU ", DIM).add(share_text(steps.mfu), BRIGHT).join(used))
    if steps is not None and steps.tokens_per_second is not None:
        by = change(view, field_of("steps.tokens_per_second"))
        parts.append(Line(significant(steps.tokens_per_second, 5), TEXT).add(" tokens/s", DIM).join(by))
    if not parts:
        return None
    brief = min(2, len(parts))
    basis = snapshot.facts.flops_basis if snapshot.facts and brief == 2 else None
    return Figure("speed", parts, brief, words=f"from {one_line(basis)}" if basis else "")


def waits(view: View, snapshot: Snapshot) -> Figure | None:
    """Device synchronisations: calls that block the host until the device is done."""
    return _calls(view, snapshot, "syncs", "blocking", calls="blockings", seconds="blocking")


def collectives(view: View, snapshot: Snapshot) -> Figure | None:
    """Collectives and waits for them, in all phases, and the communication that DDP reports as overlapped."""
    figure = _calls(view, snapshot, "exchange", "collective", calls="collectives", seconds="communication")
    ddp = snapshot.facts.ddp if snapshot.facts else None
    if figure is not None and ddp is not None and ddp.communication and ddp.overlap is not None:
        overlap = Line(percent(ddp.overlap / ddp.communication).rjust(5), TEXT).add(" overlapped", DIM)
        figure.parts.insert(3, overlap)
    return figure


def compiler(_view: View, snapshot: Snapshot) -> Figure | None:
    """torch.compile's counters of recompilations, graph breaks and graphs, with the newest reason to recompile."""
    facts = snapshot.facts
    if facts is None or facts.compiles is None:
        return None
    counters = ((facts.recompiles, " again"), (facts.graph_breaks, " breaks"), (facts.compiles, " graphs"))
    parts = [
        Line(count(number).rjust(4), BRIGHT if number and word != " graphs" else TEXT).add(word, DIM)
        for number, word in counters
        if number is not None
    ]
    return Figure("compile", parts, 2, words=one_line(next(iter(facts.recompile_reasons), "")))


def scaler(_view: View, snapshot: Snapshot) -> Figure | None:
    """The number of steps whose update a GradScaler skipped (because of inf or nan gradients)."""
    skips = snapshot.facts.scaler_skips if snapshot.facts else None
    if skips is None:
        return None
    return Figure("scaler", [Line(count(skips).rjust(5), BRIGHT if skips else TEXT).add(" steps skipped", DIM)])


FIGURES: tuple[Callable[[View, Snapshot], Figure | None], ...] = (speed, waits, collectives, compiler, scaler)


def _calls(view: View, snapshot: Snapshot, name: str, kind: CallKind, *, calls: str, seconds: str) -> Figure | None:
    """Calls of one kind: the number per step, their share of a step, their seconds per step, and the costliest call
    site. None if no step has measured them.

    `calls` and `seconds` are the fields of a step that have their number and their time.
    """

    def share_of(snapshot: Snapshot) -> float | None:
        return share_of_steps(records(snapshot), attrgetter(seconds))

    share = share_of(snapshot)
    if share is None:
        return None
    timed = [step for step in records(snapshot) if getattr(step, seconds) is not None]
    number, length = ((total(timed, field) or 0.0) / len(timed) for field in (calls, seconds))
    parts = [
        Line(significant(number), TEXT).add(" calls/step", DIM),
        Line(share_text(share), BRIGHT).join(change(view, share_of, points=True)),
        Line(duration(length).rjust(7), TEXT),
    ]
    return Figure(name, [*parts, *costliest_call(snapshot.facts, kind)], 2)


def costliest_call(facts: HookFacts | None, kind: CallKind) -> list[Line]:
    """The call site of this kind with the most time, or the most calls if none was timed; empty without one."""
    calls = [call for call in facts.calls if call.kind == kind] if facts else []
    call = max(calls, key=lambda call: (call.seconds or 0.0, call.calls), default=None)
    if call is None:
        return []
    return [Line(f"{one_line(call.name)} ", DIM).add(place(call), TEXT)]
