"""Python source in colours. Imported only when source is shown: the lexer is slow to load."""

from __future__ import annotations

from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType  # type: ignore[import-untyped]
from rich.style import Style

from aitop.ui.line import Line
from aitop.ui.palette import (
    SYNTAX_BUILTIN,
    SYNTAX_COMMENT,
    SYNTAX_DECORATOR,
    SYNTAX_KEYWORD,
    SYNTAX_NAME,
    SYNTAX_NUMBER,
    SYNTAX_STRING,
    TEXT,
)

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
