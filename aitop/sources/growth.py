"""Reading a training script for what grows: lists that are only ever appended to, sums that keep a graph alive.

A reading, not a proof: names and shapes of code decide, so a site is a place to look at when memory is seen to
grow, and never a finding by itself. The order of lines stands for the order of execution.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from aitop.model.snapshot import GrowthSite
from aitop.model.text import printable
from aitop.sources.graph_names import GraphNames, Loop, Place, Scope, is_model_call, last_name, name_of, places

_GROWING_METHODS = {"append": 0, "appendleft": 0, "extend": 0, "insert": 1}
_SHRINKING_METHODS = frozenset({"clear", "pop", "popleft", "popitem", "remove"})
_JOINING_CALLS = frozenset({"cat", "concat", "concatenate", "append", "vstack", "hstack"})
_STEP_FUNCTION = re.compile(r"step|^__call__$|^__getitem__$|^forward$|batch_(end|start)|train_one")
_TRAINING_CALL = re.compile(r"backward$|(optim|opt|scaler|engine)\w*\.step$|train\w*_step$|train_(one_)?batch$")
_OVER_DATA = re.compile(r"loader|batches|epoch|steps|iter", re.IGNORECASE)

Rank = tuple[bool, bool, bool, bool]
"""Sorts sites, the likeliest leak first: keeps a graph; no mere key of a dict; in a training loop; never emptied."""


class _Growth(NamedTuple):
    """A statement that makes `grown` longer by `value`."""

    grown: str
    value: ast.expr
    how: Literal["list", "sum", "key"]


class _File(NamedTuple):
    """What holds for a whole file: bounded queues, dictionaries, and what each function empties."""

    bounded: frozenset[str]
    dictionaries: frozenset[str]
    emptied: dict[str, frozenset[str]]


def find_growth(source: str, file: str) -> list[tuple[Rank, GrowthSite]]:
    """The growth sites of one source text with their ranks. Text that is not Python has none."""
    try:
        tree = ast.parse(source)
        scopes = [(scope, name, list(places(scope))) for scope, name in _scopes(tree)]
        known = _about(scopes)
        lines = source.splitlines()
        return [
            (rank, _site(file, place.statement.lineno, name, lines, keeps_graph=not rank[0]))
            for scope, name, inside in scopes
            for place, rank in _growing(scope, name, inside, known)
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _site(file: str, line: int, function: str, lines: Sequence[str], *, keeps_graph: bool) -> GrowthSite:
    text = printable(lines[line - 1]).strip()[:200] if line <= len(lines) else ""
    return GrowthSite(file=file, line=line, function=function, text=text, keeps_graph=keeps_graph)


def _scopes(tree: ast.Module) -> Iterator[tuple[Scope, str]]:
    """The module and every function in it with its qualified name."""
    yield tree, "<module>"
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, prefix = waiting.pop(0)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield child, prefix + child.name
                waiting.append((child, f"{prefix}{child.name}.<locals>."))
            elif isinstance(child, ast.ClassDef):
                waiting.append((child, f"{prefix}{child.name}."))
            elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
                waiting.append((child, prefix))


def _about(scopes: Sequence[tuple[Scope, str, list[Place]]]) -> _File:
    bounded, dictionaries = set(), set()
    for _, _, inside in scopes:
        for target, value in (pair for place in inside for pair in _assignments(place.statement)):
            call = last_name(value.func) if isinstance(value, ast.Call) else ""
            if call == "deque" and isinstance(value, ast.Call) and (len(value.args) > 1 or value.keywords):
                bounded.add(target)
            if isinstance(value, ast.Dict) or call in ("dict", "defaultdict", "OrderedDict"):
                dictionaries.add(target)
    emptied = {
        name: frozenset(text for place in inside for text in _emptied(place.statement, frozenset()))
        for _, name, inside in scopes
        if not name.endswith("__init__")
    }
    return _File(frozenset(bounded), frozenset(dictionaries), emptied)


class _Scope(NamedTuple):
    """One function, or the module, with the names of its statements."""

    node: Scope
    name: str
    names: GraphNames
    known: _File

    def owns(self, grown: str) -> bool:
        """Whether the thing is the function's own and gone when it returns."""
        root = re.split(r"[.\[]", grown, maxsplit=1)[0]
        if isinstance(self.node, ast.Module) or not self.names.assigned(root):
            return False
        declared = (node for node in ast.walk(self.node) if isinstance(node, (ast.Global, ast.Nonlocal)))
        return not any(root in node.names for node in declared)

    def emptied_elsewhere(self, grown: str) -> bool:
        """Whether another method empties an attribute, as at the end of an epoch."""
        texts = (text for name, texts in self.known.emptied.items() if name != self.name for text in texts)
        return grown.startswith("self.") and any(_covers(text, grown) for text in texts)

    def runs_every_step(self, grown: str) -> bool:
        """Whether the function is called once a step and keeps the thing from call to call."""
        if isinstance(self.node, ast.Module) or self.owns(grown):
            return False
        here = self.known.emptied.get(self.name, frozenset())
        function = self.name.rpartition(".")[2]
        return _STEP_FUNCTION.search(function) is not None and not any(_covers(text, grown) for text in here)


