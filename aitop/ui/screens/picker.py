"""Choose one of the AI jobs on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.model.candidate import Candidate
from aitop.model.units import NOT_SUPPORTED, duration, size
from aitop.ui.messages import in_background
from aitop.ui.screens.help import HelpScreen, our_bindings
from aitop.ui.state import View
from aitop.ui.theme.palette import BRAND, BRIGHT, DIM, FAINT, LOSS, TEXT
from aitop.ui.widgets.line import Line, columns, key_hints, lit, shorten, wrap
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.widgets.row_pane import RowPane
from aitop.ui.words import one_line, short_command

ROOMY = 110
COLUMNS = (
    ("pid", 8, True),
    ("user", 10, False),
    ("age", 10, True),
    ("with", 10, False),
    ("ranks", 5, True),
    ("workers", 7, True),
    ("cpu", 5, True),
    ("memory", 7, True),
    ("gpu", 14, False),
    ("command", 0, False),
)
"""Heading, width in cells (0: what is left), and whether it is set at the right."""
SPARED = frozenset({"age", "user", "cpu", "memory"})
"""Left out where there is little room."""
NOTHING = (
    "There is no AI process on this machine: nothing uses a GPU, and no process has torch, JAX or TensorFlow loaded. "
    "Start one and it will show up here, or try aitop demo."
)


class CandidatesPane(RowPane[Candidate]):
    """Heading, a row a job, the selected one marked; words where there is none."""

    candidates: Sequence[Candidate] = ()
    searched = False
    problem: str | None = None

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if self.problem:
            return Drawing([Line(text, LOSS) for text in wrap(self.problem, width)], "AI processes")
        if not self.searched:
            return Drawing([Line("looking for AI processes…", DIM)], "AI processes")
        if not self.candidates:
            return Drawing([Line(text, TEXT) for text in wrap(NOTHING, width)], "AI processes")
        rows = [_heading(width)] if height > 1 else []
        rows += [_row(one, width, at) for one, at in self.take(self.candidates, height - 1)]
        return Drawing(rows, "AI processes", Line(self.in_sight() or str(len(self.candidates)), DIM))

    def key_of(self, row: Candidate) -> int:
        return row.pid

    def action_choose(self, stay: bool = False) -> None:
        candidate = self.row()
        if candidate is not None:
            self.app.exit(candidate.pid)


def _heading(width: int) -> Line:
    return Line("  ").join(_cells(width - 2, [heading for heading, _, _ in COLUMNS], FAINT))


def _row(candidate: Candidate, width: int, selected: bool) -> Line:
    texts = [
        str(candidate.pid),
        candidate.user,
        duration(candidate.age) if candidate.age >= 1 else "0 s",
        candidate.framework or NOT_SUPPORTED,
        str(candidate.ranks),
        str(candidate.workers),
        NOT_SUPPORTED if candidate.cpu is None else f"{candidate.cpu:.1f}",
        size(candidate.rss),
        _gpus(candidate),
        short_command(candidate.command),
    ]
    line = Line("▸ " if selected else "  ", BRIGHT)
    line.join(_cells(width - 2, texts, TEXT if candidate.mine else DIM))
    return lit(line.fit(width)) if selected else line


def _cells(width: int, texts: Sequence[str], style: Style) -> Line:
    narrow = width < ROOMY
    cells: list[tuple[Line, int]] = []
    for (heading, cell, right), text in zip(COLUMNS, texts, strict=True):
        if narrow and heading in SPARED:
            continue
        cell_width = cell or max(8, width - sum(one + 2 for _, one in cells))
        fitted = shorten(one_line(text), cell_width)
        cells.append((Line(fitted.rjust(cell_width) if right else fitted, style), cell_width))
    return columns(cells)


def _gpus(candidate: Candidate) -> str:
    if not candidate.gpus:
        return NOT_SUPPORTED
    numbers = ",".join(map(str, candidate.gpus)) if len(candidate.gpus) <= 3 else f"{len(candidate.gpus)} devices"
    return numbers if candidate.gpu_memory is None else f"{numbers}  {size(candidate.gpu_memory)}"


REFRESH_SECONDS = 3.0


class OneLine(Pane):
    """The picker's first line, or its last one."""

    framed = False

    def __init__(self, line: Line, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id, focusable=False)
        self._line = line

    def draw(self, view: View, width: int, height: int) -> Drawing:
        return Drawing([self._line])


class PickerScreen(Screen[int]):
    """A row a job; launcher, ranks and workers are one job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "none", "previous job"),
        Binding("down,j", "none", "next job"),
        Binding("enter", "choose", "monitor the marked job"),
        Binding("r", "find", "look again"),
        Binding("question_mark", "help", "this help"),
        Binding("q,escape", "leave", "quit"),
    ]

    def __init__(self, find: Callable[[], list[Candidate]], view: View) -> None:
        super().__init__()
        self._find = find
        self._finding = False
        self.view = view

    def compose(self) -> ComposeResult:
        yield OneLine(Line(" aitop ", BRAND).add("  which one?", DIM), id="header")
        yield CandidatesPane(id="candidates")
        hints = (("↑↓", "choose"), ("⏎", "monitor"), ("r", "look again"), ("?", "help"), ("q", "quit"))
        yield OneLine(Line(" ").join(key_hints(hints)), id="hint")

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

    def action_none(self) -> None:
        """The list obeys these keys itself; here they are only described."""

    def action_choose(self) -> None:
        self.query_one(CandidatesPane).action_choose()

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(our_bindings(self), self.view))

    def action_leave(self) -> None:
        self.app.exit()
