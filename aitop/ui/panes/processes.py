"""The processes of the job as a tree, to read and to choose from: its rows, its columns, and the pane."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec.structs import replace
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message

from aitop.model.gpu import GpuProcess, GpuSample
from aitop.model.host import ProcessSample, Role
from aitop.model.snapshot import Snapshot
from aitop.model.units import NOT_SUPPORTED, NOT_YET, duration, size
from aitop.ui.panes.code.hot_lines import lines_below, room_below
from aitop.ui.panes.since_mark import WIDTH, difference
from aitop.ui.state import View, children, descendants, family, labels_of, matches, process_words
from aitop.ui.theme.palette import (
    BRIGHT,
    DIM,
    FAINT,
    LAUNCHER,
    OTHER_PROCESS,
    RANK,
    STATE_FAILED,
    STATE_STALE,
    TEXT,
    WORKER,
    Kind,
    clickable,
)
from aitop.ui.widgets.line import Line, key_hints, lit, shorten
from aitop.ui.widgets.pane import Drawing
from aitop.ui.widgets.table import GAP, MARK, Order, RowPane, next_order
from aitop.ui.words import one_line, short_command, state_line, tight_percent

ROLE_ORDER: dict[Role, int] = {"launcher": 0, "rank": 1, "loader-worker": 2, "helper": 3, "other": 4}
UNNUMBERED = 1 << 30
BY_ROLE = Order()
"""The order of the job: launcher, ranks, workers, others."""
ADDED = ("cpu", "rss", "reads", "writes", "threads", "gpu_memory")


class Figures(msgspec.Struct, frozen=True):
    """What one process uses, or a folded one with all below it. None is not measured.

    `cpu` in cores, `rss` and `gpu_memory` in bytes, `reads` and `writes` in bytes per second, `gpu` a share of its
    devices, `age` in seconds, `state` the kernel's letter. `on_gpu` says that a device lists it.
    """

    pid: int = 0
    cpu: float | None = None
    rss: int | None = None
    reads: float | None = None
    writes: float | None = None
    threads: int | None = None
    state: str | None = None
    age: float | None = None
    gpu: float | None = None
    gpu_memory: int | None = None
    on_gpu: bool = False


class ProcessRow(msgspec.Struct, frozen=True):
    """A row: the process, the lines that lead to it in the tree, its name to people, and its figures.

    `folded` counts the processes hidden below it. `parent` tells whether anything is below it, shown or not. `matches`
    is False for a row that is shown only because it leads to one that the filter wants.
    """

    process: ProcessSample
    guide: str
    label: str
    figures: Figures
    folded: int = 0
    parent: bool = False
    matches: bool = True


def process_rows(
    snapshot: Snapshot, *, folded: Collection[int] = (), order: Order = BY_ROLE, wanted: str = ""
) -> list[ProcessRow]:
    """Rows from the top down, children below their parents.

    While something is `wanted`, rows that hold it are shown with those that lead to them, whatever is folded.
    """
    processes, use = snapshot.host.processes if snapshot.host else (), gpu_use(snapshot.gpu)
    figures = {
        process.pid: Figures(
            pid=process.pid,
            cpu=process.cpu,
            rss=process.rss,
            reads=process.read_bytes,
            writes=process.write_bytes,
            threads=process.threads,
            state=process.state,
            age=max(0.0, snapshot.wall - process.started) if process.started > 0 else None,
            on_gpu=process.pid in use,
            **use.get(process.pid, {}),
        )
        for process in processes
    }
    below, labels = children(processes), labels_of(snapshot)
    wanted_pids = _wanted(processes, below, labels, wanted)
    rows: list[ProcessRow] = []

    def walk(siblings: Iterable[ProcessSample], guide: str, top: bool) -> None:
        shown = [process for process in _sorted(siblings, figures, order) if process.pid in wanted_pids]
        for number, process in enumerate(shown):
            last = number == len(shown) - 1
            mine = below.get(process.pid, [])
            closed = not wanted and process.pid in folded and bool(mine)
            all_below = descendants(process.pid, below) if closed else []
            rows.append(
                ProcessRow(
                    process=process,
                    guide=guide if top else guide + ("└ " if last else "├ "),
                    label=labels[process.pid],
                    figures=_summed([figures[process.pid], *(figures[pid] for pid in all_below)]),
                    folded=len(all_below),
                    parent=bool(mine),
                    matches=not wanted or wanted_pids[process.pid],
                )
            )
            if not closed:
                walk(mine, guide if top else guide + ("  " if last else "│ "), False)

    walk(below.get(0, []), "", True)
    return rows


def gpu_use(sample: GpuSample | None) -> dict[int, dict[str, Any]]:
    """By pid, its share of the multiprocessors (the most of its devices) and its memory on all devices together."""
    by_pid: dict[int, list[GpuProcess]] = {}
    for device in sample.devices if sample else ():
        for process in device.processes or ():
            by_pid.setdefault(process.pid, []).append(process)
    return {
        pid: {
            "gpu": max((each.sm for each in uses if each.sm is not None), default=None),
            "gpu_memory": sum(each.memory or 0 for each in uses)
            if any(each.memory is not None for each in uses)
            else None,
        }
        for pid, uses in by_pid.items()
    }


def _wanted(
    processes: Sequence[ProcessSample],
    below: Mapping[int, Sequence[ProcessSample]],
    labels: Mapping[int, str],
    wanted: str,
) -> dict[int, bool]:
    """The pids to show: True for those that match the filter, False for those above one that does."""
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


def _sorted(siblings: Iterable[ProcessSample], figures: Mapping[int, Figures], order: Order) -> list[ProcessSample]:
    """By role, rank and age; or by a field of Figures, what is not measured last in either direction.

    Pids go from the lowest on, other figures from the largest.
    """
    by_role = sorted(
        siblings,
        key=lambda process: (
            process.part is None,
            ROLE_ORDER[process.role],
            process.rank if process.role == "rank" and process.rank is not None else UNNUMBERED,
            process.started,
            process.pid,
        ),
    )
    by = order.by
    if not by:
        return by_role[::-1] if order.inverted else by_role
    known = [process for process in by_role if getattr(figures[process.pid], by) is not None]
    known.sort(key=lambda process: getattr(figures[process.pid], by), reverse=order.inverted == (by == "pid"))
    return known + [process for process in by_role if getattr(figures[process.pid], by) is None]


def _summed(all_figures: Sequence[Figures]) -> Figures:
    """The figures of several processes together: sums, the largest GPU share, and for all else the first one's."""
    if len(all_figures) == 1:
        return all_figures[0]
    changes: dict[str, Any] = {"on_gpu": any(figures.on_gpu for figures in all_figures)}
    for name in (*ADDED, "gpu"):
        known = [value for figures in all_figures if (value := getattr(figures, name)) is not None]
        changes[name] = (max if name == "gpu" else sum)(known) if known else None
    return replace(all_figures[0], **changes)


