"""Reads the user's code for lines that make something longer at every step, to name the line of a measured leak.

A reading, not a proof: a site is a place to look at when memory is seen to grow, and never a finding by itself. The
order of lines stands for the order of execution, and a call of `update` for every function of that name in the files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from aitop.model.snapshot import GrowthSite
from aitop.model.text import printable
from aitop.sources.code.syntax import BUILTINS, FUNCTIONS, parsed

LONGEST_TEXT = 200

_GROWING_METHODS = {"append": 0, "appendleft": 0, "extend": 0, "insert": 1}
_SHRINKING_METHODS = frozenset({"clear", "pop", "popleft", "popitem", "remove", "detach_"})
_JOINING_CALLS = frozenset({"cat", "concat", "concatenate", "append", "vstack", "hstack"})
_DICTIONARIES = frozenset({"dict", "defaultdict", "OrderedDict"})
_HOOKING = re.compile(r"^register_\w*hook$")
# Methods that Python or a framework calls at each step; what some of them return goes into a backward.
_LOSS_METHODS = frozenset({"training_step", "compute_loss"})
_STEP_METHOD = re.compile(r"(^|_)step($|_)|^__call__$|^__getitem__$|^forward$|batch_(end|start)")
# What gives a plain number, or a tensor without history.
_PLAIN = frozenset(
    {"item", "tolist", "numpy", "detach", "detach_", "argmax", "argmin", "eq", "ne", "size", "dim", "numel", "keys"}
    | {"int", "long", "bool", "backward", "format", "float", "len", "str", "repr", "round", "isinstance", "range"}
)
_PLAIN_ATTRIBUTES = frozenset({"data", "shape", "dtype", "device", "ndim", "grad", "requires_grad"})
_WITHOUT_GRAD = re.compile(r"no_grad|inference_mode|set_grad_enabled\(False\)")

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_OF_FLAGS = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp, ast.Not, ast.BoolOp, ast.boolop),
    *(ast.Compare, ast.Is, ast.IsNot, ast.expr_context),
)

Rank = tuple[bool, bool, bool]
"""Sorts sites, the likeliest leak first: keeps a graph; no mere key of a dict; in a training loop."""


class _Growth(NamedTuple):
    """A statement that makes `grown` longer by `value`; `carried`: its graph, by computing it from itself.

    `graph` says whether the value keeps a graph alive, None where that is not known; `no_grad` that none is made there.
    """

    grown: str
    value: ast.expr
    how: Literal["list", "sum", "key", "carried"]
    statement: ast.stmt
    loops: tuple[ast.stmt, ...] = ()
    graph: bool | None = None
    no_grad: bool = False


class _Emptied(NamedTuple):
    """A name whose value is replaced, deleted or taken from; not `surely` under a condition that is a mere flag."""

    name: str
    loops: tuple[ast.stmt, ...]
    surely: bool


def growth_sites(texts: Mapping[str, str | None]) -> tuple[GrowthSite, ...]:
    """The lines in these files that make something longer step by step, the likeliest leak first."""
    trees = {file: tree for file, text in texts.items() if text is not None and (tree := parsed(text)) is not None}
    try:
        models = frozenset(name for tree in trees.values() for scope, _ in _named(tree) for name in _models(scope))
        files = [_File(file, texts[file] or "", tree, models) for file, tree in trees.items()]
        calls = _Calls([function for file in files for function in file.functions], models)
        ranked = [site for file in files for site in file.sites(calls)]
    except (RecursionError, MemoryError):
        return ()
    return tuple(site for _, site in sorted(ranked, key=lambda pair: pair[0]))


class _File:
    """The functions of one file. `models` are the names of what computes a value that a backward starts from."""

    def __init__(self, file: str, text: str, tree: ast.Module, models: frozenset[str]) -> None:
        self.file = file
        self._lines = text.splitlines()
        nodes = list(ast.walk(tree))
        given = [pair for node in nodes if isinstance(node, ast.stmt) for pair in _assignments(node)]
        dictionaries = {name for name, value in given if _is_dictionary(value)}
        self._queues = {name for name, value in given if _is_bounded(value)}
        retains = any(_retains(node) for node in nodes)
        self.functions = [_Function(node, name, dictionaries, models, retains) for node, name in _named(tree)]

    def sites(self, calls: _Calls) -> Iterator[tuple[Rank, GrowthSite]]:
        """The growing statements that nothing empties in time."""
        for function in self.functions:
            for growth in function.grows:
                trains = self._grows_over_steps(growth, function, calls)
                if trains is None:
                    continue
                line = growth.statement.lineno
                text = self._lines[line - 1] if line <= len(self._lines) else ""
                site = GrowthSite(
                    file=self.file,
                    line=line,
                    function=function.name,
                    text=printable(text).strip()[:LONGEST_TEXT],
                    keeps_graph=bool(growth.graph),
                )
                yield (not growth.graph, growth.how == "key", not trains), site

    def _grows_over_steps(self, growth: _Growth, function: _Function, calls: _Calls) -> bool | None:
        """True if it grows in a training loop, False if in another loop or function that runs the model at each step.

        None if it does not grow from step to step: something empties it, or it is made anew.
        """
        if growth.grown in self._queues or (growth.how == "key" and calls.hooks(function)):
            return None
        others = [other for other in self.functions if other is not function and not other.makes]
        if growth.grown.startswith("self.") and any(other.empties(growth.grown) for other in others):
            return None
        lasting = [loop for loop in growth.loops if not function.empties(growth.grown, loop)]
        owned = function.owns(growth.grown)
        if any(calls.trains(loop) for loop in lasting):
            return True
        if len(lasting) < len(growth.loops) or growth.how == "carried":
            return None
        if owned:
            return False if lasting and (growth.no_grad or any(map(calls.uses_model, lasting))) else None
        called = calls.runs_at_steps(function) and not function.empties(growth.grown)
        return False if lasting or called else None


class _Function:
    """What a function (or a module outside of its functions) makes longer and empties, in the order of its lines."""

    def __init__(self, node: Scope, name: str, dictionaries: set[str], models: frozenset[str], retains: bool) -> None:
        self.node, self.name = node, name
        self.makes = name.endswith("__init__")
        self.grows: list[_Growth] = []
        self._dictionaries, self._models, self._retains = dictionaries, models, retains
        self._emptied: list[_Emptied] = []
        self._assigned: set[str] = set()
        # Whether a name holds a graph at the line that is read; it does where a backward starts from it.
        self._graph: dict[str, bool | None] = {}
        self._backward = {text for start in _starts(node) if (text := name_of(start)) is not None}
        self._shared = {
            text
            for statement in ast.walk(node)
            if isinstance(statement, (ast.Global, ast.Nonlocal))
            for text in statement.names
        }
        off = any(_WITHOUT_GRAD.search(ast.unparse(decorator)) for decorator in getattr(node, "decorator_list", ()))
        self._read(node.body, (), flagged=False, no_grad=off)

    def owns(self, grown: str) -> bool:
        """Whether `grown` is created by the function and gone when it returns."""
        root = re.split(r"[.\[]", grown, maxsplit=1)[0]
        return not isinstance(self.node, ast.Module) and root in self._assigned - self._shared

    def empties(self, grown: str, loop: ast.stmt | None = None) -> bool:
        """Whether a statement of the function, or of `loop`, surely replaces `grown`, empties it or takes from it."""
        return any(
            emptied.surely and (loop is None or loop in emptied.loops) and _covers(emptied.name, grown)
            for emptied in self._emptied
        )

    def _read(self, body: Sequence[ast.stmt], loops: tuple[ast.stmt, ...], *, flagged: bool, no_grad: bool) -> None:
        for statement in body:
            if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                continue
            within, off = loops, no_grad
            if isinstance(statement, _LOOPS):
                within = (*loops, statement)
            if isinstance(statement, (ast.With, ast.AsyncWith)):
                off = off or any(_WITHOUT_GRAD.search(ast.unparse(item.context_expr)) for item in statement.items)
            self._note(statement, within, surely=not flagged, no_grad=off)
            if isinstance(statement, ast.If):
                flag = flagged or _is_flag(statement.test)
                before = dict(self._graph)
                self._read(statement.body, within, flagged=flag, no_grad=off)
                either, self._graph = self._graph, before
                self._read(statement.orelse, within, flagged=flag, no_grad=off)
                # What holds a graph after one of both branches may hold it.
                self._graph |= {name: either[name] or self._graph.get(name) for name in either}
                continue
            blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
            blocks += [block.body for block in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))]
            for block in blocks:
                self._read(block, within, flagged=flagged, no_grad=off)

    def _note(self, statement: ast.stmt, loops: tuple[ast.stmt, ...], *, surely: bool, no_grad: bool) -> None:
        growth = _growth_of(statement, self._dictionaries, retains=self._retains)
        if growth is not None:
            graph = None if no_grad else True if growth.how == "carried" else self._holds(growth.value)
            if growth.how != "sum" or graph:
                self.grows.append(growth._replace(loops=loops, graph=graph, no_grad=no_grad))
        if growth is None or growth.how == "key":
            self._emptied += [_Emptied(name, loops, surely) for name in _emptied(statement)]
        for name, value in _assignments(statement):
            self._assigned.add(name)
            self._graph[name] = False if no_grad else self._holds(value)

    def _holds(self, value: ast.expr) -> bool | None:
        """Whether a value keeps a graph alive; None where nothing says so."""
        if isinstance(value, (ast.Constant, ast.JoinedStr, ast.Compare, ast.Lambda)):
            return False
        if isinstance(value, ast.Attribute) and value.attr in _PLAIN_ATTRIBUTES:
            return False
        parts: list[ast.expr] = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
        if isinstance(value, ast.Call):
            name = last_name(value.func)
            if name in _PLAIN:
                return False
            if name in self._models:
                return True
            parts = [*value.args, *(keyword.value for keyword in value.keywords)]
            parts += [value.func.value] if isinstance(value.func, ast.Attribute) else []
            return any(self._holds(part) for part in parts) or None
        if isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            sources = {name_of(generator.target): generator.iter for generator in value.generators}
            return self._holds(sources.get(name_of(value.elt), value.elt))
        chain = name_of(value)
        if chain in self._graph or chain in self._backward:
            known = self._graph.get(chain or "")
            return chain in self._backward or None if known is None else known
        if isinstance(value, (ast.Attribute, ast.Subscript)):
            return self._holds(value.value)
        states = [self._holds(part) for part in parts]
        return True if any(states) else False if states and None not in states else None


class _Calls:
    """Who calls whom in some files: which loops make steps, and which functions run at each of them."""

    def __init__(self, functions: Sequence[_Function], models: frozenset[str]) -> None:
        self._models = models
        called = {function: _called_names(function.node) for function in functions}
        short = {function: function.name.rpartition(".")[2] for function in functions}
        self._makers: set[str] = set()
        stepping = {short[function] for function in functions if any(map(_trains, _own_calls(function.node)))}
        while stepping - self._makers:
            self._makers |= stepping
            stepping = {short[function] for function, names in called.items() if names & self._makers}
        loops = [node for function in functions for node in _own_nodes(function.node) if isinstance(node, _LOOPS)]
        self._running: set[str] = set()
        more = {name for loop in loops if self.trains(loop) or self.uses_model(loop) for name in _called_names(loop)}
        while more - self._running:
            self._running |= more
            more = {name for function, names in called.items() if short[function] in self._running for name in names}
        self._hooks = {
            name for function in functions for call in _own_calls(function.node) for name in _hooked(call, functions)
        }

    def trains(self, loop: ast.stmt) -> bool:
        """Whether a loop calls a backward or an optimizer, or a function that does."""
        return any(_trains(call) or last_name(call.func) in self._makers for call in _own_calls(loop))

    def uses_model(self, loop: ast.stmt) -> bool:
        """Whether a loop calls a model, or runs something without gradients as only a model is."""
        return any(
            last_name(call.func) in self._models or _WITHOUT_GRAD.search(last_name(call.func))
            for call in _own_calls(loop)
        )

    def hooks(self, function: _Function) -> bool:
        """Whether a module or tensor calls the function."""
        return function.name.rpartition(".")[2] in self._hooks

    def runs_at_steps(self, function: _Function) -> bool:
        """Whether a function runs at each step, and its object is not made anew for each."""
        owner, _, name = function.name.rpartition(".")
        anew = owner.removesuffix(".<locals>").rpartition(".")[2] in self._running and not self.hooks(function)
        called = name in self._running or name in self._hooks or _STEP_METHOD.search(name) is not None
        return called and not anew and not isinstance(function.node, ast.Module)


# --- the functions of a module, and what they call ------------------------------------------------------------------


def _named(tree: ast.AST, prefix: str = "") -> Iterator[tuple[Scope, str]]:
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


def _trains(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("backward", "step")


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module without those of functions and classes in it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


def _own_calls(scope: ast.AST) -> Iterator[ast.Call]:
    return (node for node in _own_nodes(scope) if isinstance(node, ast.Call))


def _called_names(scope: ast.AST) -> set[str]:
    return {last_name(call.func) for call in _own_calls(scope)}


def _hooked(call: ast.Call, functions: Iterable[_Function]) -> Iterator[str]:
    """Functions that are handed to a `register_…_hook`, or made by one that is called for it."""
    for given in call.args if _HOOKING.match(last_name(call.func)) else ():
        if isinstance(given, ast.Call):
            made = f"{last_name(given.func)}.<locals>."
            yield from (function.name.rpartition(".")[2] for function in functions if made in function.name)
        else:
            yield last_name(given)


# --- what a statement makes longer, empties or assigns --------------------------------------------------------------


def _growth_of(statement: ast.stmt, dictionaries: set[str], *, retains: bool) -> _Growth | None:
    """The growth that a statement causes; None for a statement that makes nothing longer."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        index = _GROWING_METHODS.get(last_name(call.func))
        if index is None or not isinstance(call.func, ast.Attribute) or len(call.args) <= index:
            return None
        holder = call.func.value
        # known.setdefault(key, []).append(more)
        inner = holder.func if isinstance(holder, ast.Call) else None
        grown = name_of(inner.value if isinstance(inner, ast.Attribute) and inner.attr == "setdefault" else holder)
        return _Growth(grown, call.args[index], "list", statement) if grown else None
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        grown = name_of(statement.target)
        return _Growth(grown, statement.value, _kind(statement.value), statement) if grown else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    grown = name_of(target)
    if grown and isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        for same, more in ((value.left, value.right), (value.right, value.left)):
            if name_of(same) == grown:
                return _Growth(grown, more, _kind(more), statement)
    if grown and isinstance(value, ast.Call) and last_name(value.func) in _JOINING_CALLS:
        parts = [
            part
            for given in value.args
            for part in (given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given])
        ]
        if grown in map(name_of, parts):
            more = next((part for part in parts if name_of(part) != grown), value)
            return _Growth(grown, more, "list", statement)
    if isinstance(target, ast.Subscript) and not isinstance(target.slice, (ast.Constant, ast.Slice)):
        whole = name_of(target.value)
        return _Growth(whole, value, "key", statement) if whole in dictionaries and whole else None
    if retains and isinstance(value, ast.Call):
        # state = cell(x, state), and a backward that keeps the graph: computed from itself and something new.
        given = [*value.args, *(keyword.value for keyword in value.keywords)]
        handed = {name for part in given for name in _targets(part)}
        both = [name for name in _targets(target) if name in handed]
        return _Growth(both[0], value, "carried", statement) if both and len(given) > 1 else None
    return None


