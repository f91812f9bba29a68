"""The processes of the job as a tree, to read and to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from aitop.model.snapshot import Snapshot
from aitop.ui.panes.processes.columns import fit, heading, longest_branch, row_line, sort_word, sorted_next
from aitop.ui.panes.processes.tree import BY_ROLE, Figures, Order, ProcessRow, process_rows
from aitop.ui.panes.spare_rows import lines_below, room_below
from aitop.ui.state import View, family, lead_word, process_words
from aitop.ui.theme.palette import DIM
from aitop.ui.widgets.line import Line, key_hints
from aitop.ui.widgets.pane import Drawing
from aitop.ui.widgets.row_pane import RowPane
from aitop.ui.words import state_line

ROOM_FOR_KEYS = 10
KEYS = (("⏎", "narrow to it"), ("space", "and stay"), ("← →", "fold"), ("< >", "sort"), ("I", "invert"))


@dataclass
class ProcessChosen(Message):
    """The user wants the screen narrowed to a process; with `stay` this pane stays as it is."""

    pid: int
    stay: bool


def figures_at(snapshot: Snapshot | None, folded: set[int]) -> dict[int, Figures]:
    """What each process used in a snapshot, folded ones with all below them."""
    if snapshot is None or snapshot.host is None:
        return {}
    rows = process_rows(snapshot.host.processes, snapshot.gpu, snapshot.wall, folded=folded)
    return {row.process.pid: row.figures for row in rows}


class ProcessPane(RowPane[ProcessRow]):
    """A heading, a row a process, the one at the cursor lit up, the chosen one marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
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
        self._folded: set[int] = set()
        self._order: Order = BY_ROLE

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        if snapshot is None or snapshot.host is None:
            return Drawing([state_line("host", view.source("host"))], "Processes")
        processes = snapshot.host.processes
        rows = process_rows(
            processes,
            snapshot.gpu,
            snapshot.wall,
            folded=self._folded,
            order=self._order,
            wanted=view.filter,
            lead=lead_word(snapshot),
        )
        title = f"Processes · {len(processes)}"
        if not rows:
            self.rows = ()
            return Drawing([Line("no process matches", DIM)], f"{title} · /{view.filter}")
        self.take(rows, height - 1)
        foot = self._foot(view, snapshot, width, height)
        gpu, marked = bool(snapshot.gpu and snapshot.gpu.devices), view.mark is not None
        shape = fit(width, gpu=gpu, longest=longest_branch(rows), marked=marked)
        before = figures_at(view.mark, self._folded)
        lines = [heading(shape, self._order)]
        for row, at in self.take(rows, height - 1 - len(foot)):
            then, chosen = before.get(row.process.pid), row.process.pid == view.chosen
            lines.append(row_line(row, shape, width, view, then, cursor=at, chosen=chosen))
        if view.filter:
            title += f" · /{view.filter} {sum(row.matches for row in rows)} match"
        note = " · ".join(filter(None, (sort_word(self._order), self.in_sight())))
        return Drawing(lines, title, Line(note, DIM), view.stale("host"), foot)

    def _foot(self, view: View, snapshot: Snapshot, width: int, height: int) -> list[Line]:
        """While the pane has the focus: what the process at the cursor runs, and the keys."""
        row = self.row()
        if not self.has_focus or height < ROOM_FOR_KEYS or row is None:
            return []
        pids = family(snapshot.host.processes, row.process.pid) if snapshot.host else frozenset()
        title = f"what {process_words(snapshot, row.process.pid)} runs"
        room = room_below(len(self.rows) + 1, height - 1)
        return [*lines_below(snapshot.stacks, view, title, width, room, pids=pids), key_hints(KEYS)]

    def key_of(self, row: ProcessRow) -> int:
        return row.process.pid

    def action_fold(self, pid: int) -> None:
        self._folded ^= {pid}
        self.redraw()

    def action_close(self) -> None:
        row = self.row()
        if row is None:
            return
        if row.parent and not row.folded:
            self.action_fold(row.process.pid)
            return
        parent = next((n for n, above in enumerate(self.rows) if above.process.pid == row.process.ppid), None)
        if parent is not None:
            self.action_move(parent - self.cursor)

    def action_open(self) -> None:
        row = self.row()
        if row is not None and row.folded:
            self.action_fold(row.process.pid)
        elif row is not None and row.parent:
            self.action_move(1)

    def action_sort(self, field: str) -> None:
        wanted = field or None
        self._order = Order(wanted, not self._order.inverted if self._order.by == wanted else False)
        self.redraw()

    def action_sort_by(self, steps: int) -> None:
        self._order = sorted_next(self._order, steps)
        self.redraw()

    def action_invert(self) -> None:
        self._order = Order(self._order.by, not self._order.inverted)
        self.redraw()

    def action_choose(self, stay: bool = False) -> None:
        row = self.row()
        if row is not None:
            self._key = row.process.pid
            self.post_message(ProcessChosen(row.process.pid, stay=stay))
