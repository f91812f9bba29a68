"""Which conditions of a script are settings: they come out alike at every step of a run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from aitop.sources.graph_names import Loop, Place, Scope, last_name, name_of
from aitop.sources.growth_statements import assignments, targets
from aitop.sources.stepping import Stepping

_ASKING = frozenset({"getattr", "hasattr", "isinstance", "callable", "bool"})


class Settings:
    """The names of a file, and where each gets its value."""

    def __init__(self, functions: Iterable[tuple[Scope, str, Sequence[Place]]], stepping: Stepping) -> None:
        self._stepping = stepping
        self._names: dict[int, str] = {}
        self._made: set[str] = set()
        self._changed: set[str] = set()
        self._own: dict[int, set[str]] = {}
        for scope, name, inside in functions:
            self._names[id(scope)] = name
            own = self._own.setdefault(id(scope), set(_parameters(scope)))
            for place in inside:
                given = list(_given(place.statement))
                own.update(given)
                once = name.endswith("__init__") or (isinstance(scope, ast.Module) and not place.loops)
                (self._made if once else self._changed).update(given)

    def decides(self, tests: Sequence[ast.expr], scope: Scope, loop: Loop | None) -> int | None:
        """The line of the first of these conditions that is a setting, None if they all vary.

        Seen from within a `loop` of the scope, or, without one, from one call of the function to the next.
        """
        within = _changed_in(loop) if loop is not None else None
        return next((test.lineno for test in tests if self._setting(test, scope, within)), None)

    def _setting(self, test: ast.expr, scope: Scope, within: set[str] | None) -> bool:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return any(self._setting(one, scope, within) for one in test.values)
        if any(isinstance(node, ast.Call) and last_name(node.func) not in _ASKING for node in ast.walk(test)):
            return False
        names = list(_names(test))
        return bool(names) and all(self._stays(name, scope, within) for name in names)

    def _stays(self, name: str, scope: Scope, within: set[str] | None) -> bool:
        root = name.partition(".")[0]
        if root in ("self", "cls"):
            return name in self._made and name not in self._changed
        if within is not None:
            return root not in within and name not in within
        if root in _parameters(scope):
            return self._handed_alike(root, scope)
        return root in self._made and root not in self._own.get(id(scope), ()) and root not in self._changed

    def _handed_alike(self, parameter: str, scope: Scope) -> bool:
        """Whether all who call the function at each step hand over what does not change from step to step."""
        function = self._names[id(scope)]
        values = list(self._stepping.given(function, _position(scope, parameter), parameter))
        return bool(values) and all(
            loop is not None and not {*_names(value), *_roots(value)} & _changed_in(loop) for value, loop in values
        )


def _position(scope: Scope, parameter: str) -> int:
    """Of a parameter, counted from 0 without `self`."""
    if isinstance(scope, ast.Module):
        return 0
    arguments = [one.arg for one in (*scope.args.posonlyargs, *scope.args.args)]
    index = arguments.index(parameter) if parameter in arguments else len(arguments)
    return index - (arguments[:1] in (["self"], ["cls"]))


def _roots(value: ast.expr) -> Iterable[str]:
    return (name.partition(".")[0] for name in _names(value))


def _changed_in(loop: Loop) -> set[str]:
    return {text for node in ast.walk(loop) if isinstance(node, ast.stmt) for text in _given(node)}


def _given(statement: ast.stmt) -> Iterable[str]:
    yield from (text for text, _ in assignments(statement))
    if isinstance(statement, ast.AugAssign):
        yield from targets(statement.target)
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        yield from targets(statement.target)
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        for item in statement.items:
            if item.optional_vars is not None:
                yield from targets(item.optional_vars)


def _parameters(scope: Scope) -> Iterable[str]:
    if isinstance(scope, ast.Module):
        return ()
    every = scope.args
    more = [one for one in (every.vararg, every.kwarg) if one is not None]
    return [one.arg for one in (*every.posonlyargs, *every.args, *every.kwonlyargs, *more)]


def _names(test: ast.expr) -> Iterable[str]:
    """Names and chains of attributes in a condition, the longest of each."""
    if isinstance(test, (ast.Attribute, ast.Name)) and (text := name_of(test)) is not None:
        yield text
        return
    for child in ast.iter_child_nodes(test):
        if isinstance(child, ast.expr):
            yield from _names(child)
