"""The picker: the user chooses one of the AI jobs on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.model.job import Candidate
from aitop.model.units import NOT_SUPPORTED, duration, size
from aitop.ui.messages import in_background
from aitop.ui.state import View
from aitop.ui.theme.palette import BRAND, DIM, LOSS, TEXT
from aitop.ui.widgets.line import Line, key_hints, wrapped
from aitop.ui.widgets.pane import Drawing, OneLine, Pane
from aitop.ui.widgets.table import Column, RowChosen, RowPane, fit, heading, row_line
from aitop.ui.words import one_line, short_command

ROOMY = 112
REFRESH_SECONDS = 3.0
NOTHING = (
    "There is no AI process on this machine: nothing uses a GPU, and no process has torch, JAX or TensorFlow loaded. "
    "Start one and it will show up here, or try aitop demo."
)


class CandidatesPane(RowPane[Candidate]):
    """A heading and one row per job; a sentence if there is none."""

    candidates: Sequence[Candidate] = ()
    searched = False
    problem: str | None = None

    def draw(self, view: View, width: int, height: int) -> Drawing:
        self.rows = ()
        if self.problem:
            return Drawing(wrapped(self.problem, width, LOSS), "AI processes")
        if not self.searched:
            return Drawing([Line("looking for AI processes…", DIM)], "AI processes")
        if not self.candidates:
            return Drawing(wrapped(NOTHING, width), "AI processes")
        shape = fit(COLUMNS if width >= ROOMY else FEW_COLUMNS, width)
        rows = [heading(shape, self.order)] if height > 1 else []
        rows += [row_line(job, shape, width, cursor=at) for job, at in self.take(self.candidates, height - 1)]
        return Drawing(rows, "AI processes", Line(self.in_sight() or str(len(self.candidates)), DIM))

    def key_of(self, row: Candidate) -> int:
        return row.pid


def _gpus(candidate: Candidate) -> str:
    if not candidate.gpus:
        return NOT_SUPPORTED
    numbers = ",".join(map(str, candidate.gpus)) if len(candidate.gpus) <= 3 else f"{len(candidate.gpus)} devices"
    return numbers if candidate.gpu_memory is None else f"{numbers} {size(candidate.gpu_memory)}"


def _column(
    heading: str, cells: int, text_of: Callable[[Candidate], str], *, right: bool = True, most: int = 0
) -> Column:
    """A column whose value is the whole Candidate.

    As the value is never None, the table does not draw missing figures faint: a row has one colour throughout.
    """
    return Column(heading, cells, 0, lambda job: job, text_of, lambda job: TEXT if job.mine else DIM, right, most)


COLUMNS = (
    _column("pid", 8, lambda job: str(job.pid)),
    _column("user", 10, lambda job: one_line(job.user), right=False),
    _column("age", 10, lambda job: duration(job.age) if job.age >= 1 else "0 s"),
    _column("with", 10, lambda job: one_line(job.framework or NOT_SUPPORTED), right=False),
    _column("ranks", 5, lambda job: str(job.ranks)),
    _column("workers", 7, lambda job: str(job.workers)),
    _column("cpu", 5, lambda job: NOT_SUPPORTED if job.cpu is None else f"{job.cpu:.1f}"),
    _column("memory", 7, lambda job: size(job.rss)),
    _column("gpu", 14, _gpus, right=False),
    _column("command", 8, lambda job: short_command(job.command), right=False, most=1000),
)
SPARED = frozenset({"age", "user", "cpu", "memory"})
"""Columns that are left out in a narrow terminal."""
FEW_COLUMNS = tuple(column for column in COLUMNS if column.heading not in SPARED)


class PickerScreen(Screen[int]):
    """Lists the jobs; launcher, ranks and workers of a run are one job. The app exits with the chosen pid."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "app.none", "previous job"),
        Binding("down,j", "app.none", "next job"),
        Binding("enter", "choose", "monitor the marked job"),
        Binding("r", "find", "look again"),
        Binding("question_mark,f1", "app.help", "this help"),
        Binding("q,escape,f10", "app.quit", "quit"),
    ]

    def __init__(self, find: Callable[[], list[Candidate]], view: View) -> None:
        super().__init__()
        self._find = find
        self._finding = False
        self.view = view

    def compose(self) -> ComposeResult:
        yield OneLine(lambda _view, _width: Line(" aitop ", BRAND).add("  which one?", DIM), id="header")
        yield CandidatesPane(id="candidates")
        hints = (("↑↓", "choose"), ("⏎", "monitor"), ("r", "look again"), ("?", "help"), ("q", "quit"))
        yield OneLine(lambda view, _width: Line(" ").join(key_hints(hints, view.appearance)), id="hint")

    def on_mount(self) -> None:
        for pane in self.query(Pane):
            pane.show(self.view)
        self.action_find()
        self.set_interval(REFRESH_SECONDS, self.action_find)

    def action_find(self) -> None:
        if self._finding:
            return
        self._finding = True
        in_background(self, "find", self._find, self._found)

    def _found(self, answer: list[Candidate] | Exception) -> None:
        self._finding = False
        pane, failed = self.query_one(CandidatesPane), isinstance(answer, Exception)
        pane.searched, pane.problem = True, str(answer) if failed else None
        pane.candidates = [] if isinstance(answer, Exception) else answer
        pane.redraw()

    def action_choose(self) -> None:
        self.query_one(CandidatesPane).action_choose()

    def on_row_chosen(self, message: RowChosen) -> None:
        self.app.exit(message.row.pid)
