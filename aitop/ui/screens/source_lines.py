"""The target's own source around a line: read off the UI thread, coloured, and drawn."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec
from rich.style import Style

from aitop.model.host import ProcessId
from aitop.ui.theme.palette import (
    BRIGHT,
    FAINT,
    LOSS,
    SYNTAX_BUILTIN,
    SYNTAX_COMMENT,
    SYNTAX_KEYWORD,
    SYNTAX_NUMBER,
    SYNTAX_STRING,
    TEXT,
)
from aitop.ui.widgets.line import Line, lit

SourceAround = Callable[[ProcessId, str, int], "list[tuple[int, str]] | None"]
"""The source of a process around (process, file, line) as numbered lines, line 0: all; None when it cannot be read."""


class Excerpt(msgspec.Struct, frozen=True):
    """The user's coloured lines around a place; None when they could not be read, `reading` while that goes on."""

    lines: list[tuple[int, Line]] | None
    reading: bool = False

    @classmethod
    def around(cls, source_around: SourceAround, process: ProcessId | None, file: str, line: int) -> Excerpt:
        """Read the lines around a place, of a process that is there. May be slow; never raises."""
        try:
            lines = source_around(process, file, line) if process is not None else None
            return cls(coloured(lines) if lines else None)
        except Exception:
            # Whatever keeps the file from being read: the screen says that it is not readable.
            return cls(None)


def source_line(number: int, code: Line, guilty: bool, width: int) -> Line:
    """A numbered line of source, the guilty one marked."""
    line = Line("  ▌" if guilty else "   ", LOSS).add(str(number).rjust(5), BRIGHT if guilty else FAINT).add("  ")
    line = line.join(code).fit(width)
    return lit(line) if guilty else line


SYNTAX = {
    "Comment": SYNTAX_COMMENT,
    "Literal.String": SYNTAX_STRING,
    "Literal.Number": SYNTAX_NUMBER,
    "Keyword": SYNTAX_KEYWORD,
    "Operator.Word": SYNTAX_KEYWORD,
    "Name.Builtin": SYNTAX_BUILTIN,
    "Name.Decorator": SYNTAX_NUMBER,
    "Name.Function": SYNTAX_BUILTIN,
    "Name.Class": SYNTAX_BUILTIN,
}
"""Styles by kind of Pygments token; a kind includes those below it."""


def coloured(lines: list[tuple[int, str]]) -> list[tuple[int, Line]]:
    """Numbered lines of Python with syntax colours. Code that begins or ends in the middle is coloured too."""
    # The lexer takes long to load, and is needed only for source. This is not the UI thread.
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
