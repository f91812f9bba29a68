"""Lines of the code pane: a hot line, a row of the call tree. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aitop.model.units import percent
from aitop.stacks.origin import Origin
from aitop.ui.flame import kind_of
from aitop.ui.hot_lines import HotRow
from aitop.ui.line import Line, columns, shorten, shorten_left
from aitop.ui.palette import BRIGHT, DIM, FAINT, TEXT, TROUGH, phase_of
from aitop.ui.tree_rows import TreeRow
from aitop.ui.widgets.timeline import bar
from aitop.ui.words import base_name, one_line, share_text

BAR = 8
ROOMY = 90
LEAST_FOR_TEXT = 90
NO_CHANGE = Line()
_STATES = {"open": "▾ ", "closed": "▸ ", "leaf": "  "}


@dataclass(frozen=True)
class Place:
    """A line of code in a process: what can be looked at and opened. `above` leads to it, the outermost
    first: function, file and whose code it is.
    """

    pid: int
    file: str
    line: int
    function: str
    share: float | None = None
    who: str = ""
    above: tuple[tuple[str, str, Origin], ...] = ()

    @classmethod
    def of_hot(cls, row: HotRow) -> Place:
        """The place of a hot line."""
        return cls(row.pid, row.file, row.line, row.function, row.share, row.who)


def hot_line(row: HotRow, width: int, by: Line = NO_CHANGE) -> Line:
    """Share, function and place, the line's own text, the phase it belongs to and who runs it.

    `by` is the change of the share since the mark, without width where there is none.
    """
    phase = phase_of(row.phase)
    who = Line(row.who, DIM)
    doing = Line("▌", phase.ink).add(phase.name, DIM)
    left = Line(share_text(row.share), BRIGHT).join(by).add(" ")
    left.join(bar(row.share, BAR, phase.ink, TROUGH)).add("  ")
    if width < ROOMY:
        tail = columns([(Line(row.who, DIM), 10)])
        room = width - left.width - tail.width - 1
        name = Line(shorten(one_line(row.function), max(8, room - 20)), TEXT).add("  ")
        name.add(shorten_left(_place(row), max(8, room - name.width)), BRIGHT)
        if row.text and room - name.width > 8:
            name.add("  ").add(shorten(one_line(row.text), room - name.width - 2), DIM)
        return left.join(name.fit(room)).add(" ").join(tail)
    room = width - left.width - 11 - 12 - 4
    name_width = max(30, min(44, room // 2))
    place = _place(row)
    function = shorten(one_line(row.function), max(6, name_width - len(place) - 2))
    name = Line(function, TEXT).add("  ").add(shorten_left(place, name_width - len(function) - 2), BRIGHT)
    text = Line(one_line(row.text), DIM) if row.text else Line()
    return left.join(columns([(name, name_width), (text, room - name_width - 2), (doing, 11), (who, 12)]))


def hot_line_and_text(row: HotRow, width: int, by: Line = NO_CHANGE) -> list[Line]:
    """The same in two lines: the line's own text in full below the rest."""
    bare = HotRow(row.file, row.line, row.function, None, row.phase, row.share, row.who)
    indent = 7 + BAR + by.width
    return [hot_line(bare, width, by), Line().to(indent).add(shorten(one_line(row.text or ""), width - indent), DIM)]


def tree_line(row: TreeRow, width: int, by: Line = NO_CHANGE) -> Line:
    """Share, function and place, as deep as it is; or who runs what is below."""
    node = row.node
    kind = kind_of(node)
    if not node.file:
        line = Line(_STATES[row.state], FAINT).add("■ ", kind.ink).add(one_line(node.name), BRIGHT)
        line.add(f"  {node.samples} samples", DIM)
        return line if node.gil is None else line.add(f"  GIL {percent(node.gil)}", DIM)
    # A deep tree does not run out of the pane: from some depth on it goes down straight.
    indent = min(2 * row.depth, max(2, width // 3))
    line = Line(share_text(node.share), TEXT if node.own else DIM).join(by).add(" ").to(5 + by.width + indent)
    line.add(_STATES[row.state], FAINT).add("▌", kind.ink)
    place = f"{base_name(node.file)}:{node.line}"
    room = width - line.width - len(place) - 2
    name = shorten(one_line(node.name), max(6, room))
    return line.add(name, BRIGHT if node.origin == "user" else DIM).add(
        f"  {place}", TEXT if node.origin == "user" else FAINT
    )


def _place(row: HotRow) -> str:
    return f"{base_name(row.file)}:{row.line}"
