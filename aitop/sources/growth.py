"""Reading a training script for what grows: lists that are only ever appended to, sums that keep a graph alive.

A reading, not a proof: names and shapes of code decide, so a site is a place to look at when memory is seen to
grow, and never a finding by itself. The order of lines stands for the order of execution.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from aitop.model.snapshot import GrowthSite
from aitop.model.text import printable
from aitop.sources.graph_names import GraphNames, Loop, Place, Scope, last_name, name_of, places
from aitop.sources.growth_statements import Growth, Kinds, assignments, covers, emptied, growth_of, retains, targets
from aitop.sources.settings import Settings
from aitop.sources.stepping import Stepping, trains

_OVER_DATA = re.compile(r"loader|batches|epoch|steps|iter", re.IGNORECASE)

# What Python has to say of the code of others would be written into our screen and reports.
WATCHED = "<watched>"
for _category in (SyntaxWarning, DeprecationWarning):
    warnings.filterwarnings("ignore", category=_category, module=WATCHED)

# Up to Python 3.10 the parser makes its tree without a limit to how deep it is, and a thread's stack overflows.
LIMITS_DEPTH = sys.version_info >= (3, 11)
DEEPEST = 10_000
_FLAT = frozenset(",:=)]}")

Rank = tuple[bool, bool, bool, bool]
"""Sorts sites, the likeliest leak first: keeps a graph; no mere key of a dict; in a training loop; never emptied."""

Emptied = tuple[str, "int | None"]
"""What is emptied; and, where only a setting decides whether it is, the line of that."""


class _Function(NamedTuple):
    """A module, or a function with its qualified name, and its statements."""

    node: Scope
    name: str
    inside: list[Place]


class _File(NamedTuple):
    """What holds for a whole file: bounded queues, kinds of things, settings, and what each function empties."""

    bounded: frozenset[str]
    kinds: Kinds
    settings: Settings
    emptied: dict[str, list[tuple[str, Place, Scope]]]


class _Found(NamedTuple):
    """A statement that makes something longer over steps, and whether that holds a graph; else see GrowthSite."""

    place: Place
    growth: Growth
    holds: bool
    trains: bool
    never_emptied: bool
    every_step: bool
    within: Loop | None
    unless: int | None


def find_growth(source: str, file: str) -> list[tuple[Rank, GrowthSite]]:
    """The growth sites of one source text with their ranks. Text that is not Python has none."""
    return find_all({file: source})


def find_all(sources: Mapping[str, str]) -> list[tuple[Rank, GrowthSite]]:
    """The growth sites of the texts of some files, which call each other's functions."""
    read = {file: functions for file, source in sources.items() if (functions := _read(source))}
    try:
        stepping = Stepping((one.node, one.name) for functions in read.values() for one in functions)
    except RecursionError:
        return []
    return [found for file, functions in read.items() for found in _sites(file, sources[file], functions, stepping)]


def parsed(source: str) -> ast.Module | None:
    """The tree of a source text, whoever wrote it; None for text that is not Python or nests too deeply."""
    try:
        return None if not LIMITS_DEPTH and _may_be_deep(source) else ast.parse(source, WATCHED)
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None


def _read(source: str) -> list[_Function]:
    tree = parsed(source)
    try:
        return [_Function(scope, name, list(places(scope))) for scope, name in _scopes(tree)] if tree else []
    except RecursionError:
        return []


def _may_be_deep(source: str) -> bool:
    """Whether a statement has more than DEEPEST operators and brackets: `a.b.c`, `1 + 1 + 1` and `f()()()` nest."""
    if len(source) < DEEPEST:
        return False
    count = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            count = 0
        elif token.type == tokenize.OP and token.string not in _FLAT:
            count += 1
            if count > DEEPEST:
                return True
    return False


