"""Python source in colours. Imported only when source is shown: the lexer is slow to load."""

from __future__ import annotations

from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType  # type: ignore[import-untyped]
from rich.style import Style

from aitop.ui.line import Line
from aitop.ui.palette import TEXT

_COLOURS: tuple[tuple[_TokenType, Style], ...] = (
    (Comment, Style(color="#6b7683", italic=True)),
    (String, Style(color="#a8c690")),
    (Number, Style(color="#d8b48a")),
    (Keyword, Style(color="#c59ad6")),
    (Operator.Word, Style(color="#c59ad6")),
    (Name.Builtin, Style(color="#8cb8d8")),
    (Name.Decorator, Style(color="#d8c48a")),
    (Name.Function, Style(color="#9cc7e8")),
    (Name.Class, Style(color="#9cc7e8")),
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
