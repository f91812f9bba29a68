"""Reads the user's code for lines that add to something at every step, to name the line of a measured leak.

A reading, not a proof: a site says where to look once memory is seen to grow, and is never a finding by itself. Of all
committed recordings three owe their line to it: leak, bridge_strain and attention_maps. The order of lines stands for
the order of execution, and a call of `update` for every function of that name in the files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from aitop.model.snapshot import GrowthSite
from aitop.model.text import printable
from aitop.sources.code.syntax import BUILTINS, FUNCTIONS, parsed

LONGEST_TEXT = 200

# Methods that add, with the place of what they add among their arguments, and methods that take away.
_ADDING = {"append": 0, "appendleft": 0, "extend": 0, "insert": 1}
_TAKING = frozenset({"clear", "pop", "popleft", "popitem", "remove"})
_DICTIONARIES = frozenset({"dict", "defaultdict", "OrderedDict"})
_HOOKING = re.compile(r"^register_\w*hook$")
# Methods that Python or a framework calls at each step; what some of them return goes into a backward.
_STEP_METHOD = re.compile(r"(^|_)step($|_)|^__call__$|^__getitem__$|^forward$|batch_(end|start)")
_LOSS_METHODS = frozenset({"training_step", "compute_loss"})
# What gives a plain number, or a tensor without history.
_PLAIN = frozenset(
    {"item", "tolist", "numpy", "detach", "detach_", "argmax", "argmin", "eq", "ne", "size", "dim", "numel", "keys"}
    | {"int", "long", "bool", "backward", "format", "float", "len", "str", "repr", "round", "isinstance", "range"}
)

_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_OF_FLAGS = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp, ast.Not, ast.BoolOp, ast.boolop),
    *(ast.Compare, ast.Is, ast.IsNot, ast.expr_context),
)

_Rank = tuple[bool, bool, bool]
"""Sorts sites, the likeliest leak first: keeps a graph; no mere key of a dict; in a training loop."""


class _Growth(NamedTuple):
    """A statement that makes `grown` longer by `value`, within these loops, the outermost first.

    `graph`: the value keeps the graph of a step alive.
    """

    grown: str
    value: ast.expr
    how: Literal["list", "sum", "key"]
    line: int
    loops: tuple[ast.stmt, ...] = ()
    graph: bool = False


def growth_sites(texts: Mapping[str, str | None]) -> tuple[GrowthSite, ...]:
    """The lines in these files that add to something step by step, the likeliest leak first."""
    trees = {file: tree for file, text in texts.items() if text is not None and (tree := parsed(text)) is not None}
    try:
        models = frozenset(name for tree in trees.values() for scope, _ in _named(tree) for name in _models(scope))
        files = {
            file: [_Function(node, name, *_containers(tree), models) for node, name in _named(tree)]
            for file, tree in trees.items()
        }
        calls = _Calls([function for functions in files.values() for function in functions])
        ranked = [
            (rank, _site(file, texts[file] or "", function, growth))
            for file, functions in files.items()
            for function in functions
            for growth in function.growths
            if (rank := _rank(growth, function, functions, calls)) is not None
        ]
    except (RecursionError, MemoryError):
        return ()
    return tuple(site for _, site in sorted(ranked, key=lambda pair: pair[0]))


def _site(file: str, text: str, function: _Function, growth: _Growth) -> GrowthSite:
    lines = text.splitlines()
    line = lines[growth.line - 1] if growth.line <= len(lines) else ""
    shown = printable(line).strip()[:LONGEST_TEXT]
    return GrowthSite(file=file, line=growth.line, function=function.name, text=shown, keeps_graph=growth.graph)


def _rank(growth: _Growth, function: _Function, of_file: Sequence[_Function], calls: _Calls) -> _Rank | None:
    """A key that sorts the likeliest leaks first; None where something empties what grows, or makes it anew."""
    grown, loops, key = growth.grown, growth.loops, growth.how == "key"
    others = [other for other in of_file if other is not function and not other.name.endswith("__init__")]
    if grown.startswith("self.") and any(other.empties(grown) for other in others):
        return None
    lasting = [loop for loop in loops if not function.empties(grown, loop)]
    trains = any(map(calls.trains, lasting))
    called = calls.runs_at_steps(function) and not function.empties(grown)
    if key and calls.hooks(function):
        return None
    if not trains and (len(lasting) < len(loops) or function.owns(grown) or not (lasting or called)):
        return None
    return not growth.graph, key, not trains


class _Function:
    """What a function (or a module outside of its functions) adds to and empties, in the order of its lines.

    `models` are the names of what computes a value that a backward starts from. Of the file's names `dictionaries` are
    dicts, and `queues` have a greatest length.
    """

    def __init__(
        self, node: _Scope, name: str, dictionaries: set[str], queues: set[str], models: frozenset[str]
    ) -> None:
        self.node, self.name = node, name
        self.growths: list[_Growth] = []
        self._dictionaries, self._queues, self._models = dictionaries, queues, models
        # Names that are emptied, with the loops around.
        self._emptied: list[tuple[str, tuple[ast.stmt, ...]]] = []
        self._assigned: set[str] = set()
        # Whether a name holds a graph at the line that is read; it does where a backward starts from it.
        self._graph = {text: True for start in _starts(node) if (text := _name_of(start)) is not None}
        self._read(node.body, (), flagged=False)

    def owns(self, grown: str) -> bool:
        """Whether `grown` is created by the function and gone when it returns."""
        return not isinstance(self.node, ast.Module) and re.split(r"[.\[]", grown, maxsplit=1)[0] in self._assigned

    def empties(self, grown: str, loop: ast.stmt | None = None) -> bool:
        """Whether a statement of the function, or of `loop`, replaces `grown` or what holds it, or takes from it."""
        return any(
            (loop is None or loop in loops) and (grown == name or grown.startswith((f"{name}.", f"{name}[")))
            for name, loops in self._emptied
        )

    def _read(self, body: Sequence[ast.stmt], loops: tuple[ast.stmt, ...], *, flagged: bool) -> None:
        """Read statements; `flagged` ones stand under a condition that comes out alike at every step."""
        for statement in body:
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                continue
            within = (*loops, statement) if isinstance(statement, _LOOPS) else loops
            self._note(statement, within, flagged=flagged)
            if isinstance(statement, ast.If):
                flag = flagged or _is_flag(statement.test)
                before = dict(self._graph)
                self._read(statement.body, within, flagged=flag)
                either, self._graph = self._graph, before
                self._read(statement.orelse, within, flagged=flag)
                # What holds a graph after one of both branches may hold it.
                self._graph |= {name: held or self._graph.get(name, False) for name, held in either.items()}
                continue
            blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
            blocks += [block.body for block in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))]
            for block in blocks:
                self._read(block, within, flagged=flagged)

    def _note(self, statement: ast.stmt, loops: tuple[ast.stmt, ...], *, flagged: bool) -> None:
        growth = _growth_of(statement)
        key = growth is not None and growth.how == "key"
        if growth is not None and growth.grown not in self._queues and (not key or growth.grown in self._dictionaries):
            graph = self._holds(growth.value)
            # A sum of numbers is a number.
            if graph or growth.how != "sum":
                self.growths.append(growth._replace(loops=loops, graph=graph))
        if not flagged and (growth is None or key):
            self._emptied += [(name, loops) for name in _emptied(statement)]
        for name, given in _assignments(statement):
            self._assigned.add(name)
            self._graph[name] = self._holds(given)

    def _holds(self, value: ast.expr) -> bool:
        """Whether a value keeps a graph alive, as far as that is known."""
        if isinstance(value, ast.Call):
            name = _last_name(value.func)
            if name in _PLAIN or name in self._models:
                return name not in _PLAIN
        known = self._graph.get(_name_of(value) or "")
        if known is not None:
            return known
        parts = (part.value if isinstance(part, ast.keyword) else part for part in ast.iter_child_nodes(value))
        return any(self._holds(part) for part in parts if isinstance(part, ast.expr))


class _Calls:
    """Who calls whom in some files: which loops make steps, and which functions run at each of them."""

    def __init__(self, functions: Sequence[_Function]) -> None:
        called = [(_short(function), _called_names(function.node)) for function in functions]
        # What makes steps, by calling what does; the loops that do, with what they call; and what that calls.
        self._training = {"backward", "step"}
        while more := {name for name, names in called if names & self._training} - self._training:
            self._training |= more
        nodes = (node for function in functions for node in _own_nodes(function.node))
        loops = {node: _called_names(node) for node in nodes if isinstance(node, _LOOPS)}
        self._training_loops = {loop: names for loop, names in loops.items() if names & self._training}
        self._running = {name for names in self._training_loops.values() for name in names}
        self._hooks = {name for function in functions for name in _hooked(function.node, functions)}
        self._running |= self._hooks
        while more := {each for name, names in called if name in self._running for each in names} - self._running:
            self._running |= more

    def trains(self, loop: ast.stmt) -> bool:
        """Whether a loop calls a backward or an optimizer, or a function that does."""
        return loop in self._training_loops

    def hooks(self, function: _Function) -> bool:
        """Whether a module or tensor calls the function."""
        return _short(function) in self._hooks

    def runs_at_steps(self, function: _Function) -> bool:
        """Whether a function runs at each step."""
        name = _short(function)
        runs = name in self._running or _STEP_METHOD.search(name) is not None
        return runs and not isinstance(function.node, ast.Module)


# --- the functions of a module, and what they call ------------------------------------------------------------------


def _named(tree: ast.AST, prefix: str = "") -> Iterator[tuple[_Scope, str]]:
    """The module and every function in it, with its qualified name."""
    if isinstance(tree, ast.Module):
        yield tree, "<module>"
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, FUNCTIONS):
            yield child, prefix + child.name
            yield from _named(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _named(child, f"{prefix}{child.name}.")
        elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _named(child, prefix)


def _short(function: _Function) -> str:
    return function.name.rpartition(".")[2]


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module without those of functions and classes in it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


def _called_names(scope: ast.AST) -> set[str]:
    return {_last_name(node.func) for node in _own_nodes(scope) if isinstance(node, ast.Call)}


def _hooked(scope: ast.AST, functions: Iterable[_Function]) -> Iterator[str]:
    """Names of functions that are handed to a `register_…_hook`, or that a call made for it may return."""
    for call in _own_nodes(scope):
        for given in call.args if isinstance(call, ast.Call) and _HOOKING.match(_last_name(call.func)) else ():
            if isinstance(given, ast.Call):
                made = f"{_last_name(given.func)}.<locals>."
                yield from (_short(function) for function in functions if made in function.name)
            else:
                yield _last_name(given)


# --- what a statement adds to, empties or assigns -------------------------------------------------------------------


def _growth_of(statement: ast.stmt) -> _Growth | None:
    """The growth of something that has a name, where a statement causes any."""
    holder: ast.expr
    how: Literal["list", "sum", "key"] = "list"
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        holder, value = statement.target, statement.value
        how = "list" if isinstance(value, (ast.List, ast.Tuple, ast.ListComp)) else "sum"
    elif isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Subscript):
        holder, value, how = target.value, statement.value, "key"
        if isinstance(target.slice, (ast.Constant, ast.Slice)):
            return None
    elif isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _ADDING:
        holder, place = call.func.value, _ADDING[call.func.attr]
        if len(call.args) <= place:
            return None
        value = call.args[place]
        # known.setdefault(key, []).append(more)
        if isinstance(holder, ast.Call) and isinstance(holder.func, ast.Attribute) and holder.func.attr == "setdefault":
            holder = holder.func.value
    else:
        return None
    grown = _name_of(holder)
    return None if grown is None else _Growth(grown, value, how, statement.lineno)


def _emptied(statement: ast.stmt) -> Iterator[str]:
    """The names of what a statement replaces, deletes or takes elements from."""
    yield from (name for name, _ in _assignments(statement))
    if isinstance(statement, ast.Delete):
        for target in statement.targets:
            yield from _targets(target.value if isinstance(target, ast.Subscript) else target)
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        yield from _targets(statement.target)
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _TAKING:
        yield from _targets(value.func.value)


def _assignments(statement: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement gives a new value, with it."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from _paired(target, statement.value)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield from _paired(statement.target, statement.value)


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for part, its in zip(target.elts, value.elts, strict=False):
            yield from _paired(part, its)
    else:
        yield from ((name, value) for name in _targets(target))


def _targets(target: ast.expr) -> Iterator[str]:
    """The names in a target of an assignment."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _targets(part)
    elif (name := _name_of(target)) is not None:
        yield name