def _sites(file: str, source: str, functions: Sequence[_Function], stepping: Stepping) -> list[tuple[Rank, GrowthSite]]:
    lines = source.splitlines()
    try:
        known = _about(functions, stepping)
        return [
            (
                (
                    not one.holds,
                    one.growth.how == "key",
                    not one.trains,
                    not one.never_emptied or one.unless is not None,
                ),
                _site(file, function.name, one, lines),
            )
            for function in functions
            for one in _growing(function, known, stepping)
        ]
    except (ValueError, RecursionError, MemoryError):
        return []


def _site(file: str, function: str, found: _Found, lines: Sequence[str]) -> GrowthSite:
    line, loop = found.place.statement.lineno, found.within
    return GrowthSite(
        file=file,
        line=line,
        function=function,
        text=printable(lines[line - 1]).strip()[:200] if line <= len(lines) else "",
        keeps_graph=found.holds,
        grown=found.growth.grown[:200],
        every_step=found.every_step,
        within=(loop.lineno, loop.end_lineno or loop.lineno) if loop is not None else None,
        unless=found.unless,
    )


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


def _about(functions: Sequence[_Function], stepping: Stepping) -> _File:
    bounded, dictionaries = set(), set()
    for target, value in (pair for one in functions for place in one.inside for pair in assignments(place.statement)):
        call = last_name(value.func) if isinstance(value, ast.Call) else ""
        if call == "deque" and isinstance(value, ast.Call) and (len(value.args) > 1 or value.keywords):
            bounded.add(target)
        if isinstance(value, ast.Dict) or call in ("dict", "defaultdict", "OrderedDict"):
            dictionaries.add(target)
    module = functions[0].node
    kept = any(isinstance(node, ast.Call) and retains(node) for node in ast.walk(module))
    kinds = Kinds(frozenset(dictionaries), kept)
    settings = Settings(((one.node, one.name, one.inside) for one in functions), stepping)
    without = Kinds(retains=kept)
    inside = {
        one.name: [(text, place, one.node) for place in one.inside for text in emptied(place.statement, without)]
        for one in functions
        if not one.name.endswith("__init__")
    }
    return _File(frozenset(bounded), kinds, settings, inside)


class _Scope:
    """One function, or the module, with the names of its statements."""

    def __init__(self, function: _Function, known: _File, stepping: Stepping) -> None:
        self.node, self.name, self._known, self._stepping = function.node, function.name, known, stepping
        self.names = GraphNames(function.inside)

    def owns(self, grown: str) -> bool:
        """Whether the thing is the function's own and gone when it returns."""
        root = _root(grown)
        if isinstance(self.node, ast.Module) or not self.names.assigned(root):
            return False
        declared = (node for node in ast.walk(self.node) if isinstance(node, (ast.Global, ast.Nonlocal)))
        return not any(root in node.names for node in declared)

    def emptied(self, grown: str, *, elsewhere: bool) -> list[Emptied]:
        """What empties a thing here; `elsewhere`: in the other functions, if it is an attribute."""
        names = [name for name in self._known.emptied if (name != self.name) == elsewhere]
        if elsewhere and not grown.startswith("self."):
            return []
        return [
            (text, self._known.settings.decides(place.tests, scope, None))
            for name in names
            for text, place, scope in self._known.emptied[name]
            if covers(text, grown)
        ]

    def runs_every_step(self, grown: str) -> bool:
        """Whether the function is called once a step and keeps the thing from call to call."""
        if isinstance(self.node, ast.Module) or self.owns(grown):
            return False
        return self._stepping.runs(self.name) and self._outlives(grown)

    def _outlives(self, grown: str) -> bool:
        """Whether what is handed over as a parameter was not made for the very step."""
        if isinstance(self.node, ast.Module):
            return True
        arguments = [one.arg for one in (*self.node.args.posonlyargs, *self.node.args.args)]
        root = _root(grown)
        if root not in arguments or root in ("self", "cls"):
            return True
        index = arguments.index(root) - (arguments[0] in ("self", "cls"))
        for value, loop in self._stepping.given(self.name, index, root):
            text = name_of(value)
            if (
                text is None
                or text in self._known.bounded
                or (loop is not None and _emptied_in(loop, text, self._known, self.node)[0])
            ):
                return False
            if loop is None and "." not in text:
                # Whoever hands it on may have made it.
                return False
        return True