TREE_LEAST, TREE_MOST, TREE_STEP = 16, 40, 6
COMMAND_LEAST = 14
NEW_SECONDS = 3.0
STATES = {"R": "run", "S": "sleep", "D": "disk", "T": "stop", "t": "trace", "Z": "zombie", "I": "idle"}
STATE_STYLES = {"R": TEXT, "D": STATE_STALE, "Z": STATE_FAILED, "T": STATE_STALE}
KINDS: dict[str, Kind] = {"launcher": LAUNCHER, "rank": RANK, "loader-worker": WORKER}


class Column(NamedTuple):
    """A heading, its cells, the field of Figures it shows and sorts by, how that is written; `keep`: the lower the
    longer it stays as the pane narrows."""

    heading: str
    cells: int
    field: str
    text_of: Callable[[Any], str]
    keep: int
    style: Style = TEXT
    gpu: bool = False

    def write(self, figures: Figures) -> tuple[str, Style]:
        """The text and its style; empty for GPU figures of a process that uses no GPU."""
        value = getattr(figures, self.field)
        if self.gpu and not figures.on_gpu:
            return "", FAINT
        if value is None:
            # A rate needs two samples: a new process has none yet.
            new = self.field in CHANGING and figures.age is not None and figures.age < NEW_SECONDS
            return NOT_YET if new else NOT_SUPPORTED, FAINT
        if self.field == "state":
            return self.text_of(value), STATE_STYLES.get(value, FAINT)
        return self.text_of(value), self.style if value >= 1 or self.field in SHARES else FAINT


