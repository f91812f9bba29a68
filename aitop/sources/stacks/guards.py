"""Under which condition a line of code stands, told from indentation. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_IF, _ELSE = re.compile(r"\s*(?:el)?if\b"), re.compile(r"\s*else\s*:")
_FUNCTION = re.compile(r"\s*(?:(?:async\s+)?def|class)\b")


def guard(lines: Sequence[str]) -> str | None:
    """The head of the innermost `if` above the last of these lines, within its function; None without one.

    Of an `else:` it is the head of its `if`, with "else of" before it.
    """
    if not lines:
        return None
    depth, otherwise = _indentation(lines[-1]), False
    for above in reversed(lines[:-1]):
        indentation, head = _indentation(above), above.strip()
        if not head or indentation > depth:
            continue
        if indentation == depth:
            if otherwise and _IF.match(above):
                return f"else of {head}"
            continue
        depth = indentation
        if _IF.match(above):
            return head
        if _FUNCTION.match(above):
            return None
        otherwise = bool(_ELSE.match(above))
    return None


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