def _growing(node: Scope, name: str, inside: list[Place], known: _File) -> Iterator[tuple[Place, Rank]]:
    """The growing statements of a scope that nothing empties in time."""
    scope = _Scope(node, name, GraphNames(inside), known)
    for place in inside:
        growth = _growth_of(place.statement, known.dictionaries)
        if growth is None or growth.grown in known.bounded or scope.emptied_elsewhere(growth.grown):
            continue
        holds = not place.no_grad and scope.names.holds(growth.value, place)
        if growth.how == "sum" and not holds and not _unsure_loss(growth.value, place, scope.names):
            continue
        found = _where(scope, place, growth.grown)
        if found is not None:
            in_training, never_emptied = found
            yield place, (not holds, growth.how == "key", not in_training, not never_emptied)


def _where(scope: _Scope, place: Place, grown: str) -> tuple[bool, bool] | None:
    """None if it does not grow over steps, else whether in a training loop, and whether no loop empties it."""
    lasting = [loop for loop in place.loops if not _empties(loop, grown, scope.known)]
    trains = any(_trains(loop) for loop in lasting)
    never_emptied = len(lasting) == len(place.loops)
    over_steps = never_emptied and (not scope.owns(grown) or any(_steps(loop) for loop in lasting))
    if lasting and (trains or over_steps):
        return trains, never_emptied
    return (False, True) if not place.loops and scope.runs_every_step(grown) else None


def _growth_of(statement: ast.stmt, dictionaries: frozenset[str]) -> _Growth | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        index = _GROWING_METHODS.get(last_name(call.func))
        grown = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else None
        return (
            _Growth(grown, call.args[index], "list") if grown and index is not None and len(call.args) > index else None
        )
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        grown = name_of(statement.target)
        return _Growth(grown, statement.value, _kind(statement.value)) if grown else None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return _grown_by_assignment(statement.targets[0], statement.value, dictionaries)
    return None


def _grown_by_assignment(target: ast.expr, value: ast.expr, dictionaries: frozenset[str]) -> _Growth | None:
    """`x = x + more`, `x = torch.cat([x, more])`, `known[new_key] = more`."""
    grown = name_of(target)
    if grown is None:
        return None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        if grown in (name_of(value.left), name_of(value.right)):
            more = value.right if name_of(value.left) == grown else value.left
            return _Growth(grown, more, _kind(more))
    elif isinstance(value, ast.Call) and last_name(value.func) in _JOINING_CALLS:
        parts = [part for one in value.args for part in (one.elts if isinstance(one, (ast.List, ast.Tuple)) else [one])]
        more = next((part for part in parts if name_of(part) != grown), value)
        return _Growth(grown, more, "list") if any(name_of(part) == grown for part in parts) else None
    if isinstance(target, ast.Subscript) and not isinstance(target.slice, (ast.Constant, ast.Slice)):
        whole = name_of(target.value)
        return _Growth(whole, value, "key") if whole in dictionaries and whole is not None else None
    return None


def _kind(value: ast.expr) -> Literal["list", "sum"]:
    return "list" if isinstance(value, (ast.List, ast.Tuple, ast.ListComp)) else "sum"


def _unsure_loss(value: ast.expr, at: Place, names: GraphNames) -> bool:
    """Whether a sum's part is called a loss and nothing says that it is a plain number."""
    text = name_of(value)
    return text is not None and "loss" in text.lower() and not names.plain(value, at)


def _empties(loop: Loop, grown: str, known: _File) -> bool:
    """Whether something in a loop makes the thing anew, empties it or takes from it."""
    target = () if isinstance(loop, ast.While) else _targets(loop.target)
    inside = (text for place in _inside(loop) for text in _emptied(place, known.dictionaries))
    return any(_covers(text, grown) for text in (*target, *inside))


def _inside(loop: Loop) -> Iterator[ast.stmt]:
    scope = ast.Module(body=[*loop.body, *loop.orelse], type_ignores=[])
    return (place.statement for place in places(scope))


def _emptied(statement: ast.stmt, dictionaries: frozenset[str]) -> Iterator[str]:
    """What a statement replaces, deletes or takes from."""
    if _growth_of(statement, dictionaries) is None:
        yield from (text for text, _ in _assignments(statement))
    if isinstance(statement, ast.Delete):
        for target in statement.targets:
            whole = target.value if isinstance(target, ast.Subscript) else target
            yield from _targets(whole)
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        yield from _targets(statement.target)
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SHRINKING_METHODS:
        yield from _targets(value.func.value)


def _assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            # x[:] = … replaces the content; x[key] = … does not.
            whole = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)
            chosen = target.value if whole and isinstance(target, ast.Subscript) else target
            yield from ((text, statement.value) for text in _targets(chosen))
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield from ((text, statement.value) for text in _targets(statement.target))


def _targets(target: ast.expr) -> Iterator[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _targets(part)
    elif (text := name_of(target)) is not None:
        yield text


def _covers(text: str, grown: str) -> bool:
    """Whether replacing `text` replaces `grown` too: itself, or what holds it."""
    return grown == text or grown.startswith((f"{text}.", f"{text}["))


def _calls(loop: Loop) -> Iterator[ast.Call]:
    return (node for node in ast.walk(loop) if isinstance(node, ast.Call))


def _trains(loop: Loop) -> bool:
    """Whether a loop runs training steps: a backward or an optimizer's step in it."""
    return any(_TRAINING_CALL.search(name_of(call.func) or last_name(call.func)) for call in _calls(loop))


def _steps(loop: Loop) -> bool:
    """Whether a loop goes over batches or steps, or never ends."""
    if isinstance(loop, ast.While):
        return True
    return _OVER_DATA.search(ast.unparse(loop.iter)) is not None or any(is_model_call(call) for call in _calls(loop))
