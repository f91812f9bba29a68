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
    """A statement, the loops and conditions around it (outermost first), and whether autograd is switched off there.

    `tests` are what the `if`s around it ask.
    """

    statement: ast.stmt
    loops: tuple[Loop, ...]
    no_grad: bool
    conditions: tuple[ast.AST, ...] = ()
    tests: tuple[ast.expr, ...] = ()

    def sure_before(self, other: Place) -> bool:
        """Whether reaching the other statement means that this one has run, as far as conditions go."""
        return other.conditions[: len(self.conditions)] == self.conditions


class _Assignment(NamedTuple):
    place: Place
    value: ast.expr


def places(scope: Scope) -> Iterator[Place]:
    """Every statement of a function or module in the order of lines, without those of functions inside it."""
    decorators = getattr(scope, "decorator_list", ())
    no_grad = any(_WITHOUT_GRAD.search(ast.unparse(one)) for one in decorators)
    for statement in scope.body:
        yield from _from(Place(statement, (), no_grad))


def _from(place: Place) -> Iterator[Place]:
    """A statement and those inside it."""
    statement = place.statement
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    yield place
    no_grad, loops = place.no_grad, place.loops
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        no_grad = no_grad or any(_WITHOUT_GRAD.search(ast.unparse(item.context_expr)) for item in statement.items)
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
        loops = (*loops, statement)
    tests = (*place.tests, statement.test) if isinstance(statement, ast.If) else place.tests
    for condition, inner in _branches(statement):
        conditions = place.conditions if condition is None else (*place.conditions, condition)
        yield from _from(Place(inner, loops, no_grad, conditions, tests))


def _branches(statement: ast.stmt) -> Iterator[tuple[ast.AST | None, ast.stmt]]:
    """The statements directly inside one, each with what stands for its condition; None if it always runs."""
    conditional = isinstance(statement, ast.If)
    for field in ("body", "orelse", "finalbody"):
        inside = getattr(statement, field, [])
        yield from ((inside[0] if conditional else None, one) for one in inside)
    for block in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield from ((block, one) for one in block.body)


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
        self._holding: dict[int, bool] = {}
        self._plain: dict[int, bool] = {}
        for place in statements:
            self._note_assignments(place)
            for node in own_expressions(place.statement):
                if isinstance(node, ast.Call) and last_name(node.func) == "backward":
                    self._note_backward(node)

    def holds(self, value: ast.expr, at: Place) -> bool:
        """Whether the value keeps a graph alive when the statement at `at` runs."""
        if isinstance(value, (ast.Constant, ast.JoinedStr, ast.Compare, ast.Lambda)):
            return False
        if isinstance(value, ast.Call):
            return self._call_holds(value, at)
        if isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            loops_over = {name_of(one.target): one.iter for one in value.generators}
            source = loops_over.get(name_of(value.elt))
            return self.holds(source if source is not None else value.elt, at)
        if isinstance(value, ast.Attribute) and value.attr in _PLAIN_ATTRIBUTES:
            return False
        known = self._known(name_of(value), at)
        if known is not None:
            return known
        if isinstance(value, (ast.Attribute, ast.Subscript)):
            return self.holds(value.value, at)
        return any(self.holds(child, at) for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr))

    def plain(self, value: ast.expr, at: Place) -> bool:
        """Whether the value is surely a number or a tensor without history."""
        if isinstance(value, (ast.Constant, ast.JoinedStr, ast.Compare)):
            return True
        if isinstance(value, ast.Call):
            name = last_name(value.func)
            return name in _PLAIN_METHODS if isinstance(value.func, ast.Attribute) else name in _PLAIN_CALLS
        if isinstance(value, ast.Attribute) and value.attr in _PLAIN_ATTRIBUTES:
            return True
        if isinstance(value, ast.BinOp):
            return self.plain(value.left, at) and self.plain(value.right, at)
        found = self._before(name_of(value), at)
        return bool(found) and all(self._surely_plain(one) for one in found)

    def assigned(self, name: str) -> bool:
        """Whether the scope gives the name a value."""
        return name in self._assigned

    def _known(self, name: str | None, at: Place) -> bool | None:
        """Whether a name may hold a graph at a statement; None if nothing is known of it."""
        found = self._before(name, at)
        if any(self._surely_holds(one) for one in found):
            return True
        if found and all(self._surely_plain(one) for one in found):
            return False
        if name in self._backward:
            return True
        return False if found else None

    # Remembered, since a chain of assignments that use a name twice doubles the work at each link.
    def _surely_holds(self, one: _Assignment) -> bool:
        if id(one) not in self._holding:
            self._holding[id(one)] = not one.place.no_grad and self.holds(one.value, one.place)
        return self._holding[id(one)]

    def _surely_plain(self, one: _Assignment) -> bool:
        if id(one) not in self._plain:
            self._plain[id(one)] = one.place.no_grad or self.plain(one.value, one.place)
        return self._plain[id(one)]

    def _before(self, name: str | None, at: Place) -> list[_Assignment]:
        """The assignments whose value the name may have: back to the latest that did not depend on a condition."""
        found: list[_Assignment] = []
        for one in reversed(self._assigned.get(name or "", ())):
            if one.place.statement.lineno < at.statement.lineno:
                found.append(one)
                if one.place.sure_before(at):
                    break
        return found

    def _call_holds(self, call: ast.Call, at: Place) -> bool:
        name = last_name(call.func)
        attribute = isinstance(call.func, ast.Attribute)
        if name in (_PLAIN_METHODS if attribute else _PLAIN_CALLS) or _METRIC.search(name):
            return False
        if is_model_call(call):
            return True
        parts = [*call.args, *(keyword.value for keyword in call.keywords)]
        if isinstance(call.func, ast.Attribute):
            parts.append(call.func.value)
        return any(self.holds(part, at) for part in parts)

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
            self._assigned.setdefault(name, []).append(_Assignment(place, value))

    def _note_backward(self, call: ast.Call) -> None:
        """`loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`."""
        parts: list[ast.expr] = list(call.args)
        if isinstance(call.func, ast.Attribute):
            base = call.func.value
            parts.extend(base.args if isinstance(base, ast.Call) else [base])
        self._backward.update(name for part in parts if (name := name_of(part)) is not None)