def age_text(seconds: float | None) -> str:
    """An age in whole units, six cells at most: 12 s, 4 m, 3 h, 12 d."""
    if seconds is None:
        return NOT_SUPPORTED
    for least, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= least:
            return f"{int(seconds // least)} {unit}"
    return duration(float(int(seconds))) if seconds >= 10 else f"{int(seconds)} s"


COLUMNS = (
    Column("pid", 7, "pid", str, 7, DIM),
    Column("cpu", 5, "cpu", tight_percent, 0, BRIGHT),
    Column("memory", 7, "rss", size, 1),
    Column("gpu", 4, "gpu", tight_percent, 2, BRIGHT, gpu=True),
    Column("gpu mem", 7, "gpu_memory", size, 3, gpu=True),
    Column("read/s", 7, "reads", size, 5),
    Column("write/s", 7, "writes", size, 6),
    Column("thr", 4, "threads", str, 8, DIM),
    Column("state", 6, "state", lambda letter: STATES.get(letter, letter), 4),
    Column("age", 5, "age", age_text, 9, DIM),
)
SHARES = frozenset({"cpu", "gpu"})
CHANGING = SHARES | {"rss", "gpu_memory", "reads", "writes"}
"""Figures that show their change since the mark."""


class Fit(NamedTuple):
    """What there is room for: cells of the tree, the columns, cells of the command or 0."""

    tree: int
    columns: tuple[Column, ...]
    command: int
    marked: bool = False

    def cells(self, column: Column) -> int:
        return column.cells + (WIDTH if self.marked and column.field in CHANGING else 0)


def fit(width: int, *, gpu: bool, longest: int = TREE_LEAST, marked: bool = False) -> Fit:
    """The columns for a pane of `width` cells; the least useful ones are dropped first.

    `gpu` says whether there is a device, `longest` how many cells the longest branch of the tree takes, `marked`
    whether changes are shown.
    """
    bare = Fit(0, (), 0, marked)
    room = width - MARK - TREE_LEAST
    shown: list[Column] = []
    for column in sorted((column for column in COLUMNS if gpu or not column.gpu), key=lambda column: column.keep):
        cells = GAP + bare.cells(column)
        if cells > room:
            break
        room -= cells
        shown.append(column)
    # In steps, so that a branch more or less moves nothing.
    wished = max(0, min(TREE_MOST, TREE_STEP * math.ceil(longest / TREE_STEP)) - TREE_LEAST)
    grown = min(wished, room)
    tree, room = TREE_LEAST + grown, room - grown
    command = room - GAP if room >= COMMAND_LEAST + GAP else 0
    return Fit(tree, tuple(column for column in COLUMNS if column in shown), command, marked)


def heading(shape: Fit, order: Order) -> Line:
    """The headings; the one sorted by has an arrow, and a click on one sorts by it."""
    line = Line().to(MARK)
    line.join(_heading("process", "", order, shape.tree, right=False))
    for column in shape.columns:
        line.to(line.width + GAP).join(_heading(column.heading, column.field, order, column.cells))
        line.to(line.width + shape.cells(column) - column.cells)
    if shape.command:
        line.to(line.width + GAP).add("command".ljust(shape.command), FAINT)
    return line


def _heading(text: str, field: str, order: Order, cells: int, *, right: bool = True) -> Line:
    chosen = order.by == field
    style = clickable(BRIGHT if chosen else FAINT, f"sort('{field}')")
    up = order.inverted != (field in ("", "pid"))
    marked = chosen and order != BY_ROLE
    text = f"{text}{'↑' if up else '↓'}" if marked and len(text) < cells else text
    return Line().add(text.rjust(cells) if right else text.ljust(cells), style)


