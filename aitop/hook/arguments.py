"""What the arguments of a forward tell."""

from __future__ import annotations

from typing import Any


def leading(args: Any, kwargs: Any, tensor: type, depth: int = 0) -> int:
    """The first dimension of the first tensor that has one among the arguments, -1 without one."""
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, tensor):
            if value.dim():  # type: ignore[attr-defined]
                size = value.size(0)  # type: ignore[attr-defined]
                return size if type(size) is int else -1
            continue
        if depth < 2 and isinstance(value, (list, tuple)):
            found = leading(value, None, tensor, depth + 1)
        elif depth < 2 and isinstance(value, dict):
            found = leading((), value, tensor, depth + 1)
        else:
            continue
        if found >= 0:
            return found
    return -1
