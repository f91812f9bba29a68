"""Tells from the dataflow of a function which statements make the model's input and which use its output. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol, TypeVar

from aitop.model.stacks import Flow, Frame


class _Lines(Protocol):
    """Anything with a first and a last line."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


_Part = TypeVar("_Part", bound=_Lines)


def innermost(parts: Iterable[_Part], line: int) -> _Part | None:
    """The innermost of these functions or statements of one file that contains the line. Outer ones come first."""
    around = [each for each in parts if each.first <= line <= each.last]
    return min(reversed(around), key=lambda each: each.last - each.first, default=None)


class ModelCalls:
    """The calls of the model in one function, and how its other statements relate to them.

    `calls` are lines below which the model was seen to run, `updates` lines with its backward or optimizer below them.
    """

    def __init__(self, flow: Flow, calls: Collection[int], updates: Collection[int]) -> None:
        self._statements = flow.statements
        self._loops = flow.loops
        self._updates = updates
        self._calls = {first for first in map(self._at, calls) if first is not None}
        updating = {first for first in map(self._at, updates) if first is not None}
        # A line that also updates the model is a whole step: the model does not act there.
        acting = self._calls - updating
        # Values that an update changes are weights, not data.
        uses = {each.first: [used for used in each.uses if used not in updating] for each in flow.statements}
        users: dict[int, list[int]] = {}
        for user, used in uses.items():
            for line in used:
                users.setdefault(line, []).append(user)
        self._carrying = {line for line, used in uses.items() if line in used}
        # Only from a call back to itself: code between two different calls is a part of a larger model, or of its loss.
        circles = (
            reached([call], lambda line: uses.get(line, ())) & reached([call], lambda line: users.get(line, ()))
            for call in acting
        )
        self._between = set().union(*circles) - self._calls
        # What is put into a store, such as a replay memory, is data when it is taken out again for another call.
        following = reached(self._calls, lambda line: () if line in self._carrying else users.get(line, ()))
        made = reached(self._calls, lambda line: uses.get(line, ()))
        self._inputs = made - following - self._between - self._calls
        self._outer = {each.first: each.outer for each in flow.statements}
        self._apart = {each.first for each in flow.statements if each.apart}

    def feeds(self, line: int) -> bool:
        """Whether the value of a line goes into a call of the model and does not come from the model's output."""
        return self._at(line) in self._inputs

    def follows(self, line: int, called: Frame) -> bool:
        """Whether a function that is called on the line of a model's call cannot compute an argument for the model."""
        return called.function.rpartition(".")[2] in self._outer.get(self._at(line) or 0, ())

    def apart(self, line: int) -> bool | None:
        """Whether the calls of the model that a line makes in a loop need nothing that an earlier one gave.

        None where it makes one call only.
        """
        first = self._at(line)
        if first is None or first not in self._calls:
            return None
        return first in self._apart or (False if any(begin < first <= end for begin, end in self._loops) else None)

    def answers(self, line: int) -> bool:
        """Whether a line makes the model's next input from its last output while the model acts.

        The model acts in a loop without an update, or in a loop with an update that calls it more than once.
        """
        first = self._at(line)
        if first is None or first not in self._between:
            return False
        loop = self._loop(first, with_call=True)
        if loop is None:
            return False
        inside = [call for call in self._calls if _holds(loop, call)]
        if not any(_holds(loop, update) for update in self._updates):
            return True
        return len(inside) > 1 and any(self._loop(call) == loop for call in inside)

    def carries(self, line: int) -> bool:
        """Whether a line uses a value that it made or changed in an earlier round of a loop, as environments do.

        Sampling an action from the model's output, or making a tensor of an observation, does not.
        """
        return self._at(line) in self._carrying

    def _at(self, line: int) -> int | None:
        """The first line of the statement around a line, which stands for it; None outside of all."""
        statement = innermost(self._statements, line)
        return None if statement is None else statement.first

    def _loop(self, line: int, *, with_call: bool = False) -> tuple[int, int] | None:
        """The innermost loop around a line; with `with_call` the innermost that calls the model."""
        around = [loop for loop in self._loops if _holds(loop, line)]
        if with_call:
            around = [loop for loop in around if any(_holds(loop, call) for call in self._calls)]
        return min(around, key=lambda loop: loop[1] - loop[0], default=None)


def _holds(loop: tuple[int, int], line: int) -> bool:
    return loop[0] <= line <= loop[1]


def reached(start: Iterable[int], following: Callable[[int], Iterable[int]]) -> set[int]:
    """All lines that can be reached from `start` by `following`; a line of `start` only if a path leads back to it."""
    lines: set[int] = set()
    ahead = list(start)
    while ahead:
        for line in following(ahead.pop()):
            if line not in lines:
                lines.add(line)
                ahead.append(line)
    return lines