def row_line(
    row: ProcessRow, shape: Fit, width: int, before: Figures | None = None, *, cursor: bool, chosen: bool
) -> Line:
    """One process; `cursor` lights it up, `chosen` marks the one that the screen is narrowed to.

    `before` is what it used at the mark, None where it was not there.
    """
    kind = KINDS.get(row.process.role, OTHER_PROCESS)
    line = Line("● " if chosen else "▸ " if cursor else "  ", BRIGHT)
    line.join(_tree_cell(row, kind, shape.tree))
    for column in shape.columns:
        text, style = column.write(row.figures)
        line.add(" " * GAP).add(shorten(text, column.cells).rjust(column.cells), style if row.matches else FAINT)
        if shape.marked and column.field in CHANGING:
            line.join(_changed(column, row.figures, before))
    if shape.command:
        line.add(" " * GAP).add(shorten(one_line(short_command(row.process.command)), shape.command), FAINT)
    return lit(line.fit(width)) if cursor else line.fit(width)


def _changed(column: Column, now: Figures, before: Figures | None) -> Line:
    if (column.gpu and not now.on_gpu) or getattr(now, column.field) is None:
        return Line().to(WIDTH)
    then = getattr(before, column.field) if before else None
    return difference(getattr(now, column.field), then, points=column.field in SHARES)


def _tree_cell(row: ProcessRow, kind: Kind, cells: int) -> Line:
    line = Line(row.guide, FAINT)
    if row.parent:
        action = f"fold({row.process.pid})"
        line.add("▸ " if row.folded else "▾ ", clickable(DIM, action))
    line.add(one_line(row.label), kind.ink if row.matches else FAINT)
    if row.folded:
        line.add(f" +{row.folded}", BRIGHT)
    return line.fit(cells)


ROOM_FOR_KEYS = 10
KEYS = (("⏎", "narrow to it"), ("space", "and stay"), ("← →", "fold"), ("< >", "sort"), ("I", "invert"))


@dataclass
class ProcessChosen(Message):
    """The user wants the screen narrowed to a process; with `stay` this pane stays as it is."""

    pid: int
    stay: bool


def figures_at(snapshot: Snapshot | None, folded: Collection[int]) -> dict[int, Figures]:
    """What each process used in a snapshot, folded ones with all below them."""
    rows = process_rows(snapshot, folded=folded) if snapshot else ()
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
    _folded: frozenset[int] = frozenset()
    _order = BY_ROLE

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        if snapshot is None or snapshot.host is None:
            return Drawing([state_line("host", view.source("host"))], "Processes")
        rows = process_rows(snapshot, folded=self._folded, order=self._order, wanted=view.filter)
        title = f"Processes · {len(snapshot.host.processes)}"
        if not rows:
            self.rows = ()
            return Drawing([Line("no process matches", DIM)], f"{title} · /{view.filter}")
        self.take(rows, height - 1)
        foot = self._foot(view, snapshot, width, height)
        gpu, marked = bool(snapshot.gpu and snapshot.gpu.devices), view.mark is not None
        # With room for the number of what may be folded away.
        longest = max(len(row.guide) + len(row.label) + 6 * row.parent for row in rows)
        shape = fit(width, gpu=gpu, longest=longest, marked=marked)
        before = figures_at(view.mark, self._folded)
        lines = [heading(shape, self._order)]
        for row, at in self.take(rows, height - 1 - len(foot)):
            then, chosen = before.get(row.process.pid), row.process.pid == view.chosen
            lines.append(row_line(row, shape, width, then, cursor=at, chosen=chosen))
        if view.filter:
            title += f" · /{view.filter} {sum(row.matches for row in rows)} match"
        sorted_by = next((column.heading for column in COLUMNS if column.field == self._order.by), "role")
        note = " · ".join(filter(None, (f"by {sorted_by}", self.in_sight())))
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
        self._order = Order(field, not self._order.inverted if self._order.by == field else False)
        self.redraw()

    def action_sort_by(self, steps: int) -> None:
        self._order = next_order([column.field for column in COLUMNS], self._order, steps)
        self.redraw()

    def action_invert(self) -> None:
        self._order = Order(self._order.by, not self._order.inverted)
        self.redraw()

    def action_choose(self, stay: bool = False) -> None:
        row = self.row()
        if row is not None:
            self._key = row.process.pid
            self.post_message(ProcessChosen(row.process.pid, stay=stay))
