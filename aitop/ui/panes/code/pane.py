"""The code pane: hot lines of user code, the call tree, or the flame view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.message import Message

from aitop.model.snapshot import Stacks
from aitop.model.units import NOT_YET, percent
from aitop.ui.panes.code import call_tree, flame, hot_lines
from aitop.ui.panes.code.call_tree import Node, TreePath
from aitop.ui.panes.code.flame import flame_below, flame_lines
from aitop.ui.panes.code.hot_lines import HotRow, Place, line_change, lines_below, room_below
from aitop.ui.panes.since_mark import NO_CHANGE
from aitop.ui.state import View
from aitop.ui.theme.palette import DIM, FAINT, TEXT
from aitop.ui.widgets.line import Line, lit, shorten_left
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import one_line, share_text, state_lines


@dataclass
class LineWanted(Message):
    """Asks the screen to show a line of code."""

    place: Place


NAME, LONG_NAME = 14, 26


def gil_line(stacks: Stacks, pids: frozenset[int] | None, width: int) -> Line | None:
    """The share of time for which each thread of the ranks holds the GIL; None if that was not sampled."""
    ranks = {process.pid for process in stacks.processes if process.role == "rank"}
    shown = [thread for thread in stacks.threads if thread.pid in ranks and (pids is None or thread.pid in pids)]
    asked = sorted((thread for thread in shown if thread.gil is not None), key=lambda thread: -(thread.gil or 0.0))
    if not asked:
        return None
    line = Line("GIL".ljust(5), DIM)
    for number, thread in enumerate(asked):
        if number and not thread.gil:
            return line
        name = "main" if thread.thread == "MainThread" else one_line(thread.thread)
        cells = NAME if len(name) <= NAME or line.width + LONG_NAME + 7 > width else LONG_NAME
        if number and line.width + cells + 7 > width:
            left = sum(1 for other in asked[number:] if other.gil)
            return line.add(f"  {left} more", FAINT) if line.width + 10 <= width else line
        line.add("  " if number else "").add(share_text(thread.gil), TEXT).add(" ").join(Line(name, DIM).fit(cells))
    return line


ROOM_FOR_GIL = 6
LEAST_FOR_GIL = 78
ROOM_FOR_LEGEND = 78
NAMES = {"lines": "hot lines", "tree": "call tree", "flame": "flame"}


class CodePane(Pane):
    """Hot lines (the heaviest first), the call tree, or the flame view. One row or cell is selected."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "go(-1, 0)", "fold, or go left", show=False),
        Binding("right", "go(1, 0)", "unfold, or go right", show=False),
        Binding("enter", "open", "the line, or zoom into the flame", show=False),
        Binding("o", "look", "the line", show=False),
        Binding("escape,backspace", "out", "zoom out of the flame", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self._settled = call_tree.Settled()
        self._forest: tuple[Stacks, object, list[Node]] | None = None
        self._hot: list[HotRow] = []
        self._rows: list[call_tree.TreeRow] = []
        self._cells: flame.Rows = []
        self._heights = 1
        self._hot_at: hot_lines.HotKey | None = None
        self._path: TreePath | None = None
        self._pointed: TreePath | None = None
        self._zoom: TreePath = ()
        self._folds: dict[TreePath, bool] = {}
        self._above = 0

    # What is drawn

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        title = " · ".join(word for word in ("Code", NAMES[view.code], view.who.words()) if word)
        stacks = snapshot.stacks if snapshot else None
        self._hot, self._rows, self._cells = [], [], []
        if snapshot is None or stacks is None or not stacks.samples:
            status = view.source("stacks")
            waiting = status is None or status.state == "ok"
            if waiting:
                return Drawing([Line(f"{NOT_YET} waiting for the first stacks", DIM)], title)
            return Drawing(state_lines("stacks", status, width), title)
        chosen = view.who.pid, view.who.thread
        gil = next((thread.gil for thread in stacks.threads if (thread.pid, thread.thread) == chosen), None)
        title += f" · GIL {percent(gil)}" if gil is not None else ""
        note = Line(f"{stacks.samples} samples · {stacks.seconds:.0f} s", DIM)
        stale = view.stale("stacks")
        if view.code == "flame":
            lines, foot = self._flame(self._trees(stacks, view), view, width, height)
            note = flame.legend() if width >= ROOM_FOR_LEGEND else note
            room = room_below(len(lines) + len(foot), height)
            foot += lines_below(view, "hot lines", width, room, pids=view.pids(), who=view.who)
        else:
            whose = gil_line(stacks, view.pids(), width) if height >= ROOM_FOR_GIL and width >= LEAST_FOR_GIL else None
            foot = [whose] if whose is not None else []
            draw = self._tree if view.code == "tree" else self._lines
            lines = draw(stacks, view, width, height - len(foot))
            room = room_below(len(lines), height - len(foot))
            if view.code == "tree":
                foot = lines_below(view, "hot lines", width, room, pids=view.pids(), who=view.who) + foot
            elif room:
                foot = flame_below(self._trees(stacks, view), view, width, room) + foot
        whom = view.who.words()
        nothing = f"nothing of {whom} was seen" if whom else "no line of the user's own code was seen"
        nothing = f"nothing here matches {one_line(view.filter)}" if view.filter else nothing
        return Drawing(lines or [Line(nothing, DIM)], title, note, stale, foot)

    def _lines(self, stacks: Stacks, view: View, width: int, height: int) -> list[Line]:
        rows = hot_lines.matching_rows(stacks, view.filter, view.pids(), view.who)
        self._hot = self._settled.order(("hot", view.who), rows, lambda row: row.key, lambda row: row.share)
        self._heights = 2 if width < hot_lines.ROOMY and len(rows) * 2 <= height else 1
        chosen = self._hot_index()
        self._keep_in_sight(chosen * self._heights, height - self._heights + 1)
        return [
            lit(line.fit(width)) if self.has_focus and number == chosen else line
            for number, row in enumerate(self._hot)
            for line in hot_lines.row_lines(row, width, line_change(view, row, view.pids(), view.who), self._heights)
        ]

    def _tree(self, stacks: Stacks, view: View, width: int, height: int) -> list[Line]:
        self._rows = call_tree.tree_rows(self._trees(stacks, view), self._folds, self._settled, view.filter)
        chosen = self._row_index()
        self._keep_in_sight(chosen, height)
        lines = [call_tree.tree_line(row, width, call_tree.node_change(view, row.node)) for row in self._rows]
        if self.has_focus and lines:
            lines[chosen] = lit(lines[chosen].fit(width))
        return lines

    def _flame(self, trees: list[Node], view: View, width: int, height: int) -> tuple[list[Line], list[Line]]:
        way, nodes = flame.zoomed(trees, self._zoom)
        self._cells = flame.icicle(nodes, width)
        crumbs = " › ".join(one_line(node.function) for node in way[:-1])
        head = [Line(shorten_left(f"{crumbs} ›", width), DIM)] if crumbs else []
        self._above = len(head)
        if not self._cells:
            return [], []
        if self._path is None or flame.row_of(self._cells, self._path) < 0:
            self._path = self._cells[0][0].node.path
        path = self._path
        foot = 1 if height > 2 else 0
        self._keep_in_sight(flame.row_of(self._cells, path) + self._above, height - foot)
        selected = path if self.has_focus else None
        lines = flame_lines(self._cells, selected, self._pointed, letters=view.appearance.mono, wanted=view.filter)
        shown = (call_tree.way_to(nodes, self._pointed or path) or nodes)[-1]
        by = NO_CHANGE if shown.change else call_tree.node_change(view, shown)
        return [*head, *lines], [flame.node_line(shown, width, by)][:foot]

    def _trees(self, stacks: Stacks, view: View) -> list[Node]:
        """The call trees of the selection, cached until the Stacks or the selection change."""
        asked = view.pids(), view.who
        if self._forest is None or self._forest[0] is not stacks or self._forest[1] != asked:
            self._forest = stacks, asked, call_tree.forest(stacks, *asked)
        return self._forest[2]

    def _keep_in_sight(self, row: int, height: int) -> None:
        if self.has_focus and height > 0:
            self.top = max(0, row if row < self.top else max(self.top, row - height + 1))

    # What is selected

    def place(self) -> Place | None:
        """The selected line of code; None if the selected row or cell is not a line of code."""
        if self._hot:
            row = self._hot[self._hot_index()]
            return Place(row.pid, row.file, row.line, row.function, row.share, row.who, key=row.key)
        node = self._selected_node()
        if node is None or not node.file or self._forest is None:
            return None
        path = call_tree.way_to(self._forest[2], node.path)
        callers = tuple((caller.name, caller.file, caller.origin) for caller in path[1:-1])
        whose = one_line(path[0].name)
        return Place(path[0].pid, node.file, node.line, node.function, node.share, whose, callers, path=node.path)

    def _selected_node(self) -> Node | None:
        if self._rows:
            return self._rows[self._row_index()].node
        if self._cells and self._path is not None:
            return next(reversed(call_tree.way_to([cell.node for cell in self._cells[0]], self._path)), None)
        return None

    def _hot_index(self) -> int:
        keys = [row.key for row in self._hot]
        return keys.index(self._hot_at) if self._hot_at in keys else 0

    def _row_index(self) -> int:
        """The index of the selected row; if it is folded away, that of its nearest visible ancestor."""
        path = self._path or ()
        for length in range(len(path), 0, -1):
            for number, row in enumerate(self._rows):
                if row.node.path == path[:length]:
                    return number
        return 0

    # What the user does

    def action_scroll_by(self, lines: int) -> None:
        """Move the selection by so many rows; the pane scrolls to keep it in sight."""
        self.action_go(0, lines)

    def action_go(self, across: int, down: int) -> None:
        self._pointed = None
        if self._hot and down:
            index = max(0, min(len(self._hot) - 1, self._hot_index() + down))
            self._hot_at = self._hot[index].key
        elif self._rows:
            self._go_in_tree(across, down)
        elif self._cells and self._path is not None:
            for _ in range(min(abs(down or across), 50)):
                self._path = flame.neighbour(self._cells, self._path, across, max(-1, min(1, down))) or self._path
        self.redraw()

    def _go_in_tree(self, across: int, down: int) -> None:
        index = self._row_index()
        row = self._rows[index]
        if down:
            row = self._rows[max(0, min(len(self._rows) - 1, index + down))]
            self._path = row.node.path
        elif across > 0 and row.state == "closed":
            self._folds[row.node.path] = True
        elif across > 0 and row.state == "open":
            self._path = self._rows[min(index + 1, len(self._rows) - 1)].node.path
        elif across < 0 and row.state == "open":
            self._folds[row.node.path] = False
        elif across < 0 and len(row.node.path) > 1:
            self._path = row.node.path[:-1]

    def action_open(self) -> None:
        """Zoom into the selected cell of the flame; fold or unfold a heading of the tree; else show the line."""
        node = self._selected_node()
        if self._cells and node is not None and node.path != self._zoom and node.children:
            self._zoom = node.path
            self.top = 0
            self.redraw()
        elif self._rows and node is not None and not node.file:
            self._folds[node.path] = self._rows[self._row_index()].state == "closed"
            self.redraw()
        else:
            self.action_look()

    def action_look(self) -> None:
        """Show the selected line; if nothing selected is one, leave the key to the screen."""
        if not self._look():
            raise SkipAction

    def _look(self) -> bool:
        """Ask for the selected line of code. Returns whether there is one."""
        place = self.place()
        if place is not None:
            self.post_message(LineWanted(place))
        return place is not None

    def action_out(self) -> None:
        """Zoom out of the flame by one level; if it is not zoomed, leave the key to the screen."""
        if not (self._zoom and self._cells):
            raise SkipAction
        self._path, self._zoom = self._zoom, self._zoom[:-1]
        self.redraw()

    # The mouse

    def on_mouse_move(self, event: events.MouseMove) -> None:
        cell = self._cell_under(event)
        pointed = cell.node.path if cell else None
        if pointed != self._pointed:
            self._pointed = pointed
            self.redraw()

    def on_leave(self, event: events.Leave) -> None:
        if self._pointed is not None:
            self._pointed = None
            self.redraw()

    async def on_click(self, event: events.Click) -> None:
        row = event.y - self.framed + self.top
        if event.y < self.framed or event.y >= self.size.height - self.framed - self.foot_rows:
            return
        cell = self._cell_under(event)
        if cell is not None:
            self._click_cell(cell, event.chain)
        elif self._rows and row < len(self._rows):
            clicked = self._rows[row]
            self._path = clicked.node.path
            if clicked.state != "leaf":
                self._folds[self._path] = clicked.state == "closed"
            self.redraw()
        elif self._hot and row // self._heights < len(self._hot):
            key = self._hot[row // self._heights].key
            again, self._hot_at = key == self._hot_at and event.chain > 1, key
            self.redraw()
            if again:
                self._look()

    def _click_cell(self, cell: flame.Cell, clicks: int) -> None:
        """Zoom into the cell, or zoom out if it already fills the view. A double click on a leaf shows its line."""
        self._path = cell.node.path
        if cell.node.path == self._zoom:
            self.action_out()
        elif cell.node.children:
            self.action_open()
        elif clicks > 1:
            self._look()
        else:
            self.redraw()

    def _cell_under(self, event: events.MouseEvent) -> flame.Cell | None:
        if not self._cells:
            return None
        if event.y >= self.size.height - self.framed - self.foot_rows:
            return None
        return flame.at(self._cells, event.x - 2 * self.framed, event.y - self.framed + self.top - self._above)
