"""What single statements do to the length of things: make them longer, or replace, empty or shorten them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal, NamedTuple

from aitop.sources.graph_names import last_name, name_of

_GROWING_METHODS = {"append": 0, "appendleft": 0, "extend": 0, "insert": 1}
_SHRINKING_METHODS = frozenset({"clear", "pop", "popleft", "popitem", "remove", "detach_"})
JOINING_CALLS = frozenset({"cat", "concat", "concatenate", "append", "vstack", "hstack"})


class Growth(NamedTuple):
    """A statement that makes `grown` longer by `value`; `carried`: its graph, by computing it from itself."""

    grown: str
    value: ast.expr
    how: Literal["list", "sum", "key", "carried"]


class Kinds(NamedTuple):
    """What a file has: names of dictionaries, and whether a backward in it keeps graphs for later ones."""

    dictionaries: frozenset[str] = frozenset()
    retains: bool = False


def growth_of(statement: ast.stmt, kinds: Kinds) -> Growth | None:
    """What a statement makes longer, if anything."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        index = _GROWING_METHODS.get(last_name(call.func))
        grown = _held(call.func.value) if isinstance(call.func, ast.Attribute) else None
        return (
            Growth(grown, call.args[index], "list") if grown and index is not None and len(call.args) > index else None
        )
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        grown = name_of(statement.target)
        return Growth(grown, statement.value, _kind(statement.value)) if grown else None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
        found = _grown_by_assignment(target, value, kinds.dictionaries)
        return found if found is not None or not kinds.retains else _carried(target, value)
    return None


def _held(value: ast.expr) -> str | None:
    """The name of what a method is called on: of `x`, or of what holds it in `kept.setdefault(key, []).append(…)`."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "setdefault":
        return name_of(value.func.value)
    return name_of(value)


def _grown_by_assignment(target: ast.expr, value: ast.expr, dictionaries: frozenset[str]) -> Growth | None:
    """`x = x + more`, `x = torch.cat([x, more])`, `known[new_key] = more`."""
    grown = name_of(target)
    if grown is None:
        return None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        if grown in (name_of(value.left), name_of(value.right)):
            more = value.right if name_of(value.left) == grown else value.left
            return Growth(grown, more, _kind(more))
    elif isinstance(value, ast.Call) and last_name(value.func) in JOINING_CALLS:
        parts = [part for one in value.args for part in (one.elts if isinstance(one, (ast.List, ast.Tuple)) else [one])]
        more = next((part for part in parts if name_of(part) != grown), value)
        return Growth(grown, more, "list") if any(name_of(part) == grown for part in parts) else None
    if isinstance(target, ast.Subscript) and not isinstance(target.slice, (ast.Constant, ast.Slice)):
        whole = name_of(target.value)
        return Growth(whole, value, "key") if whole in dictionaries and whole is not None else None
    return None


def _carried(target: ast.expr, value: ast.expr) -> Growth | None:
    """`state = cell(x, state)`, `out, (h, c) = lstm(x, (h, c))`: computed from itself and something new."""
    if not isinstance(value, ast.Call):
        return None
    parts = [*value.args, *(keyword.value for keyword in value.keywords)]
    handed = [text for part in parts for text in targets(part)]
    both = [text for text in targets(target) if text in handed]
    return Growth(both[0], value, "carried") if both and len(parts) > 1 else None


def _kind(value: ast.expr) -> Literal["list", "sum"]:
    return "list" if isinstance(value, (ast.List, ast.Tuple, ast.ListComp)) else "sum"


def emptied(statement: ast.stmt, kinds: Kinds) -> Iterator[str]:
    """What a statement replaces, deletes or takes from."""
    growth = growth_of(statement, kinds)
    if growth is None:
        yield from (text for text, _ in assignments(statement))
    if isinstance(statement, ast.Delete):
        for target in statement.targets:
            whole = target.value if isinstance(target, ast.Subscript) else target
            yield from targets(whole)
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        yield from targets(statement.target)
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SHRINKING_METHODS:
        yield from targets(value.func.value)


def assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement gives a new value, with it."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            # x[:] = … replaces the content; x[key] = … does not.
            whole = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)
            chosen = target.value if whole and isinstance(target, ast.Subscript) else target
            yield from _paired(chosen, statement.value)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield from ((text, statement.value) for text in targets(statement.target))


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    many = (ast.Tuple, ast.List)
    if isinstance(target, many) and isinstance(value, many) and len(target.elts) == len(value.elts):
        for one, its in zip(target.elts, value.elts, strict=True):
            yield from _paired(one, its)
    else:
        yield from ((text, value) for text in targets(target))


def targets(target: ast.expr) -> Iterator[str]:
    """The names in a target of an assignment."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from targets(part)
    elif (text := name_of(target)) is not None:
        yield text


def covers(text: str, grown: str) -> bool:
    """Whether replacing `text` replaces `grown` too: itself, or what holds it."""
    return grown == text or grown.startswith((f"{text}.", f"{text}["))


def retains(call: ast.Call) -> bool:
    """Whether a backward keeps the graph that it went through, or may."""
    kept = ("retain_graph", "create_graph")
    return any(one.arg in kept and not _plainly_not(one.value) for one in call.keywords)


def _plainly_not(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value