def _is_flag(test: ast.expr) -> bool:
    """Whether a condition only asks for names and attributes, so that it comes out alike at every step."""
    return all(isinstance(node, _OF_FLAGS) for node in ast.walk(test))


def _containers(tree: ast.Module) -> tuple[set[str], set[str]]:
    """The names of dictionaries in a file, and of queues with a greatest length."""
    dictionaries, queues = set(), set()
    for name, value in (pair for node in ast.walk(tree) for pair in _assignments(node)):
        made = _last_name(value.func) if isinstance(value, ast.Call) else ""
        if isinstance(value, ast.Dict) or made in _DICTIONARIES:
            dictionaries.add(name)
        elif made == "deque" and isinstance(value, ast.Call) and (len(value.args) > 1 or value.keywords):
            queues.add(name)
    return dictionaries, queues


# --- what a backward starts from ------------------------------------------------------------------------------------


def _starts(scope: ast.AST) -> Iterator[ast.expr]:
    """What a backward starts from: `loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`.

    What a framework goes backward from is returned to it.
    """
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and _last_name(node.func) == "backward":
            base = node.func.value if isinstance(node.func, ast.Attribute) else None
            yield from node.args
            yield from base.args if isinstance(base, ast.Call) else [base] if base is not None else []
        elif isinstance(node, ast.Return) and node.value is not None and getattr(scope, "name", "") in _LOSS_METHODS:
            yield node.value


