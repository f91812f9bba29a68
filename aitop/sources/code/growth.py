"""Reads the user's code for lines that add to something at every step, to name the line of a measured leak.

An approximation: a site says where to look once memory is seen to grow, and is never a finding by itself. Of all
committed recordings three owe their line to it: leak, bridge_strain and attention_maps. Stacks tell which loops make
steps and which lines call the model; the dataflow tells what a value is made of. The user's names serve only to match
calls with functions; what adds, removes or returns a number is recognised by names of Python and torch.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from aitop.model.snapshot import GrowthSite
from aitop.model.text import printable
from aitop.sources.code.dataflow import Reading, State, called_name, imported, makers
from aitop.sources.code.syntax import FUNCTIONS, Scope, lines_of, parsed, statements
from aitop.stacks.dataflow import reached

LONGEST_TEXT = 200

# Methods that add, with the index of the argument that they add, and methods that remove.
_ADDING = {"append": 0, "appendleft": 0, "extend": 0, "insert": 1}
_TAKING = frozenset({"clear", "pop", "popleft", "popitem", "remove"})
_DICTIONARIES = frozenset({"dict", "defaultdict", "OrderedDict"})
# Calls that return a number: thousands of numbers make no growth that is seen. _PLAIN are calls whose value keeps no
# autograd graph.
_NUMBERS = frozenset({"item", "float", "int", "bool", "len", "round", "size", "dim", "numel"})
_PLAIN = _NUMBERS | {"tolist", "numpy", "detach", "detach_", "argmax", "argmin", "eq", "ne", "keys", "long"}
_PLAIN |= {"backward", "format", "str", "repr", "isinstance", "range"}

_OF_FLAGS = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp, ast.Not, ast.BoolOp, ast.boolop),
    *(ast.Compare, ast.Is, ast.IsNot, ast.expr_context),
)

Line = tuple[str, int]
"""A line of a file."""
_Rank = tuple[bool, bool, bool]
"""Sorts sites, the likeliest leak first: keeps a graph; no mere key of a dict; in a loop that makes steps."""


class _Growth(NamedTuple):
    """How `grown` grows by `value`: as a list, as a sum, or as a dict by a key that has the names `key` in it."""

    grown: str
    value: ast.expr
    how: Literal["list", "sum", "key"]
    key: frozenset[str]


def growth_sites(
    texts: Mapping[str, str | None], models: Collection[Line] = (), steps: Collection[Line] = ()
) -> tuple[GrowthSite, ...]:
    """The lines in these files that add to something step by step, the likeliest leak first.

    `models` are lines below which stacks show a call of the model, `steps` those with a backward or an optimizer below
    them. Without `steps` no value is taken to keep a graph: most programs that only call a model ask for no gradients.
    """
    trees = {file: tree for file, text in texts.items() if text is not None and (tree := parsed(text)) is not None}
    try:
        files: dict[str, list[_Function]] = {}
        for file, tree in trees.items():
            modules = dict(imported(statements(tree)))
            own = [{line for other, line in lines if other == file} for lines in (models if steps else (), steps)]
            files[file] = [
                _Function(file, scope, modules, name=name, models=own[0], steps=own[1]) for scope, name in _named(tree)
            ]
        running = _running([function for functions in files.values() for function in functions])
        ranked = [
            (rank, _site(file, texts[file] or "", function, line, keeps_graph=not rank[0]))
            for file, functions in files.items()
            for function in functions
            for line, growth in function.growths.items()
            if (rank := _rank(line, growth, function, functions, running)) is not None
        ]
    except (RecursionError, MemoryError):
        return ()
    return tuple(site for _, site in sorted(ranked, key=lambda pair: pair[0]))


def _site(file: str, text: str, function: _Function, number: int, *, keeps_graph: bool) -> GrowthSite:
    lines = lines_of(text)
    line = lines[number - 1] if number <= len(lines) else ""
    shown = printable(line).strip()[:LONGEST_TEXT]
    return GrowthSite(file=file, line=number, function=function.name, text=shown, keeps_graph=keeps_graph)


def _rank(
    line: int, growth: _Growth, function: _Function, of_file: Sequence[_Function], running: Collection[str]
) -> _Rank | None:
    """A key that sorts the likeliest leaks first; None where what grows is bounded, emptied or made anew."""
    grown, loops = growth.grown, function.loops_around(line)
    others = [each for each in of_file if each not in (function, of_file[0]) and each.short != "__init__"]
    if any(grown in each.queues for each in of_file) or ("." in grown and any(each.empties(grown) for each in others)):
        return None
    if growth.how == "key" and not (growth.key & function.own and any(grown in each.dictionaries for each in of_file)):
        return None
    graph = function.keeps_graph(line)
    # A sum of numbers is a number.
    if growth.how == "sum" and not graph:
        return None
    outlived = [loop for loop in loops if not function.empties(grown, loop)]
    steps = any(loop in function.step_loops for loop in outlived)
    if function is of_file[0]:
        lasts = bool(loops) and outlived == loops
    else:
        local = grown.partition(".")[0] in function.made
        lasts = function.short in running and not local and not function.empties(grown)
    return (not graph, growth.how == "key", not steps) if steps or lasts else None


class _Function(Reading):
    """What a function (or a module outside of its functions) adds to, by line, and what it empties.

    `made` are variables that it gives a value; `own` these and its parameters. Of `made`, `dictionaries` are dicts, and
    `queues` are deques with a maximum length. `step_loops` are the loops that make steps, by their first and last
    lines; `calls` the names that it calls, each with the line.
    """

    def __init__(
        self, file: str, scope: Scope, modules: dict[str, str], *, name: str, models: set[int], steps: set[int]
    ) -> None:
        super().__init__(file, scope, modules)
        self.name, self.short = name, name.rpartition(".")[2]
        self.growths: dict[int, _Growth] = {}
        self.made: set[str] = set()
        self.dictionaries: set[str] = set()
        self.queues: set[str] = set()
        self.calls: set[tuple[str, int]] = set()
        self._emptied: set[tuple[str, int]] = set()
        # By statement, those that made what its value keeps. _calling: the statements that keep what a call returned,
        # in the end only those that call the model.
        self._kept: dict[int, set[int]] = {}
        self._calling: set[int] = set()
        # The names in conditions around the current statement that come out alike at every step; None without any.
        self._flags: set[str] | None = None
        self._block(scope.body, {})
        self._calling = {line for line in self._calling if any(line <= model <= self._ends[line] for model in models)}
        self.step_loops = {loop for loop in self._loops if any(loop[0] <= step <= loop[1] for step in steps)}
        self.own = self.made | {node.arg for node in ast.walk(scope) if isinstance(node, ast.arg)}

    def loops_around(self, line: int) -> list[tuple[int, int]]:
        """The loops that a line is in, by their first and last lines."""
        return [loop for loop in set(self._loops) if loop[0] <= line <= loop[1]]

    def empties(self, grown: str, loop: tuple[int, int] | None = None) -> bool:
        """Whether a statement of the function, or of `loop`, replaces `grown` or what holds it, or takes from it."""
        return any(
            name in (grown, grown.partition(".")[0]) and (loop is None or loop[0] <= line <= loop[1])
            for name, line in self._emptied
        )

    def keeps_graph(self, line: int) -> bool:
        """Whether the value of a statement keeps what a call of the model returned."""
        return not self._calling.isdisjoint({line} | reached([line], lambda at: self._kept.get(at, ())))

    def _statement(self, node: ast.stmt, state: State) -> State:
        flags = self._flags
        if isinstance(node, ast.If) and _is_flag(node.test):
            self._flags = self._uses(node.test).reads | (flags or set())
        state = super()._statement(node, state)
        self._flags = flags
        return state

    def _note(self, node: ast.stmt, value: ast.expr, replaced: set[str], state: State) -> None:
        line, growth = node.lineno, self._growth(node)
        if growth is not None:
            self.growths[line] = growth
        self.made |= replaced
        made = called_name(value) if isinstance(value, ast.Call) else None
        if isinstance(value, ast.Dict) or made in _DICTIONARIES:
            self.dictionaries |= replaced
        elif isinstance(value, ast.Call) and made == "deque" and (len(value.args) > 1 or value.keywords):
            self.queues |= replaced
        calls = [part for part in ast.walk(value) if isinstance(part, ast.Call)]
        self.calls |= {(called_name(call), line) for call in calls}
        methods = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
        taken = [value] if isinstance(node, ast.Delete) else [each.value for each in methods if each.attr in _TAKING]
        for name in (*replaced, *map(self._path, taken)):
            if name is not None and (self._flags is None or name in self._flags):
                self._emptied.add((name, line))
        if replaced or growth is not None:
            uses = self._uses(growth.value if growth is not None else value, _PLAIN)
            self._kept.setdefault(line, set()).update(*(makers(name, state) for name in uses.reads))
            if uses.calls:
                self._calling.add(line)

    def _growth(self, node: ast.stmt) -> _Growth | None:
        """The growth that a statement causes; None if it causes none, or only by a number."""
        holder: ast.expr
        how: Literal["list", "sum", "key"] = "list"
        key: frozenset[str] = frozenset()
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            holder, value = node.target, node.value
            how = "list" if isinstance(value, (ast.List, ast.Tuple, ast.ListComp)) else "sum"
        elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
            holder, value, how = target.value, node.value, "key"
            key = frozenset(part.id for part in ast.walk(target.slice) if isinstance(part, ast.Name))
        elif isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _ADDING:
            holder, place = call.func.value, _ADDING[call.func.attr]
            if len(call.args) <= place:
                return None
            value = call.args[place]
            # known.setdefault(key, []).append(more)
            if isinstance(holder, ast.Call) and isinstance(holder.func, ast.Attribute):
                holder = holder.func.value if holder.func.attr == "setdefault" else holder
        else:
            return None
        grown, uses = self._path(holder), self._uses(value, _NUMBERS)
        number = not uses.reads and not uses.calls
        return None if grown is None or number else _Growth(grown, value, how, key)


def _is_flag(test: ast.expr) -> bool:
    """Whether a condition only asks for names and attributes, so that it comes out alike at every step."""
    return all(isinstance(node, _OF_FLAGS) for node in ast.walk(test))


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


def _running(functions: Sequence[_Function]) -> set[str]:
    """The names of functions that run at each step.

    These are the functions that the loops that make steps call; those that no line here calls, as a library may (a
    hook, a method of a module or of a data set); and what all of these call. `__init__` is left out, as an object is
    made once.
    """
    called = {name for function in functions for name, _ in function.calls if name != function.short}
    running = {
        name
        for function in functions
        for name, line in function.calls
        if any(first <= line <= last for first, last in function.step_loops)
    }
    running |= {
        function.short
        for function in functions
        if function.short not in called | {"<module>", "__init__"} and not function.step_loops
    }
    while more := {name for each in functions if each.short in running for name, _ in each.calls} - running:
        running |= more
    return running
