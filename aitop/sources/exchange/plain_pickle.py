"""Reads pickles of plain values only: dicts with texts as keys, lists, tuples, texts, numbers. Nothing in them is ever
called or imported.

torch's own pickler wraps typed lists in calls of builders of its own; such a call is read as what is given to it.
"""

from __future__ import annotations

import pickletools
from typing import Any

MOST_OPERATIONS = 3_000_000
_TYPED = ("torch.jit._pickle build_", "torch.jit._pickle restore_type_tag")
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NO_EFFECT = frozenset({"PROTO", "FRAME"})


class _Mark:
    pass


class _Builder:
    """Stands for one of torch's builders on the stack."""


def read_plain(data: bytes) -> Any:
    """The value in a pickle. Raises ValueError for what is damaged, too long, or more than plain values."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for count, (code, argument, _) in enumerate(pickletools.genops(data)):
            if code.name == "STOP":
                return stack.pop()
            if count > MOST_OPERATIONS:
                break
            _apply(code.name, argument, stack, memo)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"a damaged pickle: {type(error).__name__}") from error
    raise ValueError("a pickle that does not end")


def _apply(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in ("BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(memo[argument])
    elif name == "MARK":
        stack.append(_Mark)
    elif name in _TUPLES:
        items = tuple(stack[-_TUPLES[name] :])
        del stack[-_TUPLES[name] :]
        stack.append(items)
    elif name not in _NO_EFFECT:
        _gather(name, argument, stack)


def _gather(name: str, argument: Any, stack: list[Any]) -> None:
    """Operations on containers."""
    if name == "EMPTY_DICT":
        stack.append({})
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_TUPLE":
        stack.append(())
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name in ("APPEND", "APPENDS"):
        items = _since_mark(stack) if name == "APPENDS" else [stack.pop()]
        stack[-1].extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = _since_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        # Hashing a tuple of tuples of tuples, each twice in the next, would never end.
        if not all(isinstance(key, str) for key in items[::2]):
            raise ValueError("a key that is no text")
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    elif name == "GLOBAL" and str(argument).startswith(_TYPED):
        stack.append(_Builder)
    elif name == "REDUCE" and stack[-2] is _Builder:
        given = stack.pop()
        stack[-1] = given[0]
    else:
        raise ValueError(f"more than plain values: {name}")


def _since_mark(stack: list[Any]) -> list[Any]:
    # From the end: searching a long stack from its start, once for each of many marks, could take hours.
    last = next(place for place in range(len(stack) - 1, -1, -1) if stack[place] is _Mark)
    items = stack[last + 1 :]
    del stack[last:]
    return items