def _models(scope: _Scope) -> set[str]:
    """The names of what this function calls to compute a value that a backward starts from: a loss and a model.

    The first argument of a loss is what the model made, in torch's signatures. Methods of values, such as `x.view()`,
    are none.
    """
    given: dict[str, list[ast.expr]] = {}
    for node in ast.walk(scope):
        for name, value in _assignments(node):
            given.setdefault(name, []).append(value)
        for name in _targets(node.target) if isinstance(node, (ast.For, ast.AsyncFor)) else ():
            given.setdefault(name, [])
    models: set[str] = set()

    def visit(value: ast.expr, calls: int) -> None:
        parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
        if isinstance(value, ast.Call):
            of_value = isinstance(value.func, ast.Attribute) and (_name_of(value.func.value) or "") in {"", *given}
            if not of_value and (name := _last_name(value.func)) not in _PLAIN | BUILTINS:
                models.add(name)
            calls, parts = calls - (not of_value), [value.func] if of_value else value.args[:1]
        for part in given.pop(_name_of(value) or "", parts) if calls else ():
            visit(part, calls)

    for start in _starts(scope):
        visit(start, 2)
    return models


# --- names ----------------------------------------------------------------------------------------------------------


def _name_of(node: ast.AST | None) -> str | None:
    """A name, attribute chain or element of one as text; None for anything computed."""
    base = node
    while isinstance(base, (ast.Attribute, ast.Subscript)):
        base = base.value
    return ast.unparse(node) if isinstance(base, ast.Name) and node is not None else None


def _last_name(function: ast.expr) -> str:
    """The last part of what is called: `step` of `self.optimizer.step`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
