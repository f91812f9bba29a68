"""The syntax tree of a text that anybody may have written, without harm to the process that reads it."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Iterator

LARGEST_PARSED = 400_000
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
# Up to Python 3.10 the parser makes its tree without a limit to how deep it is, and a thread's stack overflows.
LIMITS_DEPTH = sys.version_info >= (3, 11)
DEEPEST = 10_000
# Which fields of a node hold statements, by its type: to look through all fields and leave out expressions takes three
# to four times as long.
_HOLDING = frozenset({"body", "handlers", "orelse", "finalbody", "cases"})
_BLOCKS: dict[type[ast.AST], tuple[str, ...]] = {
    kind: tuple(field for field in kind._fields if field in _HOLDING)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, (ast.Module, ast.stmt, ast.excepthandler, ast.match_case))
}
_FLAT = frozenset(",:=)]}")
_LINE_END = re.compile(r"\r\n|\r|\n")

# Python's warnings about the code of others would be written into our screen and reports.
_WATCHED = "<watched>"
for _category in (SyntaxWarning, DeprecationWarning):
    warnings.filterwarnings("ignore", category=_category, module=_WATCHED)


def lines_of(text: str) -> list[str]:
    """The lines as Python counts them, without their ends: a form feed, say, ends none."""
    return _LINE_END.split(text)


def parsed(text: str) -> ast.Module | None:
    """The tree of a source text; None for one that is too long, nests too deeply, or is not Python."""
    try:
        if len(text) > LARGEST_PARSED or (not LIMITS_DEPTH and _may_be_deep(text)):
            return None
        return ast.parse(text, _WATCHED)
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None


def statements(node: ast.AST, *, inner: bool = True) -> Iterator[ast.stmt]:
    """Yield the statements below a node, outer ones before inner ones. Not `inner`: without those in functions."""
    for field in _BLOCKS.get(type(node), ()):
        for child in getattr(node, field):
            if isinstance(child, ast.stmt):
                yield child
            if inner or not isinstance(child, FUNCTIONS):
                yield from statements(child, inner=inner)


def _may_be_deep(source: str) -> bool:
    """Whether a statement has more than DEEPEST operators and brackets: `a.b.c`, `1 + 1 + 1` and `f()()()` nest."""
    if len(source) < DEEPEST:
        return False
    count = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            count = 0
        elif token.type == tokenize.OP and token.string not in _FLAT:
            count += 1
            if count > DEEPEST:
                return True
    return False
