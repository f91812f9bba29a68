"""The process pane: the processes of the job as a tree to read and to choose from."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace
from rich.style import Style
from textual.binding import Binding, BindingType

from aitop.model.gpu import GpuProcess, GpuSample
from aitop.model.host import ProcessSample, Role
from aitop.model.snapshot import Snapshot
from aitop.model.units import NOT_SUPPORTED, NOT_YET, size
from aitop.ui.panes.code.hot_lines import lines_below, room_below
from aitop.ui.panes.since_mark import WIDTH, difference
from aitop.ui.state import View, children, descendants, family, labels_of, matches, process_words
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT, STATE_FAILED, STATE_STALE, TEXT, clickable, process_kind
from aitop.ui.widgets.line import Line, columns, key_hints, shorten
from aitop.ui.widgets.pane import Drawing
from aitop.ui.widgets.table import GAP, MARK, Column, Fit, Order, RowPane, in_order, row_line
from aitop.ui.widgets.table import fit as table_fit
from aitop.ui.words import PROCESS_STATES, one_line, short_command, state_lines, tight_percent

ROLE_ORDER: dict[Role, int] = {"launcher": 0, "rank": 1, "loader-worker": 2, "helper": 3, "other": 4}
UNNUMBERED = 1 << 30
BY_ROLE = Order()
"""The default order: launcher, ranks, workers, others."""
ADDED = ("cpu", "rss", "read_bytes", "write_bytes", "threads")


class ProcessRow(msgspec.Struct, frozen=True):
    """A process in the tree. `guide` are the lines drawn before its `label`, `gpu` is its use of all devices together.

    If the row is folded, `folded` counts its hidden descendants, and its figures include theirs. `gpu` is None if no
    device lists the process; `age` is in seconds, None if not known. `parent` says whether it has children, shown or
    not. `matches` is False for a row that is shown only because a descendant matches the filter.
    """

    process: ProcessSample
    label: str
    age: float | None
    gpu: GpuProcess | None
    guide: str = ""
    folded: int = 0
    parent: bool = False
    matches: bool = True


def process_rows(
    snapshot: Snapshot, *, folded: Collection[int] = (), order: Order = BY_ROLE, wanted: str = ""
) -> list[ProcessRow]:
    """The rows from the top down, children below their parents.

    With a filter `wanted`, the rows that match and their ancestors are shown, even below folded rows.
    """
    processes, use = snapshot.processes, gpu_use(snapshot.gpu)
    below, labels = children(processes), labels_of(snapshot)
    ages = {one.pid: max(0.0, snapshot.wall - one.started) for one in processes if one.started > 0}
    alone = {one.pid: ProcessRow(one, labels[one.pid], ages.get(one.pid), use.get(one.pid)) for one in processes}
    wanted_pids = _wanted(processes, below, labels, wanted)
    rows: list[ProcessRow] = []

    def placed(siblings: Iterable[ProcessSample], guide: str, top: bool) -> list[tuple[ProcessRow, str, str]]:
        """From the last to the first, each row with the guide before its name and that before its children's."""
        shown = _sorted([alone[process.pid] for process in siblings if process.pid in wanted_pids], order)
        guides = [("", "") if top else ("├ ", "│ ") for _ in shown[:-1]] + [("", "") if top else ("└ ", "  ")]
        return [(row, guide + own, guide + inner) for row, (own, inner) in zip(shown, guides, strict=False)][::-1]

    waiting = placed(below.get(0, []), "", True)
    while waiting:
        row, guide, inner = waiting.pop()
        pid, mine = row.process.pid, below.get(row.process.pid, [])
        closed = not wanted and pid in folded and bool(mine)
        hidden = [alone[each] for each in descendants(pid, below)] if closed else []
        summed = replace(_summed(row, hidden), guide=guide, folded=len(hidden), parent=bool(mine))
        rows.append(replace(summed, matches=not wanted or wanted_pids[pid]))
        if not closed:
            waiting += placed(mine, inner, False)
    return rows


def gpu_use(sample: GpuSample | None) -> dict[int, GpuProcess]:
    """By pid, what a process uses of all devices together."""
    by_pid: dict[int, list[GpuProcess]] = {}
    for device in sample.devices if sample else ():
        for process in device.processes or ():
            by_pid.setdefault(process.pid, []).append(process)
    return {pid: _together(uses) for pid, uses in by_pid.items()}


def _together(uses: Sequence[GpuProcess]) -> GpuProcess:
    """One process's use of several devices as one: the largest `sm` share, and the sum of the memory."""
    share = max((use.sm for use in uses if use.sm is not None), default=None)
    return replace(uses[0], sm=share, memory=_sum(use.memory for use in uses))