def _root(grown: str) -> str:
    return re.split(r"[.\[]", grown, maxsplit=1)[0]


def _growing(function: _Function, known: _File, stepping: Stepping) -> Iterator[_Found]:
    """The growing statements of a scope that nothing empties in time."""
    scope = _Scope(function, known, stepping)
    for place in function.inside:
        growth = growth_of(place.statement, known.kinds)
        if growth is None or growth.grown in known.bounded:
            continue
        if growth.how == "key" and stepping.is_hook(function.name):
            # One key for each module that has the hook.
            continue
        elsewhere = scope.emptied(growth.grown, elsewhere=True)
        if any(unless is None for _, unless in elsewhere):
            continue
        holds = not place.no_grad and (growth.how == "carried" or scope.names.holds(growth.value, place))
        if growth.how == "sum" and not holds and not _unsure_loss(growth.value, place, scope.names):
            continue
        found = _over_steps(scope, place, growth, known, stepping)
        if found is not None and (growth.how != "carried" or found.every_step):
            unless = found.unless or next((line for _, line in elsewhere), None)
            yield found._replace(holds=holds, unless=unless)


def _over_steps(scope: _Scope, place: Place, growth: Growth, known: _File, stepping: Stepping) -> _Found | None:
    """None if it does not grow over steps."""
    grown = growth.grown
    empties = {id(loop): _emptied_in(loop, grown, known, scope.node) for loop in place.loops}
    lasting = [loop for loop in place.loops if not empties[id(loop)][0]]
    found = _Found(place, growth, False, any(trains(loop) for loop in lasting), True, True, None, None)
    found = found._replace(never_emptied=len(lasting) == len(place.loops))
    here = scope.emptied(grown, elsewhere=False)
    called = found.never_emptied and all(line is not None for _, line in here) and scope.runs_every_step(grown)
    settings = [empties[id(loop)][1] for loop in lasting] + [line for _, line in here if called]
    found = found._replace(unless=next((line for line in settings if line is not None), None))
    if not place.loops:
        return found if called else None
    owned = scope.owns(grown)
    endless = found.never_emptied and (not owned or any(_steps(loop, stepping) for loop in lasting))
    if not lasting or not (found.trains or endless):
        return None
    stays = not owned and not isinstance(scope.node, ast.Module)
    every = called or any(stepping.makes_steps(loop) for loop in lasting)
    return found._replace(every_step=every, within=None if stays else lasting[0])


def _unsure_loss(value: ast.expr, at: Place, names: GraphNames) -> bool:
    """Whether a sum's part is called a loss and nothing says that it is a plain number."""
    text = name_of(value)
    return text is not None and "loss" in text.lower() and not names.plain(value, at)


def _emptied_in(loop: Loop, grown: str, known: _File, scope: Scope) -> tuple[bool, int | None]:
    """Whether something in a loop makes the thing anew, empties it or takes from it; and else the line of a setting
    under which something does.
    """
    target = () if isinstance(loop, ast.While) else targets(loop.target)
    if any(covers(text, grown) for text in target):
        return True, None
    lines = []
    for place in _inside(loop):
        if any(covers(text, grown) for text in emptied(place.statement, known.kinds)):
            lines.append(known.settings.decides(place.tests, scope, loop))
    sure = any(line is None for line in lines)
    return sure, None if sure or not lines else lines[0]


def _inside(loop: Loop) -> Iterable[Place]:
    return places(ast.Module(body=[*loop.body, *loop.orelse], type_ignores=[]))


def _steps(loop: Loop, stepping: Stepping) -> bool:
    """Whether a loop goes over batches or steps, or never ends."""
    if stepping.makes_steps(loop):
        return True
    if isinstance(loop, ast.While):
        endless = isinstance(loop.test, ast.Constant) and bool(loop.test.value)
        return endless and not any(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop))
    return _OVER_DATA.search(ast.unparse(loop.iter)) is not None