def _kind(value: ast.expr) -> Literal["list", "sum"]:
    return "list" if isinstance(value, (ast.List, ast.Tuple, ast.ListComp)) else "sum"


def _emptied(statement: ast.stmt) -> Iterator[str]:
    """The names of what a statement replaces, deletes or takes elements from."""
    yield from (name for name, _ in _assignments(statement))
    if isinstance(statement, ast.Delete):
        for target in statement.targets:
            yield from _targets(target.value if isinstance(target, ast.Subscript) else target)
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        yield from _targets(statement.target)
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SHRINKING_METHODS:
        yield from _targets(value.func.value)


def _assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement gives a new value, with it."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            # x[:] = … replaces the content; x[key] = … does not.
            whole = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)
            yield from _paired(target.value if whole and isinstance(target, ast.Subscript) else target, statement.value)
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
    elif (name := name_of(target)) is not None:
        yield name


def _covers(name: str, grown: str) -> bool:
    """Whether replacing `name` replaces `grown` too: itself, or what holds it."""
    return grown == name or grown.startswith((f"{name}.", f"{name}["))


def _is_flag(test: ast.expr) -> bool:
    """Whether a condition only asks for names and attributes, so that it comes out alike at every step."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_is_flag(value) for value in test.values)
    return all(isinstance(node, _OF_FLAGS) for node in ast.walk(test))


# --- what a backward starts from ------------------------------------------------------------------------------------


def _starts(scope: ast.AST) -> Iterator[ast.expr]:
    """What a backward starts from: `loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`.

    What a framework goes backward from is returned to it.
    """
    for node in ast.walk(scope):
        if isinstance(node, ast.Call) and last_name(node.func) == "backward":
            base = node.func.value if isinstance(node.func, ast.Attribute) else None
            yield from node.args
            yield from base.args if isinstance(base, ast.Call) else [base] if base is not None else []
        elif isinstance(node, ast.Return) and node.value is not None and getattr(scope, "name", "") in _LOSS_METHODS:
            yield node.value


def _models(scope: Scope) -> set[str]:
    """The names of what this function calls to compute a value that a backward starts from: a loss and a model.

    The first argument of a loss is what the model made, in torch's signatures; what goes into the model is its input.
    Methods of values, such as `x.view()`, are none.
    """
    given: dict[str, list[ast.expr]] = {}
    values: set[str] = set()
    for node in ast.walk(scope):
        for name, value in _assignments(node) if isinstance(node, ast.stmt) else ():
            given.setdefault(name, []).append(value)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            values.update(_targets(node.target))
    values.update(given)
    models: set[str] = set()
    seen: set[tuple[str, int]] = set()

    def visit(value: ast.AST, calls: int) -> None:
        parts: Iterable[ast.AST] = ast.iter_child_nodes(value)
        if isinstance(value, ast.Call) and _is_method_of(value.func, values):
            parts = [value.func]
        elif isinstance(value, ast.Call):
            name, calls = last_name(value.func), calls - 1
            if name and name not in _PLAIN and name not in BUILTINS:
                models.add(name)
            parts = [*value.args, *(keyword.value for keyword in value.keywords)][:1]
        name = name_of(value) or ""
        if name in given:
            parts = given[name]
        if calls and (name not in given or (name, calls) not in seen):
            seen.add((name, calls))
            for part in parts:
                visit(part, calls)

    for start in _starts(scope):
        visit(start, 2)
    return models


def _is_method_of(function: ast.expr, values: Collection[str]) -> bool:
    """Whether a function is a method of one of these values, or of something computed."""
    return isinstance(function, ast.Attribute) and (name_of(function.value) or "") in {"", *values}


def _retains(node: ast.AST) -> bool:
    """Whether the node is a call of a backward that keeps its graph, or may keep it."""
    keeping = [
        keyword.value for keyword in getattr(node, "keywords", ()) if keyword.arg in ("retain_graph", "create_graph")
    ]
    return any(not isinstance(value, ast.Constant) or value.value for value in keeping)


# --- kinds of values, and names -------------------------------------------------------------------------------------


def _is_dictionary(value: ast.expr) -> bool:
    return isinstance(value, ast.Dict) or (isinstance(value, ast.Call) and last_name(value.func) in _DICTIONARIES)


def _is_bounded(value: ast.expr) -> bool:
    """Whether the value is a queue with a greatest length."""
    bounded = isinstance(value, ast.Call) and (len(value.args) > 1 or bool(value.keywords))
    return isinstance(value, ast.Call) and last_name(value.func) == "deque" and bounded


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
