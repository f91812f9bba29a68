"""The screen about one line of code, and reading the target's own source around a line."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar

import msgspec
from rich.style import Style
from textual.binding import Binding, BindingType

from aitop.diagnosis.fix_edit import SourceAround
from aitop.model.units import percent
from aitop.ui.editor import edit
from aitop.ui.messages import in_background
from aitop.ui.panes.code.call_tree import forest, way_to
from aitop.ui.panes.code.hot_lines import Place, hot_rows
from aitop.ui.panes.verdict import shown_verdicts
from aitop.ui.screens.headed import HeadedScreen
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, CODE_KIND, DIM, FAINT, LOSS, SYNTAX, TEXT, TITLE
from aitop.ui.widgets.line import Line, lit, shorten_left, spread
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import CodeLine, base_name, label, one_line, place, share_text


class Excerpt(msgspec.Struct, frozen=True):
    """Source `lines` around a place: (number, coloured line). None if unreadable or, while `reading`, not yet read."""

    lines: list[tuple[int, Line]] | None
    reading: bool = False


def read_excerpt(
    screen: HeadedScreen, source_around: SourceAround, pid: int, at: CodeLine, done: Callable[[Excerpt], None]
) -> None:
    """Read the lines around a place in a process's source: call `done` at once with an empty excerpt that says
    `reading`, and again with the result.

    The file is read off the UI thread, because it may be slow, gone or huge.
    """
    process = screen.view.process(pid)

    def read() -> Excerpt:
        lines = source_around(process, at.file, at.line) if process is not None else None
        return Excerpt(coloured(lines) if lines else None)

    def answered(answer: Excerpt | Exception) -> None:
        done(answer if isinstance(answer, Excerpt) else Excerpt(None))

    done(Excerpt(None, reading=True))
    in_background(screen, "source", read, answered)


def source_line(number: int, code: Line, guilty: bool, width: int) -> Line:
    """A source line with its number; `guilty` marks the line that the screen is about."""
    line = Line("  ▌" if guilty else "   ", LOSS).add(str(number).rjust(5), BRIGHT if guilty else FAINT).add("  ")
    line = line.join(code).fit(width)
    return lit(line) if guilty else line


def coloured(lines: list[tuple[int, str]]) -> list[tuple[int, Line]]:
    """Numbered lines of Python with syntax colours; the code may begin or end in the middle of a statement."""
    # Imported here because it is slow to load and needed only for source. This does not run in the UI thread.
    from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]  # noqa: PLC0415

    text = "\n".join(line.rstrip("\n") for _, line in lines)
    drawn = [Line()]
    for token, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        for number, piece in enumerate(value.split("\n")):
            if number:
                drawn.append(Line())
            drawn[-1].add(piece, _style(str(token)))
    return [(number, line) for (number, _), line in zip(lines, drawn, strict=False)]


@lru_cache(maxsize=128)
def _style(token: str) -> Style:
    kind = token.removeprefix("Token.")
    return next((style for name, style in SYNTAX.items() if kind == name or kind.startswith(f"{name}.")), TEXT)


class LinePane(Pane):
    """What is known about a line of code: share, verdicts, callers and source.

    `excerpt` is the source, None if it is never read (as in a replay); `notice` says what was just done.
    """

    excerpt: Excerpt | None = None
    notice = ""

    def __init__(self, place: Place, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self._place = place

    def draw(self, view: View, width: int, height: int) -> Drawing:
        above = [self._head(view, width), *self._verdicts(view), *self._callers(width), Line()]
        note = Line(self.notice or "e edit · ↑↓ scroll · esc back", TEXT if self.notice else DIM)
        return Drawing(above + self._source(view, width), place(self._place), note)

    def _head(self, view: View, width: int) -> Line:
        at, share = self._place, self._share(view)
        line = Line(one_line(at.function), BRIGHT)
        if share is not None:
            line.add(f"  {percent(share)}", BRIGHT).add(f" of the samples of {at.who}" if at.who else "", DIM)
        return spread(line.add("  "), Line(shorten_left(at.file, max(8, width - line.width)), FAINT), width)

    def _share(self, view: View) -> float | None:
        """The share of the line in the newest stacks: 0 where they do not have it, None where it never was known."""
        at, stacks = self._place, view.snapshot.stacks if view.snapshot else None
        if stacks is None or at.share is None:
            return at.share
        if at.path:
            way = way_to(forest(stacks, view.pids(), view.who), at.path)
            return way[-1].share if way and way[-1].path == at.path else 0.0
        rows = hot_rows(stacks, view.pids(), view.who)
        return next((row.share for row in rows if row.key == at.key), 0.0)

    def _verdicts(self, view: View) -> list[Line]:
        here = (self._place.file, self._place.line)
        lines = []
        for verdict in shown_verdicts(view):
            if any(where.at == here for where in verdict.where):
                text, style = label(verdict)
                lines.append(Line(text, style).add(f" {one_line(verdict.title)}", TEXT))
        return [Line(), *lines] if lines else []

    def _callers(self, width: int) -> list[Line]:
        if not self._place.above:
            return []
        lines = [Line(), Line("Called by", TITLE)]
        for depth, (function, file, origin) in enumerate(self._place.above):
            kind = CODE_KIND[origin]
            step = Line("  " * min(depth + 1, width // 8)).add("▌", kind.ink).add(one_line(function), TEXT)
            lines.append(step.add(f"  {base_name(file)}", FAINT))
        return lines

    def _source(self, view: View, width: int) -> list[Line]:
        excerpt = self.excerpt
        if excerpt is None or excerpt.reading:
            return [Line("reading the source…" if excerpt else "no source here: only a live run has it", FAINT)]
        if excerpt.lines is None:
            return [Line("source not readable", FAINT)]
        shares = self._shares(view)
        lines = [Line("Source", TITLE).add("   share of the samples of the thread that runs it most", FAINT)]
        for number, code in excerpt.lines:
            share = shares.get(number)
            mark = Line(share_text(share) if share else "    ", BRIGHT)
            lines.append(mark.join(source_line(number, code, number == self._place.line, width - 4)))
        return lines

    def _shares(self, view: View) -> dict[int, float]:
        stacks = view.snapshot.stacks if view.snapshot else None
        shares_by_line: dict[int, float] = {}
        for row in hot_rows(stacks, view.pids()) if stacks else ():
            if row.file == self._place.file:
                shares_by_line[row.line] = max(shares_by_line.get(row.line, 0.0), row.share)
        return shares_by_line


class LineScreen(HeadedScreen):
    """Shows one line of code, over the main screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "edit", "open the line in your editor"),
        Binding("escape,enter,q,o,backspace", "dismiss", "back"),
    ]

    def __init__(self, view: View, place: Place, source_around: SourceAround | None) -> None:
        self.pane = LinePane(place, id="line")
        super().__init__(view, self.pane)
        self._place = place
        self._source_around = source_around

    def take(self, view: View) -> None:
        super().take(view)
        if self.is_mounted:
            self.show()

    def on_mount(self) -> None:
        if self._source_around is not None:
            read_excerpt(self, self._source_around, self._place.pid, self._place, self._show_source)
        self.pane.focus()

    def _show_source(self, excerpt: Excerpt) -> None:
        self.pane.excerpt = excerpt
        self.pane.redraw()

    def action_edit(self) -> None:
        self.pane.notice = edit(self.app, self._place, self.view.process(self._place.pid))
        self.pane.redraw()
