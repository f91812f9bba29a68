"""Which loops of a training script make steps, and which functions run at each of them, told from what calls what.

Functions are known by their last name only: `self.update(...)` calls every `update` of the files that are read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from aitop.sources.graph_names import Loop, Scope, is_model_call, last_name, name_of

# Functions that a framework calls at each step.
_STEP_FUNCTION = re.compile(r"(^|_)step($|_)|^__call__$|^__getitem__$|^forward$|batch_(end|start)|train_one_batch")
_HOOKED = re.compile(r"^register_\w*hook$")
_TRAINING_CALL = re.compile(r"backward$|(optim|opt|scaler|engine)\w*\.step$|train\w*_step$|train_(one_)?batch$")

Named = Iterable[tuple[Scope, str]]


def trains(loop: Loop) -> bool:
    """Whether a loop runs training steps: a backward or an optimizer's step in it."""
    return any(_training(call) for call in ast.walk(loop) if isinstance(call, ast.Call))


class Stepping:
    """What runs at each step of some files, given their modules and functions with qualified names."""

    def __init__(self, scopes: Named) -> None:
        functions: dict[str, list[Scope]] = {}
        modules: list[Scope] = []
        inner: dict[str, list[str]] = {}
        for scope, name in scopes:
            owner, _, own = name.rpartition(".<locals>.")
            inner.setdefault(owner.rpartition(".")[2], []).append(own)
            if isinstance(scope, ast.Module):
                modules.append(scope)
            else:
                functions.setdefault(name.rpartition(".")[2], []).append(scope)
        self._functions = functions
        self._makers = self._find_makers()
        everything = [*modules, *(one for group in functions.values() for one in group)]
        self._loops = {id(loop): loop for scope in everything for loop in _loops(scope.body) if self._makes(loop.body)}
        self._calls_of = self._from_loops()
        self._hooked = frozenset(_hooked(everything, inner))

    def makes_steps(self, loop: Loop) -> bool:
        """Whether each turn of the loop is a step."""
        return id(loop) in self._loops

    def runs(self, function: str) -> bool:
        """Whether a function (qualified name) runs at each step, and its object is not made anew for each."""
        owner, _, name = function.rpartition(".")
        anew = owner.removesuffix(".<locals>").rpartition(".")[2] in self._calls_of
        called = name in self._calls_of or name in self._hooked
        return not anew and (called or _STEP_FUNCTION.search(name) is not None)

    def is_hook(self, function: str) -> bool:
        """Whether a module or tensor calls the function (qualified name), with what it was made for."""
        return function.rpartition(".")[2] in self._hooked

    def given(self, function: str, index: int, parameter: str) -> Iterator[tuple[ast.expr, Loop | None]]:
        """What is handed over as a parameter of a function by those that call it at each step, with their loop.

        `index` counts from 0 without `self`. The loop is None where a function hands it on.
        """
        for call, loop in self._calls_of.get(function.rpartition(".")[2], ()):
            named = [keyword.value for keyword in call.keywords if keyword.arg == parameter]
            yield from ((value, loop) for value in named or call.args[index : index + 1])

    def _find_makers(self) -> frozenset[str]:
        """Functions with one step in them: a model's call, a backward, or a call of such a function, in no loop."""
        once = {
            name: [call for scope in group for call in _calls(scope.body, loops=False)]
            for name, group in self._functions.items()
        }
        makers = {name for name, calls in once.items() if any(_training(call) or is_model_call(call) for call in calls)}
        calls_of = {name: {last_name(call.func) for call in calls} for name, calls in once.items()}
        while more := {name for name, called in calls_of.items() if name not in makers and called & makers}:
            makers |= more
        return frozenset(makers)

    def _makes(self, body: Sequence[ast.stmt]) -> bool:
        calls = _calls(body, loops=False)
        return any(_training(call) or is_model_call(call) or last_name(call.func) in self._makers for call in calls)

    def _from_loops(self) -> dict[str, list[tuple[ast.Call, Loop | None]]]:
        """The calls that are made at each step, directly or not, by name; with the loop where they stand in one."""
        found: dict[str, list[tuple[ast.Call, Loop | None]]] = {}
        waiting: list[tuple[ast.Call, Loop | None]] = []
        for step in self._loops.values():
            waiting.extend((call, step) for call in _calls(step.body, loops=True))
        while waiting:
            call, loop = waiting.pop()
            name = last_name(call.func)
            if name not in found:
                inside = [one for scope in self._functions.get(name, ()) for one in _calls(scope.body, loops=True)]
                waiting.extend((one, None) for one in inside)
            found.setdefault(name, []).append((call, loop))
        return found


def _hooked(scopes: Iterable[Scope], inner: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Functions that are handed to a module's or tensor's `register_…_hook`, or made by one that is called for it.

    `inner` names the functions in a function.
    """
    for call in (call for scope in scopes for call in _calls(scope.body, loops=True)):
        if _HOOKED.match(last_name(call.func)):
            for given in call.args:
                if isinstance(given, ast.Call):
                    yield from inner.get(last_name(given.func), ())
                else:
                    yield last_name(given)


def _training(call: ast.Call) -> bool:
    return _TRAINING_CALL.search(name_of(call.func) or last_name(call.func)) is not None


def _loops(body: Sequence[ast.stmt]) -> Iterator[Loop]:
    """The loops of a function, without those of functions in it."""
    return (node for node in _nodes(body, loops=True) if isinstance(node, (ast.For, ast.AsyncFor, ast.While)))


def _calls(body: Sequence[ast.stmt], *, loops: bool) -> Iterator[ast.Call]:
    return (node for node in _nodes(body, loops=loops) if isinstance(node, ast.Call))


def _nodes(body: Sequence[ast.AST], *, loops: bool) -> Iterator[ast.AST]:
    """All nodes that run with these statements; with `loops` also those in loops among them."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.For, ast.AsyncFor)) and not loops:
            waiting.append(node.iter)
        elif isinstance(node, ast.While) and not loops:
            waiting.append(node.test)
        else:
            waiting.extend(ast.iter_child_nodes(node))