def _sum(values: Iterable[Any]) -> Any:
    """The sum of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _wanted(
    processes: Sequence[ProcessSample],
    below: Mapping[int, Sequence[ProcessSample]],
    labels: Mapping[int, str],
    wanted: str,
) -> dict[int, bool]:
    """The pids to show: True for those that match the filter, False for their ancestors that do not match."""
    if not wanted:
        return {process.pid: True for process in processes}
    matching = {
        process.pid: True
        for process in processes
        if matches(wanted, str(process.pid), labels[process.pid], process.role, process.name, process.command)
    }
    parents = {child.pid: pid for pid, some in below.items() for child in some}
    for pid in list(matching):
        while (pid := parents.get(pid, 0)) and pid not in matching:
            matching[pid] = False
    return matching


def _sorted(siblings: Iterable[ProcessRow], order: Order) -> list[ProcessRow]:
    """Sorted by a column or, by default, by role, rank and age, with the parts of a server first."""

    def role(row: ProcessRow) -> tuple[bool, int, int, float, int]:
        process = row.process
        rank = process.rank if process.role == "rank" and process.rank is not None else UNNUMBERED
        return process.part is None, ROLE_ORDER[process.role], rank, process.started, process.pid

    return in_order(sorted(siblings, key=role), FIGURES, order)


def _summed(row: ProcessRow, hidden: Sequence[ProcessRow]) -> ProcessRow:
    """The row with the figures of the hidden rows below it added to its own."""
    if not hidden:
        return row
    rows = (row, *hidden)
    sums = {name: _sum(getattr(each.process, name) for each in rows) for name in ADDED}
    uses = [each.gpu for each in rows if each.gpu is not None]
    return replace(row, process=replace(row.process, **sums), gpu=_together(uses) if uses else None)


TREE_LEAST, TREE_MOST, TREE_STEP = 16, 40, 6
NEW_SECONDS = 3.0
STATE_STYLES = {"R": TEXT, "D": STATE_STALE, "Z": STATE_FAILED, "T": STATE_STALE}


def age_text(seconds: float | None) -> str:
    """An age in whole units, five cells at most: 12 s, 4 m, 3 h, 12 d."""
    if seconds is None:
        return NOT_SUPPORTED
    for least, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= least:
            return f"{seconds // least:.0f} {unit}"
    return f"{int(seconds)} s"


FIGURES = (
    Column("pid", 7, 7, lambda row: row.process.pid, style=lambda _: DIM, rising=True),
    Column("cpu", 5, 0, lambda row: row.process.cpu, tight_percent, lambda _: BRIGHT),
    Column("memory", 7, 1, lambda row: row.process.rss, size),
    Column("gpu", 4, 2, lambda row: row.gpu.sm if row.gpu else None, tight_percent, lambda _: BRIGHT),
    Column("gpu mem", 7, 3, lambda row: row.gpu.memory if row.gpu else None, size),
    Column("read/s", 7, 5, lambda row: row.process.read_bytes, size),
    Column("write/s", 7, 6, lambda row: row.process.write_bytes, size),
    Column("thr", 4, 8, lambda row: row.process.threads, style=lambda _: DIM),
    Column("state", 6, 4, lambda row: row.process.state, lambda letter: PROCESS_STATES.get(letter, letter),
           lambda row: STATE_STYLES.get(row.process.state, FAINT), rising=False),
    Column("age", 5, 9, lambda row: row.age, age_text, lambda _: DIM),
)  # fmt: skip
COMMAND = Column("command", 14, 0, lambda row: short_command(row.process.command), style=lambda _: FAINT, right=False)
"""Takes the cells that the other columns leave; dropped if they are fewer than its minimum."""
SHARES = frozenset({"cpu", "gpu"})
CHANGING = SHARES | {"memory", "gpu mem", "read/s", "write/s"}
"""Columns that show their change since the mark."""


def _written(figure: Column, row: ProcessRow) -> tuple[str, Style]:
    """The text of a figure and its style; empty text for GPU figures of a process that uses no GPU."""
    value = figure.value(row)
    if value is None:
        if row.gpu is None and figure.heading.startswith("gpu"):
            return "", FAINT
        # A rate needs two samples, so a new process has no rate yet.
        new = figure.heading in CHANGING and row.age is not None and row.age < NEW_SECONDS
        return NOT_YET if new else NOT_SUPPORTED, FAINT
    nothing = not isinstance(value, str) and value < 1 and figure.heading not in SHARES
    return figure.text_of(value), FAINT if nothing or not row.matches else figure.style(row)


def fit(width: int, *, gpu: bool, longest: int = TREE_LEAST, mark: Mapping[int, ProcessRow] | None = None) -> Fit:
    """The columns for a pane of `width` cells; the least useful ones are dropped first.

    `gpu` says whether there is a device, `longest` how many cells the longest entry of the tree takes. `mark` has the
    rows at the mark by pid, None without a mark.
    """
    # In steps, so that a slightly longer or shorter entry does not move the columns.
    most = min(TREE_MOST, TREE_STEP * math.ceil(longest / TREE_STEP))
    tree = Column("process", TREE_LEAST, -1, lambda row: row, draw=_tree_cell, right=False, most=most)
    figures = [_column(figure, mark) for figure in FIGURES if gpu or not figure.heading.startswith("gpu")]
    shape = list(table_fit([tree, *figures], width))
    left = width - MARK - sum(cells + GAP for _, cells in shape)
    if left >= COMMAND.cells:
        shape.append((COMMAND, left))
    return shape


def _column(figure: Column, mark: Mapping[int, ProcessRow] | None) -> Column:
    """The column of a figure, widened for its change since the mark if there is a mark."""
    changing, rows_then = mark is not None and figure.heading in CHANGING, mark or {}

    def draw(row: ProcessRow, _cells: int) -> Line:
        text, style = _written(figure, row)
        line = Line(shorten(text, figure.cells).rjust(figure.cells), style)
        now, before = figure.value(row), rows_then.get(row.process.pid)
        if not changing or now is None:
            return line
        then = figure.value(before) if before else None
        return line.join(difference(now, then, points=figure.heading in SHARES))

    return Column(figure.heading, figure.cells + WIDTH * changing, figure.keep, lambda row: row, draw=draw)


def heading(shape: Fit, order: Order) -> Line:
    """The headings, with an arrow at the sort column. A click on a heading sorts by it."""
    headings = [(_heading(column.heading, order, cells), cells) for column, cells in shape]
    return Line().to(MARK).join(columns(headings, GAP))


def _heading(name: str, order: Order, cells: int) -> Line:
    if name == "command":
        return Line(name, FAINT)
    by = "" if name == "process" else name
    chosen, up = order.by == by, order.inverted != (by in ("", "pid"))
    style = clickable(BRIGHT if chosen else FAINT, f"sort('{by}')")
    # The heading stands over the figure alone, not over its change since the mark.
    cells = next((figure.cells for figure in FIGURES if figure.heading == name), cells)
    text = f"{name}{'↑' if up else '↓'}" if chosen and order != BY_ROLE and len(name) < cells else name
    return Line(text.rjust(cells) if by else text.ljust(cells), style)


def _tree_cell(row: ProcessRow, cells: int) -> Line:
    line = Line(row.guide, FAINT)
    if row.parent:
        action = f"fold({row.process.pid})"
        line.add("▸ " if row.folded else "▾ ", clickable(DIM, action))
    line.add(one_line(row.label), process_kind(row.process.role).ink if row.matches else FAINT)
    if row.folded:
        line.add(f" +{row.folded}", BRIGHT)
    return line.fit(cells)


ROOM_FOR_KEYS = 10
KEYS = (("⏎", "narrow to it"), ("space", "and stay"), ("← →", "fold"), ("< >", "sort"), ("I", "invert"))


class ProcessPane(RowPane[ProcessRow]):
    """A heading and one row per process; the row at the cursor is highlighted, the chosen one marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "close", "fold", show=False),
        Binding("right", "open", "unfold", show=False),
        Binding("less_than_sign", "sort_by(-1)", "sort", show=False),
        Binding("greater_than_sign", "sort_by(1)", "sort", show=False),
        Binding("I", "invert", "invert", show=False),
        Binding("enter", "choose(False)", "narrow", show=False),
        Binding("space", "choose(True)", "narrow", show=False),
    ]
    table = FIGURES
    _folded: frozenset[int] = frozenset()

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        if snapshot is None or snapshot.host is None:
            return Drawing(state_lines("host", view.source("host"), width), "Processes")
        rows = process_rows(snapshot, folded=self._folded, order=self.order, wanted=view.filter)
        title = f"Processes · {len(snapshot.host.processes)}"
        if not rows:
            self.rows = ()
            return Drawing([Line("no process matches", DIM)], f"{title} · /{view.filter}")
        self.take(rows, height - 1)
        foot = self._foot(view, snapshot, width, height)
        mark = {row.process.pid: row for row in process_rows(view.mark, folded=self._folded)} if view.mark else None
        # A row with children needs room for the fold arrow and the count of hidden rows, whether folded or not.
        longest = max(len(row.guide) + len(row.label) + 6 * row.parent for row in rows)
        shape = fit(width, gpu=bool(snapshot.gpu and snapshot.gpu.devices), longest=longest, mark=mark)
        lines = [heading(shape, self.order)]
        for row, at in self.take(rows, height - 1 - len(foot)):
            lines.append(row_line(row, shape, width, cursor=at, chosen=row.process.pid == view.chosen))
        if view.filter:
            title += f" · /{view.filter} {sum(row.matches for row in rows)} match"
        note = " · ".join(filter(None, (f"by {self.order.by or 'role'}", self.in_sight())))
        return Drawing(lines, title, Line(note, DIM), view.stale("host"), foot)

    def _foot(self, view: View, snapshot: Snapshot, width: int, height: int) -> list[Line]:
        """Rows below the tree while the pane has the focus: hot lines of the process at the cursor, and the keys."""
        row = self.row()
        if not self.has_focus or height < ROOM_FOR_KEYS or row is None:
            return []
        pids = family(snapshot.host.processes, row.process.pid) if snapshot.host else frozenset()
        title = f"what {process_words(snapshot, row.process.pid)} runs"
        room = room_below(len(self.rows) + 1, height - 1)
        return [*lines_below(view, title, width, room, pids=pids), key_hints(KEYS, view.appearance)]

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

    def action_sort(self, heading: str) -> None:
        self.order = Order(heading, self.order.by == heading and not self.order.inverted)
        self.redraw()
