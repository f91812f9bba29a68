"""Tells which functions a line can have called, by the names that its statement mentions.

Names are only used to recognise a function where it is called, so it does not matter what they are. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from aitop.sources.code.syntax import FUNCTIONS, Scope, lines_of, parsed, statements
from aitop.stacks.dataflow import innermost

# Statements that call what they do not name.
_IMPLICIT = (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Raise)
# Longer than any file.
_END = 1 << 31
T = TypeVar("T")


@dataclass
class Mentions:
    """The names in a statement, of a compound one in its head, and which of them it calls.

    `implicit`: it calls more than it names, as a loop or a `with` does.
    """

    first: int
    last: int
    names: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    implicit: bool = False


@dataclass
class _Function:
    first: int
    last: int
    statements: list[Mentions] = field(default_factory=list)


@dataclass
class _Kind:
    """Whether the function of these lines is a generator or a coroutine."""

    first: int
    last: int
    generates: bool


class Calls:
    """The calls in one file, of which `text` is None where it cannot be read.

    It is read only as far as asked: in a library's file of thousands of lines, only which functions are generators.
    """

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._at: dict[int, Mentions | None] = {}

    @cached_property
    def _functions(self) -> list[_Function]:
        return self._of_scopes(_read)

    @cached_property
    def _kinds(self) -> list[_Kind]:
        lines = lines_of(self._text or "")
        return self._of_scopes(lambda scope: _Kind(*_lines_of(scope), _generates(scope, lines)))

    def _of_scopes(self, read: Callable[[Scope], T]) -> list[T]:
        """What `read` returns for the module and for each function in it."""
        tree = parsed(self._text) if self._text is not None else None
        try:
            return [read(scope) for scope in _scopes(tree)] if tree is not None else []
        except RecursionError:
            return []

    def at(self, line: int) -> Mentions | None:
        """What the statements of a line mention together; None where there is none."""
        if line not in self._at:
            self._at[line] = self._together(line)
        return self._at[line]

    def _together(self, line: int) -> Mentions | None:
        function = innermost(self._functions, line)
        around = [each for each in function.statements if each.first <= line <= each.last] if function else []
        if not around:
            return None
        return Mentions(
            min(each.first for each in around),
            max(each.last for each in around),
            set().union(*(each.names for each in around)),
            set().union(*(each.called for each in around)),
            any(each.implicit for each in around),
        )

    def generates(self, line: int) -> bool:
        """Whether the function of a line may be a generator or a coroutine: it runs where its values are asked for."""
        kind = innermost(self._kinds, line)
        return kind is None or kind.generates

    def elsewhere(self, line: int, name: str) -> bool:
        """Whether the function that contains a line calls this name on any line."""
        function = innermost(self._functions, line)
        return function is not None and any(name in each.called for each in function.statements)


def _scopes(scope: Scope) -> Iterator[Scope]:
    """A scope and those in it, each before its own."""
    yield scope
    for statement in statements(scope, inner=False):
        if isinstance(statement, FUNCTIONS):
            yield from _scopes(statement)


def _lines_of(scope: Scope) -> tuple[int, int]:
    return (1, _END) if isinstance(scope, ast.Module) else (scope.lineno, scope.end_lineno or _END)


def _generates(scope: Scope, lines: Sequence[str]) -> bool:
    """Whether a scope is a generator or a coroutine. `lines` are those of the file."""
    if isinstance(scope, ast.AsyncFunctionDef):
        return True
    first, last = _lines_of(scope)
    if not any("yield" in line for line in lines[first - 1 : last]):
        return False
    parts = (part for statement in statements(scope, inner=False) for part in _own_expressions(statement))
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for part in parts for node in ast.walk(part))


def _read(scope: Scope) -> _Function:
    """What the statements of a scope mention."""
    return _Function(*_lines_of(scope), [_mentions(statement) for statement in statements(scope, inner=False)])


def _mentions(statement: ast.stmt) -> Mentions:
    parts = list(_own_expressions(statement))
    mentions = Mentions(
        min([statement.lineno, *(part.lineno for part in parts)]),
        max([statement.lineno, *(part.end_lineno or part.lineno for part in parts)]),
        implicit=isinstance(statement, _IMPLICIT),
    )
    nodes = [node for part in parts for node in ast.walk(part)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        # A comprehension iterates, which calls what it does not name.
        mentions.implicit |= isinstance(node, (ast.comprehension, ast.Await))
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
        if name is not None:
            mentions.names.add(name)
            if id(node) in called:
                mentions.called.add(name)
    return mentions


def _own_expressions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions of a statement; of a compound one those of its head, and of a function none."""
    for child in () if isinstance(node, FUNCTIONS) else ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _own_expressions(child)
