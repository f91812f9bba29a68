"""Says which functions a line can have called: what names its statement mentions, and what else they may stand for.

Names are only used to recognise a function where it is called, so it does not matter what they are. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from aitop.sources.code.syntax import FUNCTIONS, Scope, parsed
from aitop.stacks.dataflow import innermost

# Statements that call what they do not name.
_IMPLICIT = (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Raise)
# Longer than any file.
_END = 1 << 31


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
    generates: bool
    statements: list[Mentions] = field(default_factory=list)


class Calls:
    """The calls in one file, of which `text` is None where it cannot be read."""

    def __init__(self, text: str | None) -> None:
        self._functions: list[_Function] = []
        self._at: dict[int, Mentions | None] = {}
        tree = parsed(text) if text is not None else None
        if tree is not None:
            try:
                self._read(tree)
            except RecursionError:
                self._functions = []

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
        function = innermost(self._functions, line)
        return function is None or function.generates

    def elsewhere(self, line: int, name: str) -> bool:
        """Whether the function of a line calls this name."""
        function = innermost(self._functions, line)
        return function is not None and any(name in each.called for each in function.statements)

    def _read(self, scope: Scope) -> None:
        first, last = (1, _END) if isinstance(scope, ast.Module) else (scope.lineno, scope.end_lineno or _END)
        function = _Function(first, last, generates=isinstance(scope, ast.AsyncFunctionDef))
        self._functions.append(function)
        for statement in _statements(scope):
            _note(function, statement)
            if isinstance(statement, FUNCTIONS):
                self._read(statement)


def _note(function: _Function, statement: ast.stmt) -> None:
    """Add what a statement mentions to its function."""
    parts = list(_own_expressions(statement))
    mentions = Mentions(
        min([statement.lineno, *(part.lineno for part in parts)]),
        max([statement.lineno, *(part.end_lineno or part.lineno for part in parts)]),
        implicit=isinstance(statement, _IMPLICIT),
    )
    nodes = [node for part in parts for node in ast.walk(part)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        function.generates |= isinstance(node, (ast.Yield, ast.YieldFrom))
        # A comprehension asks for values.
        mentions.implicit |= isinstance(node, (ast.comprehension, ast.Await))
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
        if name is not None:
            mentions.names.add(name)
            if id(node) in called:
                mentions.called.add(name)
    function.statements.append(mentions)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a scope, without those in functions of its own."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, (ast.expr, *FUNCTIONS)):
            yield from _statements(child)


def _own_expressions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions of a statement; of a compound one those of its head, and of a function none."""
    for child in () if isinstance(node, FUNCTIONS) else ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _own_expressions(child)
