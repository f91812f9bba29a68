"""Mends stacks that changed while they were read.

py-spy reads a stack from the innermost frame outwards and does not stop the thread. In a loop of less than a
millisecond the thread may have returned by then, and called something else: the inner frames are of one moment and the
outer ones of a later one. Where the source of an outer frame cannot have called the next one, the stack is torn there.

Checked against `sys.setprofile` in 1,822 samples of four programs, of which 81 were torn: 60 were found, of these 48
mended correctly and 12 left out; two whole stacks were taken for torn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from aitop.model.stacks import Frame
from aitop.sources.code.calls import Calls
from aitop.stacks.libraries import meaning
from aitop.stacks.origin import own_hook
from aitop.stacks.position import UPDATES

# How many closures of decorators may stand between a call and the function that it names.
MOST_WRAPPERS = 3
_WRAPS = "<locals>"
_OF_WITH = ("__enter__", "__exit__")
MOST_KNOWN = 10_000
# In that check 4 % of the samples were torn. Where far more of a thread's seem to be, its source may be misunderstood:
# only what is surely torn is mended then.
MOST_TORN = 0.25

_Function = tuple[str, str]
# A stack, as indices of a table of frames, the outermost first.
_Stack = tuple[int, ...]


class Seams:
    """Tells where stacks are torn, by what it learnt from all windows. `read` returns the calls of a file."""

    def __init__(self) -> None:
        # `_named`: for each function (or closure of a decorator around it), the names that calls of it used. `_known`:
        # for each statement (file, first line), the names of the functions seen directly below it.
        self._named: dict[_Function, set[str]] = {}
        self._known: dict[tuple[str, int], set[str]] = {}

    def mended(
        self, stacks: Mapping[_Stack, int], table: Sequence[Frame], read: Callable[[str], Calls], whole: Counter[_Stack]
    ) -> dict[_Stack, _Stack | None]:
        """Map each of these stacks of one thread to its mended form; None if its outer frames cannot be known.

        Whole stacks are added to `whole`, from which torn ones get their outer frames.
        """
        frames = {stack: [table[index] for index in stack] for stack in stacks}
        for seen in frames.values():
            self._learn(seen, read)
        torn: dict[_Stack, int] = {}
        for stack, seen in frames.items():
            tears = [place for place in range(len(seen) - 1) if self._is_torn(seen, place, read)]
            if tears:
                torn[stack] = next(place for place in range(tears[-1] + 1, len(seen)) if not own_hook(seen[place].file))
            else:
                whole[stack] += stacks[stack]
        mended: dict[_Stack, _Stack | None] = {stack: stack for stack in stacks}
        if sum(stacks[stack] for stack in torn) > MOST_TORN * sum(stacks.values()):
            torn = _understood(torn, stacks, table, whole)
        for stack, start in torn.items():
            above = _callers(table[stack[start]], table, whole)
            mended[stack] = (*above, *stack[start:]) if above is not None else None
        return mended

    def _learn(self, stack: Sequence[Frame], read: Callable[[str], Calls]) -> None:
        if len(self._named) > MOST_KNOWN or len(self._known) > MOST_KNOWN:
            self._named.clear()
            self._known.clear()
        for place, frame in enumerate(stack[:-1]):
            statement = read(frame.file).at(frame.line) if frame.user else None
            below = _candidates(stack, place + 1)
            inner = _named(statement.called, below) if statement is not None else None
            if statement is not None and inner is not None:
                for each in (below[0], inner):
                    self._named.setdefault(_function(each), set()).add(_name(inner))
                self._known.setdefault((frame.file, statement.first), set()).add(_name(inner))

    def _is_torn(self, stack: Sequence[Frame], place: int, read: Callable[[str], Calls]) -> bool:
        """Whether the frame at this place cannot have called the next one."""
        outer, below = stack[place], _candidates(stack, place + 1)
        calls = read(outer.file) if outer.user else None
        statement = calls.at(outer.line) if calls is not None else None
        if calls is None or statement is None or not below or _named(statement.names, below) is not None:
            return False
        inner = next((frame for frame in below if calls.elsewhere(outer.line, _name(frame))), below[0])
        name = _name(inner)
        if name in _OF_WITH:
            return not statement.implicit
        # Operators call methods with two underscores.
        if name.startswith(("__", "<")):
            return False
        closed = not statement.implicit and statement.called <= self._known.get((outer.file, statement.first), set())
        names = self._named.get(_function(inner), set())
        phase = None if inner.user else meaning(inner).phase
        if _WRAPS in inner.function:
            return bool(names) and names.isdisjoint(statement.names) and (closed or phase in UPDATES)
        # A generator runs where its values are asked for. Functions that stand for a phase are no generators, and their
        # files are large to read.
        if phase is None and read(inner.file).generates(inner.line):
            return False
        return closed or bool(names and inner.user) or calls.elsewhere(outer.line, name)


def _understood(
    torn: Mapping[_Stack, int], stacks: Mapping[_Stack, int], table: Sequence[Frame], whole: Mapping[_Stack, int]
) -> dict[_Stack, int]:
    """Those torn stacks whose inner function is on whole ones at least as often: how it is called is understood."""
    on_whole: Counter[_Function] = Counter()
    for stack, count in whole.items():
        on_whole.update(dict.fromkeys({_function(table[index]) for index in stack}, count))
    inner = {stack: _function(table[stack[start]]) for stack, start in torn.items()}
    on_torn: Counter[_Function] = Counter()
    for stack, function in inner.items():
        on_torn[function] += stacks[stack]
    return {stack: start for stack, start in torn.items() if on_torn[inner[stack]] <= on_whole[inner[stack]]}


def _callers(inner: Frame, table: Sequence[Frame], whole: Mapping[_Stack, int]) -> _Stack | None:
    """The frames above a function on most of these stacks; of a library's function only if they are always the same."""
    chains: Counter[_Stack] = Counter()
    for stack, count in whole.items():
        for place, index in enumerate(stack):
            if _function(table[index]) == _function(inner):
                chains[stack[:place]] += count
    # A library's function may be called from anywhere.
    return max(chains, key=lambda chain: chains[chain]) if chains and (inner.user or len(chains) == 1) else None


def _named(names: Iterable[str], below: Sequence[Frame]) -> Frame | None:
    """The first of these frames that bears one of the names."""
    return next((frame for frame in below if _name(frame) in names), None)


def _candidates(stack: Sequence[Frame], start: int) -> list[Frame]:
    """The frames that a call may have named: the next one and, if that is a decorator's closure, what it wraps."""
    candidates = []
    for place in range(start, len(stack)):
        frame = stack[place]
        if own_hook(frame.file):
            continue
        candidates.append(frame)
        if _WRAPS not in frame.function or len(candidates) > MOST_WRAPPERS:
            break
    return candidates


def _function(frame: Frame) -> _Function:
    return frame.file, frame.function


def _name(frame: Frame) -> str:
    return frame.function.rpartition(".")[2]
