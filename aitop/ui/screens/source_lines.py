"""The target's own source around a line: read off the UI thread, coloured, and drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType
from rich.style import Style
from textual.message import Message

from aitop.ui.theme.palette import (
    BRIGHT,
    FAINT,
    LOSS,
    SYNTAX_BUILTIN,
    SYNTAX_COMMENT,
    SYNTAX_DECORATOR,
    SYNTAX_KEYWORD,
    SYNTAX_NAME,
    SYNTAX_NUMBER,
    SYNTAX_STRING,
    TEXT,
)
from aitop.ui.widgets.line import Line, lit


class SourceRead(Message):
    """The user's numbered lines around a place (file, line), coloured; None when they could not be read."""

    def __init__(self, place: tuple[str, int], lines: list[tuple[int, Line]] | None) -> None:
        super().__init__()
        self.place = place
        self.lines = lines


SourceAround = Callable[[int, str, int], "list[tuple[int, str]] | None"]
"""The target's own source around (pid, file, line) as numbered lines, line 0: all; None when it cannot be read."""


def read_source(source_around: SourceAround, pid: int, place: tuple[str, int]) -> SourceRead:
    """The coloured lines around a place (file, line), as a message. May be slow; never raises."""
    from aitop.ui.syntax import coloured  # noqa: PLC0415 - the lexer is slow to load, and this is not the UI thread

    try:
        lines = source_around(pid, *place)
        return SourceRead(place, coloured(lines) if lines else None)
    except Exception:
        # Whatever keeps the file from being read: the view says that it is not readable.
        return SourceRead(place, None)


@dataclass(frozen=True)
class Excerpt:
    """The user's coloured lines around a place; None when they could not be read, `reading` while that goes on."""

    lines: list[tuple[int, Line]] | None
    reading: bool = False


def source_line(number: int, code: Line, guilty: bool, width: int) -> Line:
    """A numbered line of source, the guilty one marked."""
    line = Line("  ▌" if guilty else "   ", LOSS).add(str(number).rjust(5), BRIGHT if guilty else FAINT).add("  ")
    line = line.join(code).fit(width)
    return lit(line) if guilty else line


_COLOURS: tuple[tuple[_TokenType, Style], ...] = (
    (Comment, SYNTAX_COMMENT),
    (String, SYNTAX_STRING),
    (Number, SYNTAX_NUMBER),
    (Keyword, SYNTAX_KEYWORD),
    (Operator.Word, SYNTAX_KEYWORD),
    (Name.Builtin, SYNTAX_BUILTIN),
    (Name.Decorator, SYNTAX_DECORATOR),
    (Name.Function, SYNTAX_NAME),
    (Name.Class, SYNTAX_NAME),
)


def coloured(lines: list[tuple[int, str]]) -> list[tuple[int, Line]]:
    """Numbered lines of Python with syntax colours; code that is cut in the middle is coloured as far as it goes."""
    text = "\n".join(line.rstrip("\n") for _, line in lines)
    drawn = [Line()]
    for token, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        for number, piece in enumerate(value.split("\n")):
            if number:
                drawn.append(Line())
            drawn[-1].add(piece, _style(token))
    return [(number, line) for (number, _), line in zip(lines, drawn, strict=False)]


def _style(token: _TokenType) -> Style:
    return next((style for kind, style in _COLOURS if token in kind), TEXT)
