"""The code: the user's lines on which the time is spent, or the call tree."""

from __future__ import annotations

from aitop.model.units import NOT_YET
from aitop.ui.call_tree import TreeRow, forest
from aitop.ui.figures import gil_line
from aitop.ui.hot_lines import HotRow, hot_rows
from aitop.ui.line import Line, columns, shorten, shorten_left
from aitop.ui.palette import BRIGHT, DIM, FAINT, TEXT, TROUGH, phase_of
from aitop.ui.view import View
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.widgets.timeline import bar
from aitop.ui.words import base_name, one_line, share_text, state_line

BAR = 8
ROOMY = 90
ROOM_FOR_GIL = 6
LEAST_FOR_GIL = 78


class CodePane(Pane):
    """Hot lines, heaviest first, or the call tree of each role."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        title = "Code · call tree" if view.tree else "Code · hot lines"
        stacks = snapshot.stacks if snapshot else None
        if snapshot is None or stacks is None or not stacks.samples:
            status = view.source("stacks")
            waiting = status is None or status.state == "ok"
            line = Line(f"{NOT_YET} waiting for the first stacks", DIM) if waiting else state_line("stacks", status)
            return Drawing([line], title)
        note = Line(f"{stacks.samples} samples · {stacks.seconds:.0f} s", DIM)
        stale = view.stale("stacks")
        gil = gil_line(stacks, view.pids(), width) if height >= ROOM_FOR_GIL and width >= LEAST_FOR_GIL else None
        foot = [gil] if gil is not None else []
        if view.tree:
            return Drawing([_tree_line(row, width) for row in forest(stacks, view.pids())], title, note, stale, foot)
        rows = hot_rows(stacks, view.pids())
        lines = [hot_line(row, width) for row in rows]
        if width < ROOMY and len(rows) * 2 <= height - len(foot):
            lines = [line for row in rows for line in hot_line_and_text(row, width)]
        return Drawing(lines or [Line("no line of the user's own code was seen", DIM)], title, note, stale, foot)


def hot_line(row: HotRow, width: int) -> Line:
    """Share, function and place, the line's own text, the phase it belongs to and who runs it."""
    phase = phase_of(row.phase)
    who = Line(row.who, DIM)
    doing = Line("▌", phase.ink).add(phase.name, DIM)
    left = Line(share_text(row.share), BRIGHT).add(" ").join(bar(row.share, BAR, phase.ink, TROUGH)).add("  ")
    if width < ROOMY:
        tail = columns([(Line(row.who, DIM), 10)])
        room = width - left.width - tail.width - 1
        name = Line(shorten(one_line(row.function), max(8, room - 20)), TEXT).add("  ")
        name.add(shorten_left(_place(row), max(8, room - name.width)), BRIGHT)
        if row.text and room - name.width > 8:
            name.add("  ").add(shorten(one_line(row.text), room - name.width - 2), DIM)
        return left.join(name.fit(room)).add(" ").join(tail)
    room = width - left.width - 11 - 12 - 4
    name_width = max(24, min(44, room // 2))
    place = _place(row)
    function = shorten(one_line(row.function), max(6, name_width - len(place) - 2))
    name = Line(function, TEXT).add("  ").add(shorten_left(place, name_width - len(function) - 2), BRIGHT)
    text = Line(one_line(row.text), DIM) if row.text else Line()
    return left.join(columns([(name, name_width), (text, room - name_width - 2), (doing, 11), (who, 12)]))


def hot_line_and_text(row: HotRow, width: int) -> list[Line]:
    """The same in two lines: the line's own text in full below the rest."""
    bare = HotRow(row.file, row.line, row.function, None, row.phase, row.share, row.who)
    text = Line().to(7 + BAR).add(shorten(one_line(row.text or ""), width - 7 - BAR), DIM)
    return [hot_line(bare, width), text]


def _place(row: HotRow) -> str:
    return f"{base_name(row.file)}:{row.line}"


def _tree_line(row: TreeRow, width: int) -> Line:
    if row.heading:
        return Line(one_line(row.heading), BRIGHT).add(f"  {row.samples} samples", DIM)
    line = Line(share_text(row.share), TEXT if row.user else DIM).add(" ").add("  " * row.depth, FAINT)
    if row.skipped:
        return line.add(f"{NOT_YET} {row.skipped} library frames", FAINT)
    style = BRIGHT if row.user else DIM
    place = f"{base_name(row.file)}:{row.line}"
    room = width - line.width - len(place) - 2
    return line.add(shorten(one_line(row.function), max(6, room)), style).add(f"  {place}", TEXT if row.user else FAINT)
