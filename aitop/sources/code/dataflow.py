"""Which statements of a function use values that other statements made: read from the file, as line numbers. Pure.

What a line is for follows from where its values go. Only the structure of the code is used. The only names that leave
this module are those of called functions, by which frames of a stack are found in it, so no name can matter. It is an
approximation: assignments are followed exactly within one function, and a method call with arguments is taken to change
its object.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from aitop.model.stacks import Flow, Statement
from aitop.sources.code.syntax import FUNCTIONS, Scope, parsed, statements
from aitop.stacks.dataflow import innermost, reached
from aitop.stacks.libraries import COLLECTORS

_OF_COLLECTORS = "|".join(sorted({name.partition(".")[0] for name in COLLECTORS}))
_COLLECTORS = re.compile(rf"\b(?:{_OF_COLLECTORS})\b")
_RENAMED = re.compile(rf"\bfrom\s+(?:{_OF_COLLECTORS})\s+import\b|\b(?:{_OF_COLLECTORS})\s+as\b")
# Which statements, by their first lines, may have given a variable the value that it has.
State = dict[str, frozenset[int]]
_NOTHING: frozenset[int] = frozenset()
# Each statement looks through all variables of its function: up to 0.5 s for so many looks. Tables of generated code
# have more, functions that people write a twentieth of it.
MOST_LOOKS = 2_000_000
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Span(NamedTuple):
    """From the first to the last line of a function, or of the module."""

    first: int
    last: int


class Functions(NamedTuple):
    """Where all functions of a file stand, the outer before the inner, and the dataflow of those that were read."""

    spans: tuple[Span, ...] = ()
    flows: tuple[Flow, ...] = ()


def may_collect(text: str, line: str) -> bool:
    """Whether a line of a file may call the garbage collector, by its own name or by one that the file imports it as.

    The dataflow marks no other line as `collects`.
    """
    return _COLLECTORS.search(line) is not None or _renames_collectors(text)


@lru_cache(maxsize=64)
def _renames_collectors(text: str) -> bool:
    return _RENAMED.search(text) is not None


def functions(file: str, text: str, lines: Collection[int]) -> Functions:
    """The functions of a file, with the dataflow of those in which these lines stand; empty if it is not Python.

    Only those are read: all 128 functions of a file of 7,000 lines took 0.79 s, three of them take 0.12.
    """
    tree = parsed(text)
    if tree is None:
        return Functions()
    try:
        every = list(statements(tree))
        modules = dict(imported(every))
        scopes = [tree, *(statement for statement in every if isinstance(statement, FUNCTIONS))]
        spans = tuple(Span(*_span(scope)) for scope in scopes)
        wanted = {id(innermost(spans, line)) for line in lines}
        instances = dict(_instances(every))
        read = (scope for scope, span in zip(scopes, spans, strict=True) if id(span) in wanted)
        each = (Reading(file, scope, modules, instances.get(id(scope))).flow() for scope in read)
        flows = tuple(flow for flow in each if flow is not None)
    except RecursionError:
        return Functions()
    return Functions(spans, flows)


def imported(every: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield names bound by imports, with what they stand for. They are no variables: calls by them change no object."""
    for node in every:
        if isinstance(node, ast.Import):
            for name in node.names:
                yield (name.asname, name.name) if name.asname else (name.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            yield from ((name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)


def _instances(every: Iterable[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Yield the methods of classes, by id, with the parameter that is the object itself."""
    for of_class in (statement for statement in every if isinstance(statement, ast.ClassDef)):
        for method in (node for node in of_class.body if isinstance(node, FUNCTIONS)):
            parameters = [*method.args.posonlyargs, *method.args.args]
            if parameters and not any(isinstance(each, ast.Name) for each in method.decorator_list):
                yield id(method), parameters[0].arg


@dataclass
class _Uses:
    """The variables (`name` or `name.attribute`) that an expression reads, and those that its calls may change.

    `calls`: it calls anything. Calls of the names in `without` are passed over, with their arguments.
    """

    reads: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    calls: bool = False
    without: frozenset[str] = frozenset()

    def add(self, others: _Uses) -> None:
        """Add what a part of the expression reads, changes and calls."""
        self.reads |= others.reads
        self.changes |= others.changes
        self.calls |= others.calls


class _TooLongError(Exception):
    """A function has too many statements and variables to follow."""


class Reading:
    """Follows the assignments of one function, loops included."""

    def __init__(self, file: str, scope: Scope, modules: dict[str, str], instance: str | None = None) -> None:
        self._file = file
        self._scope = scope
        self._modules = modules
        self._instance = instance
        # What is called itself, such as a model, computes: its methods are no more a change of it than calling it is.
        self._called = {self._path(node.func) for node in ast.walk(scope) if isinstance(node, ast.Call)}
        self._ends: dict[int, int] = {}
        self._used: dict[int, set[int]] = {}
        self._loops: list[tuple[int, int]] = []
        self._collects: set[int] = set()
        self._outer: dict[int, set[str]] = {}
        # Statements that may call the model in a comprehension. And for each that may call it at all, the statements
        # that made what the call is given.
        self._comprehends: set[int] = set()
        self._given: dict[int, set[int]] = {}
        # As `_used`, but `self` as a whole is left out (its attributes are not): any `self.f(x)` may change it.
        self._used_apart: dict[int, set[int]] = {}
        # By loop variable, what it is an element of: changing the element changes the whole.
        self._whole: dict[str, set[str]] = {}
        self._looks = 0

    def flow(self) -> Flow | None:
        """The statements of the function with what they use; None where it is too long to follow."""
        try:
            self._block(self._scope.body, {})
        except _TooLongError:
            return None
        first, last = _span(self._scope)
        statements = (
            Statement(
                first=line,
                last=end,
                uses=tuple(sorted(self._used.get(line, ()))),
                collects=line in self._collects,
                outer=tuple(sorted(self._outer.get(line, ()))),
                apart=self._calls_apart(line),
            )
            for line, end in sorted(self._ends.items())
        )
        return Flow(
            file=self._file,
            first=first,
            last=last,
            statements=tuple(statements),
            loops=tuple(sorted(set(self._loops))),
        )

    def _calls_apart(self, line: int) -> bool:
        """Whether a statement calls again and again, and gives its calls nothing that came of its earlier ones."""
        again = line in self._comprehends or any(first < line <= last for first, last in self._loops)
        if line not in self._given or not again:
            return False
        given = self._given[line]
        return line not in given | reached(given, lambda each: self._used_apart.get(each, ()))

    # Statements: each takes the state before it and returns the state after it.

    def _block(self, body: Sequence[ast.stmt], state: State) -> State:
        for statement in body:
            state = self._statement(statement, state)
        return state

    def _statement(self, node: ast.stmt, state: State) -> State:
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(node, state)
        if isinstance(node, ast.If):
            state = self._assign(node, node.test, [], state)
            return _either(self._block(node.body, state), self._block(node.orelse, state))
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                targets = [item.optional_vars] if item.optional_vars else []
                state = self._assign(node, item.context_expr, targets, state)
            return self._block(node.body, state)
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            return self._try(node, state)  # type: ignore[arg-type]
        if isinstance(node, ast.Match):
            state = self._assign(node, node.subject, [], state)
            return _either(state, *(self._block(case.body, state) for case in node.cases))
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)):
            return state
        if isinstance(node, ast.Assign):
            return self._assign(node, node.value, node.targets, state)
        if isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            adds = isinstance(node, ast.AugAssign)
            return self._assign(node, node.value, [node.target], state, adds=adds) if node.value else state
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                state = self._assign(node, child, [], state)
        return state

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State) -> State:
        # Two rounds, so that values of one reach the next. One is enough if a loop around it has read this loop before.
        rounds = 1 if _span(node) in self._loops else 2
        self._loops.append(_span(node))
        if not isinstance(node, ast.While):
            elements: set[str] = set()
            self._target(node.target, elements, _Uses())
            for name in elements:
                self._whole.setdefault(name, set()).update(self._uses(node.iter).reads)
        for _ in range(rounds):
            before = state
            if isinstance(node, ast.While):
                state = self._assign(node, node.test, [], state)
            else:
                state = self._assign(node, node.iter, [node.target], state)
            state = _either(before, self._block(node.body, state))
        return _either(state, self._block(node.orelse, state))

    def _try(self, node: ast.Try, state: State) -> State:
        done = self._block(node.body, state)
        handled = [self._block(handler.body, _either(state, done)) for handler in node.handlers]
        return self._block(node.finalbody, _either(self._block(node.orelse, done), *handled))

    def _assign(
        self,
        node: ast.stmt,
        value: ast.expr,
        targets: Iterable[ast.expr],
        state: State,
        *,
        adds: bool = False,
    ) -> State:
        """The state after `targets = value`. `adds`: after `targets += value`, which keep what they had."""
        line = node.lineno
        self._ends[line] = max(self._ends.get(line, line), _head_end(node))
        uses = self._uses(value)
        names: set[str] = set()
        inner = [each.target for each in ast.walk(value) if isinstance(each, ast.NamedExpr)]
        for target in (*targets, *inner):
            self._target(target, names, uses)
        self._note(node, value, set() if adds else names, state)
        uses.changes |= {whole for name in uses.changes for whole in self._whole.get(name, ())}
        if adds:
            uses.reads |= names
        self._looks += len(state) * (1 + len(uses.reads | uses.changes))
        if self._looks > MOST_LOOKS:
            raise _TooLongError
        for name in uses.reads | uses.changes:
            self._used.setdefault(line, set()).update(makers(name, state))
        self._follow_apart(line, value, uses, state)
        state = dict(state)
        for name in uses.changes:
            state[name] = state.get(name, _NOTHING) | {line}
        for name in names:
            state[name] = frozenset({line})
        return state

    def _note(self, node: ast.stmt, value: ast.expr, replaced: set[str], state: State) -> None:
        """Note what else matters of `replaced = value`; `state` is the one before it."""
        if self._function(value) in COLLECTORS:
            self._collects.add(node.lineno)
        calls = list(self._calls(value, argument=False))
        if len(calls) > 1:
            outer = {name for name, _ in calls} - {name for name, argument in calls if argument}
            self._outer.setdefault(node.lineno, set()).update(outer)

    def _follow_apart(self, line: int, value: ast.expr, uses: _Uses, state: State) -> None:
        """Note which statements made what a statement uses, and what it gives to calls that may be of the model."""
        apart = {name: lines for name, lines in state.items() if name != self._instance}
        given: set[str] = set()
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and self._may_be_model(node.func):
                self._given.setdefault(line, set())
                for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                    given |= self._uses(argument).reads
            elif isinstance(node, _COMPREHENSIONS):
                if self._calls_for_each(node):
                    self._comprehends.add(line)
                given |= {name for each in node.generators for name in self._uses(each.iter).reads}
        for into, names in ((self._used_apart, uses.reads | uses.changes), (self._given, given)):
            for name in names - {self._instance}:
                into.setdefault(line, set()).update(makers(name, apart))

    def _calls_for_each(self, node: _Comprehension) -> bool:
        """Whether a comprehension calls what may be the model for each element, and not for what the elements are of.

        Methods of an element are not the model.
        """
        made = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        own = {name.id for each in node.generators for name in ast.walk(each.target) if isinstance(name, ast.Name)}

        def called(parts: Iterable[ast.AST]) -> bool:
            calls = (each for part in parts for each in ast.walk(part) if isinstance(each, ast.Call))
            functions = (each.func for each in calls if self._may_be_model(each.func))
            return any((self._path(each) or "").partition(".")[0] not in own for each in functions)

        return called(made) and not called(each.iter for each in node.generators)

    def _calls(self, node: ast.AST, *, argument: bool) -> Iterator[tuple[str, bool]]:
        """Yield what is called below a node, and whether for an argument of a call that may be one of the model.

        Imported and built-in functions are no models.
        """
        within = argument
        if isinstance(node, ast.Call):
            yield called_name(node), argument
            within = argument or self._may_be_model(node.func)
        for child in ast.iter_child_nodes(node):
            # The object of a method is computed before the call, but is no argument of it.
            object_of_method = isinstance(node, ast.Call) and child is node.func
            yield from self._calls(child, argument=argument if object_of_method else within)

    def _may_be_model(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Name):
            return function.id not in self._modules and not hasattr(builtins, function.id)
        return self._path(function) is not None or not isinstance(function, ast.Attribute)

    def _target(self, target: ast.expr, names: set[str], uses: _Uses) -> None:
        """Add what an assignment replaces to `names`, and what `a[i] = …` or `a.b.c = …` changes to `uses`."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._target(each, names, uses)
        elif isinstance(target, ast.Starred):
            self._target(target.value, names, uses)
        elif isinstance(target, ast.Name):
            names.add(target.id)
        elif (path := self._path(target)) is not None:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                names.add(path)
            else:
                uses.changes.add(path)

    # Expressions.

    def _uses(self, value: ast.expr, without: frozenset[str] = frozenset()) -> _Uses:
        uses = _Uses(without=without)
        self._collect(value, uses)
        return uses

    def _collect(self, node: ast.AST, uses: _Uses) -> None:
        if isinstance(node, ast.Call):
            if called_name(node) not in uses.without:
                self._call(node, uses)
            return
        if isinstance(node, (ast.Name, ast.Attribute)) and (path := self._path(node)) is not None:
            uses.reads.add(path)
            return
        if isinstance(node, _COMPREHENSIONS):
            self._comprehension(node, uses)
            return
        if isinstance(node, ast.NamedExpr):
            self._collect(node.value, uses)
            return
        for child in ast.iter_child_nodes(node):
            self._collect(child, uses)

    def _comprehension(self, node: _Comprehension, uses: _Uses) -> None:
        """Add the uses of a comprehension. Its variables are its own, whatever else has their names."""
        inside = _Uses(without=uses.without)
        # By variable, what it is an element of: changing the element changes the whole.
        own: dict[str, set[str]] = {}
        for number, each in enumerate(node.generators):
            # Once each: comprehensions may stand within one another.
            of_iter = self._uses(each.iter, uses.without)
            for into in (inside,) if number else (inside, uses):
                into.add(of_iter)
            whole = {of for path in of_iter.reads for of in own.get(path.partition(".")[0], {path})}
            own |= {name.id: whole for name in ast.walk(each.target) if isinstance(name, ast.Name)}
        made = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        for child in (*made, *(condition for each in node.generators for condition in each.ifs)):
            self._collect(child, inside)
        uses.reads |= {path for path in inside.reads if path.partition(".")[0] not in own}
        for path in inside.changes:
            uses.changes |= own.get(path.partition(".")[0], {path})
        uses.calls |= inside.calls

    def _call(self, node: ast.Call, uses: _Uses) -> None:
        """Add the uses of a call. A method reads its object, and may change it if it has arguments."""
        uses.calls = True
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        function = node.func
        if isinstance(function, ast.Attribute):
            self._collect(function.value, uses)
            path = self._path(function.value)
            if given and path is not None and path not in self._called:
                uses.changes.add(path)
        elif not isinstance(function, ast.Name):
            self._collect(function, uses)
        for argument in given:
            self._collect(argument, uses)

    def _function(self, value: ast.expr) -> str | None:
        """The imported function that this is a call of, by its full name."""
        called = value.func if isinstance(value, ast.Call) else None
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            module = self._modules.get(called.value.id)
            return f"{module}.{called.attr}" if module else None
        return self._modules.get(called.id) if isinstance(called, ast.Name) else None

    def _path(self, node: ast.AST) -> str | None:
        """The variable at the root of `a`, `a.b.c`, `a[i].b`: a name, or a name with its first attribute."""
        attribute = None
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            attribute = node.attr if isinstance(node, ast.Attribute) else None
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self._modules:
            return None
        return f"{node.id}.{attribute}" if attribute else node.id


def called_name(call: ast.Call) -> str:
    """The last part of what is called: `step` of `self.optimizer.step()`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def makers(name: str, state: State) -> Iterator[int]:
    """Yield the statements that may have given a variable, its object or its attributes their values."""
    owner = name.partition(".")[0]
    for other, lines in state.items():
        if other in (name, owner) or (owner == name and other.startswith(f"{name}.")):
            yield from lines


def _either(*states: State) -> State:
    merged: State = {}
    for state in states:
        for name, lines in state.items():
            merged[name] = merged.get(name, _NOTHING) | lines
    return merged


def _span(node: ast.Module | ast.stmt) -> tuple[int, int]:
    if isinstance(node, ast.Module):
        return 1, max((statement.end_lineno or statement.lineno for statement in node.body), default=1)
    return node.lineno, node.end_lineno or node.lineno


def _head_end(node: ast.stmt) -> int:
    """The last line of a statement; of one with a body, of its head."""
    body: Sequence[ast.stmt] = getattr(node, "body", ())
    last = node.end_lineno or node.lineno
    return min(last, body[0].lineno - 1) if body and body[0].lineno > node.lineno else last
