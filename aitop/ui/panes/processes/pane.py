"""The processes of the job as a tree, to read and to choose from."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from aitop.model.snapshot import Snapshot
from aitop.model.units import NOT_YET
from aitop.ui.panes.processes.columns import fit, heading, longest_branch, row_line, sort_word, sorted_next
from aitop.ui.panes.processes.tree import BY_ROLE, Figures, Order, ProcessRow, process_rows
from aitop.ui.panes.spare_rows import room_below, runs_below
from aitop.ui.state import View, family, process_words
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT
from aitop.ui.widgets.line import Line
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import state_line

ROOM_FOR_KEYS = 10
KEYS = (("⏎", "narrow to it"), ("space", "and stay"), ("← →", "fold"), ("< >", "sort"), ("I", "invert"))


class ProcessChosen(Message):
    """The user wants the screen narrowed to a process; with `stay` this pane stays as it is."""

    def __init__(self, pid: int, *, stay: bool) -> None:
        super().__init__()
        self.pid = pid
        self.stay = stay


def figures_at(snapshot: Snapshot | None, folded: set[int]) -> dict[int, Figures]:
    """What each process used in a snapshot, folded ones with all below them."""
    if snapshot is None or snapshot.host is None:
        return {}
    rows = process_rows(snapshot.host.processes, snapshot.gpu, snapshot.wall, folded=folded)
    return {row.process.pid: row.figures for row in rows}


class ProcessPane(Pane):
    """A heading, a row a process, the one at the cursor lit up, the chosen one marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "cursor", show=False),
        Binding("down,j", "move(1)", "cursor", show=False),
        Binding("pageup", "move_page(-1)", "cursor", show=False),
        Binding("pagedown", "move_page(1)", "cursor", show=False),
        Binding("home", "move(-100000)", "cursor", show=False),
        Binding("end", "move(100000)", "cursor", show=False),
        Binding("left,h", "close", "fold", show=False),
        Binding("right,l", "open", "unfold", show=False),
        Binding("less_than_sign,comma", "sort_by(-1)", "sort", show=False),
        Binding("greater_than_sign,full_stop", "sort_by(1)", "sort", show=False),
        Binding("I", "invert", "invert", show=False),
        Binding("enter", "choose(False)", "narrow", show=False),
        Binding("space", "choose(True)", "narrow", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self.rows: list[ProcessRow] = []
        self.cursor = 0
        self._pid: int | None = None
        self._shut: set[int] = set()
        self._order: Order = BY_ROLE
        self._first = 0
        self._page = 1

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        if snapshot is None or snapshot.host is None:
            status = view.source("host")
            return Drawing([state_line("host", status) if status else Line(NOT_YET, DIM)], "Processes")
        processes = snapshot.host.processes
        self.rows = process_rows(
            processes, snapshot.gpu, snapshot.wall, folded=self._shut, order=self._order, wanted=view.filter
        )
        title = f"Processes · {len(processes)}"
        if not self.rows:
            return Drawing([Line("no process matches", DIM)], f"{title} · /{view.filter}")
        self._follow()
        foot = self._foot(view, snapshot, width, height)
        self._page = max(1, height - 1 - len(foot))
        self._first = max(0, min(self._first, self.cursor, len(self.rows) - self._page), self.cursor + 1 - self._page)
        gpu, marked = bool(snapshot.gpu and snapshot.gpu.devices), view.mark is not None
        shape = fit(width, gpu=gpu, longest=longest_branch(self.rows), marked=marked)
        before = figures_at(view.mark, self._shut)
        lines = [heading(shape, self._order)]
        for number, row in enumerate(self.rows[self._first : self._first + self._page], self._first):
            at = self.has_focus and number == self.cursor
            then, chosen = before.get(row.process.pid), row.process.pid == view.chosen
            lines.append(row_line(row, shape, width, view, then, cursor=at, chosen=chosen))
        if view.filter:
            title += f" · /{view.filter} {sum(row.matches for row in self.rows)} match"
        return Drawing(lines, title, self._note(), view.stale("host"), foot)

    def _foot(self, view: View, snapshot: Snapshot, width: int, height: int) -> list[Line]:
        """While the pane has the focus: what the process at the cursor runs, and the keys."""
        row = self._row()
        if not self.has_focus or height < ROOM_FOR_KEYS or row is None:
            return []
        pids = family(snapshot.host.processes, row.process.pid) if snapshot.host else frozenset()
        title = f"what {process_words(snapshot, row.process.pid)} runs"
        room = room_below(len(self.rows) + 1, height - 1)
        return [*runs_below(snapshot.stacks, pids, view, title, width, room), _keys()]

    def _note(self) -> Line:
        note = Line(sort_word(self._order), DIM)
        if len(self.rows) > self._page:
            note.add(f" · {self._first + 1}–{min(len(self.rows), self._first + self._page)} of {len(self.rows)}", DIM)
        return note

    def _follow(self) -> None:
        """Keep the cursor on its process when rows come, go and change places; else at its height."""
        if self._pid is not None:
            at = next((number for number, row in enumerate(self.rows) if row.process.pid == self._pid), None)
            self.cursor = self.cursor if at is None else at
        self.cursor = max(0, min(self.cursor, len(self.rows) - 1))

    # What the user does

    def action_move(self, rows: int) -> None:
        """Move the cursor; the ends stop it."""
        if self.rows:
            self.cursor = max(0, min(len(self.rows) - 1, self.cursor + rows))
            self._pid = self.rows[self.cursor].process.pid
        self.redraw()

    def action_move_page(self, pages: int) -> None:
        self.action_move(pages * self._page)

    def action_scroll_by(self, lines: int) -> None:
        """The wheel moves the cursor."""
        self.action_move(lines)

    def action_fold(self, pid: int) -> None:
        """Hide what is below a process, or show it again."""
        self._shut ^= {pid}
        self.redraw()

    def action_close(self) -> None:
        """Hide what is below the cursor; where that is hidden or nothing, go to the parent."""
        row = self._row()
        if row is None:
            return
        if row.parent and not row.folded:
            self.action_fold(row.process.pid)
            return
        parent = next((n for n, one in enumerate(self.rows) if one.process.pid == row.process.ppid), None)
        if parent is not None:
            self.action_move(parent - self.cursor)

    def action_open(self) -> None:
        """Show what is below the cursor; where that is shown, go to it."""
        row = self._row()
        if row is not None and row.folded:
            self.action_fold(row.process.pid)
        elif row is not None and row.parent:
            self.action_move(1)

    def action_sort(self, field: str) -> None:
        """Sort by a column; by the same one again: the other way round."""
        wanted = field or None
        self._order = Order(wanted, not self._order.inverted if self._order.by == wanted else False)
        self.redraw()

    def action_sort_by(self, steps: int) -> None:
        self._order = sorted_next(self._order, steps)
        self.redraw()

    def action_invert(self) -> None:
        self._order = Order(self._order.by, not self._order.inverted)
        self.redraw()

    def action_choose(self, stay: bool) -> None:
        row = self._row()
        if row is not None:
            self._pid = row.process.pid
            self.post_message(ProcessChosen(row.process.pid, stay=stay))

    async def on_click(self, event: events.Click) -> None:
        """A click puts the cursor on a row, a second one chooses it."""
        at = self._first + event.y - (2 if self.framed else 1)
        if event.y >= (2 if self.framed else 1) and at < min(len(self.rows), self._first + self._page):
            self.action_move(at - self.cursor)
            if event.chain >= 2:
                self.action_choose(True)

    def _row(self) -> ProcessRow | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None


def _keys() -> Line:
    line = Line()
    for key, word in KEYS:
        line.add(key, BRIGHT).add(f" {word}  ", FAINT)
    return line
