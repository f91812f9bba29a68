"""The jobs to choose from, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style

from aitop.model.candidate import Candidate
from aitop.model.units import NOT_SUPPORTED, duration, size
from aitop.ui.line import Line, columns, lit, shorten, wrap
from aitop.ui.palette import BRIGHT, DIM, FAINT, LOSS, TEXT
from aitop.ui.view import View
from aitop.ui.widgets.pane import Drawing, Pane
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


class CandidatesPane(Pane):
    """Heading, a row a job, the selected one marked; words where there is none."""

    candidates: Sequence[Candidate] = ()
    selected = 0
    searched = False
    problem: str | None = None

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if self.problem:
            return Drawing([Line(text, LOSS) for text in wrap(self.problem, width)], "AI processes")
        if not self.searched:
            return Drawing([Line("looking for AI processes…", DIM)], "AI processes")
        if not self.candidates:
            return Drawing([Line(text, TEXT) for text in wrap(NOTHING, width)], "AI processes")
        self.top = max(0, min(self.top, self.selected), self.selected + 2 - height)
        rows = [_heading(width)]
        rows += [_row(one, width, number == self.selected) for number, one in enumerate(self.candidates)]
        return Drawing(rows, "AI processes", Line(str(len(self.candidates)), DIM))


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
    """The columns that there is room for; what is left goes to the command."""
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
