"""Which expressions of a training function still hold an autograd graph, told from names and the order of lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# What gives a plain number, or a tensor without history.
_PLAIN_METHODS = frozenset(
    {"item", "tolist", "numpy", "detach", "detach_", "argmax", "argmin", "eq", "ne", "size", "dim", "numel"}
    | {"int", "long", "bool", "backward", "keys", "format"}
)
_PLAIN_ATTRIBUTES = frozenset({"data", "shape", "dtype", "device", "ndim", "grad", "requires_grad"})
_PLAIN_CALLS = frozenset({"float", "int", "len", "str", "repr", "bool", "round", "isinstance", "range", "type", "id"})
_METRIC = re.compile(r"(^|_)(acc|accuracy|metrics?|score|correct|count|auc|f1|iou)($|_)")
_MODEL = re.compile(
    r"^(?!get_|build_|load_|make_|create_|save_)(\w*_)?"
    r"(model|net[A-Z]?|network|module|criterion|loss|loss_?fn|loss_?func|loss_function|cross_entropy|policy|encoder|decoder)$"
)
_WITHOUT_GRAD = re.compile(r"no_grad|inference_mode|set_grad_enabled\(False\)")

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While


class Place(NamedTuple):
    """A statement, the loops around it (outermost first), and whether autograd is switched off there."""

    statement: ast.stmt
    loops: tuple[Loop, ...]
    no_grad: bool


class _Assignment(NamedTuple):
    line: int
    value: ast.expr
    no_grad: bool


def places(scope: Scope) -> Iterator[Place]:
    """Every statement of a function or module in the order of lines, without those of functions inside it."""
    decorators = getattr(scope, "decorator_list", ())
    yield from _below(scope.body, (), any(_WITHOUT_GRAD.search(ast.unparse(one)) for one in decorators))


def _below(body: Iterable[ast.AST], loops: tuple[Loop, ...], no_grad: bool) -> Iterator[Place]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.stmt):
            yield Place(node, loops, no_grad)
        inner = no_grad
        if isinstance(node, (ast.With, ast.AsyncWith)):
            inner = no_grad or any(_WITHOUT_GRAD.search(ast.unparse(item.context_expr)) for item in node.items)
        around = (*loops, node) if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) else loops
        below = (
            one for one in ast.iter_child_nodes(node) if isinstance(one, (ast.stmt, ast.excepthandler, ast.match_case))
        )
        yield from _below(below, around, inner)


def own_expressions(statement: ast.AST) -> Iterator[ast.AST]:
    """The expressions of a statement, not those of the statements inside it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from ast.walk(child)


def name_of(node: ast.AST | None) -> str | None:
    """A name, attribute chain or element of one as text; None for anything computed."""
    base = node
    while isinstance(base, (ast.Attribute, ast.Subscript)):
        base = base.value
    return ast.unparse(node) if isinstance(base, ast.Name) and node is not None else None


def last_name(function: ast.expr) -> str:
    """The last part of what is called: `step` of `self.optimizer.step`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_model_call(call: ast.Call) -> bool:
    """Whether a call looks like a model's or a loss function's."""
    return bool(call.args or call.keywords) and _MODEL.match(last_name(call.func)) is not None


class GraphNames:
    """The names of one scope, and which of them hold a graph at which line."""

    def __init__(self, statements: Iterable[Place]) -> None:
        self._assigned: dict[str, list[_Assignment]] = {}
        self._backward: set[str] = set()
        for place in statements:
            self._note_assignments(place)
            for node in own_expressions(place.statement):
                if isinstance(node, ast.Call) and last_name(node.func) == "backward":
                    self._note_backward(node)

    def holds(self, value: ast.expr, line: int) -> bool:
        """Whether the value keeps a graph alive when the line runs."""
        if isinstance(value, (ast.Constant, ast.JoinedStr, ast.Compare, ast.Lambda)):
            return False
        if isinstance(value, ast.Call):
            return self._call_holds(value, line)
        if isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            loops_over = {name_of(one.target): one.iter for one in value.generators}
            source = loops_over.get(name_of(value.elt))
            return self.holds(source if source is not None else value.elt, line)
        if isinstance(value, ast.Attribute) and value.attr in _PLAIN_ATTRIBUTES:
            return False
        known = self._known(name_of(value), line)
        if known is not None:
            return known
        if isinstance(value, (ast.Attribute, ast.Subscript)):
            return self.holds(value.value, line)
        return any(self.holds(child, line) for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr))

    def plain(self, value: ast.expr, line: int) -> bool:
        """Whether the value is surely a number or a tensor without history."""
        if isinstance(value, (ast.Constant, ast.JoinedStr, ast.Compare)):
            return True
        if isinstance(value, ast.Call):
            name = last_name(value.func)
            return name in _PLAIN_METHODS if isinstance(value.func, ast.Attribute) else name in _PLAIN_CALLS
        if isinstance(value, ast.Attribute) and value.attr in _PLAIN_ATTRIBUTES:
            return True
        if isinstance(value, ast.BinOp):
            return self.plain(value.left, line) and self.plain(value.right, line)
        found = self._before(name_of(value), line)
        return found is not None and (found.no_grad or self.plain(found.value, found.line))

    def assigned(self, name: str) -> bool:
        """Whether the scope gives the name a value."""
        return name in self._assigned

    def _known(self, name: str | None, line: int) -> bool | None:
        """Whether a name holds a graph at a line; None if nothing is known of it."""
        found = self._before(name, line)
        if found is not None:
            if found.no_grad:
                return False
            if self.holds(found.value, found.line):
                return True
            if self.plain(found.value, found.line):
                return False
        if name in self._backward:
            return True
        return None if found is None else False

    def _before(self, name: str | None, line: int) -> _Assignment | None:
        earlier = [one for one in self._assigned.get(name or "", ()) if one.line < line]
        return earlier[-1] if earlier else None

    def _call_holds(self, call: ast.Call, line: int) -> bool:
        name = last_name(call.func)
        attribute = isinstance(call.func, ast.Attribute)
        if name in (_PLAIN_METHODS if attribute else _PLAIN_CALLS) or _METRIC.search(name):
            return False
        if is_model_call(call):
            return True
        parts = [*call.args, *(keyword.value for keyword in call.keywords)]
        if isinstance(call.func, ast.Attribute):
            parts.append(call.func.value)
        return any(self.holds(part, line) for part in parts)

    def _note_assignments(self, place: Place) -> None:
        statement = place.statement
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                self._note(target, statement.value, place)
        elif isinstance(statement, ast.AugAssign):
            both = ast.BinOp(left=statement.target, op=statement.op, right=statement.value)
            self._note(statement.target, both, place)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._note(statement.target, statement.value, place)

    def _note(self, target: ast.expr, value: ast.expr, place: Place) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
            for index, part in enumerate(target.elts):
                self._note(part, values[index] if values else value, place)
            return
        name = name_of(target)
        if name is not None:
            found = _Assignment(place.statement.lineno, value, place.no_grad)
            self._assigned.setdefault(name, []).append(found)

    def _note_backward(self, call: ast.Call) -> None:
        """`loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`."""
        parts: list[ast.expr] = list(call.args)
        if isinstance(call.func, ast.Attribute):
            base = call.func.value
            parts.extend(base.args if isinstance(base, ast.Call) else [base])
        self._backward.update(name for part in parts if (name := name_of(part)) is not None)
