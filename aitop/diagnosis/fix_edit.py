"""A fix as an edit: the line of the user's own source that it changes, before and after. Pure."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aitop.model.host import ProcessId
from aitop.model.verdict import Fix

KEYWORDS = frozenset({"num_workers", "batch_size"})
"""Settings that are keyword arguments of a loader: those can be edited."""

CALL = re.compile(r"\bDataLoader\(")
# Tokens that are no code, and what to put in their place. From Python 3.12 on the text of an f-string is one by itself.
BLANKS = {"STRING": "_", "FSTRING_MIDDLE": "_", "TSTRING_MIDDLE": "_", "COMMENT": " "}

SourceAround = Callable[[ProcessId, str, int], "list[tuple[int, str]] | None"]
"""Returns the source around (process, file, line) as numbered lines; all of it for line 0, None if it is unreadable."""


class Edit(NamedTuple):
    """A changed line: its number (from 1), its text before and after, and its file, empty where that is not known."""

    number: int
    before: str
    after: str
    file: str = ""


def editable(fix: Fix) -> bool:
    """Whether the fix sets a keyword that may stand in the source."""
    return fix.setting is not None and fix.setting.name in KEYWORDS


def edit_of(fix: Fix, lines: Iterable[tuple[int, str]]) -> Edit | None:
    """The line of a file in which a fix sets a keyword of a loader; None for other fixes, and if there is no such line.

    It is the first line with the value that the fix says is there now, else the first whose value is no number. If
    there is none, num_workers, which is 0 by default, is added to the first `DataLoader(...)`.
    """
    if not editable(fix) or fix.setting is None:
        return None
    keyword, value, current = fix.setting.name, str(fix.setting.to), fix.setting.current
    given = re.compile(rf"(?<![\w.]){keyword}\s*=\s*([^,()=\n]+?)(?=\s*[,)]|\s*$)")
    lines, other, call = list(lines), None, None
    for (number, line), code in zip(lines, _code_of([text for _, text in lines]), strict=False):
        stripped = code.strip()
        assigned = stripped.startswith(keyword) and not stripped.endswith((",", ")", "("))
        if stripped.startswith(("def ", "class ")) or assigned:
            continue
        for match in given.finditer(code):
            edit = Edit(number, line, line[: match.start(1)] + value + line[match.end(1) :])
            if match[1] == str(current):
                return edit
            # Another number is that of another loader.
            if current is None or not match[1].isdigit():
                other = other or edit
        end = _end_of_call(code) if call is None and keyword not in code else None
        if end is not None:
            given_before = line[:end].rstrip()
            comma = {"(": "", ",": " "}.get(given_before[-1], ", ")
            call = Edit(number, line, f"{given_before}{comma}{keyword}={value}{line[end:]}")
    return other or (call if keyword == "num_workers" and not current else None)


def _code_of(lines: list[str]) -> list[str]:
    """The lines with each character of a string replaced by "_", and of a comment by a space; none if not Python."""
    code = list(lines)
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            blank = BLANKS.get(tokenize.tok_name[token.type], "")
            for row in range(token.start[0], token.end[0] + 1) if blank else ():
                line = code[row - 1]
                start = token.start[1] if row == token.start[0] else 0
                end = token.end[1] if row == token.end[0] else len(line)
                code[row - 1] = f"{line[:start]}{blank * (end - start)}{line[end:]}"
    except (tokenize.TokenError, SyntaxError):
        return []
    return code


def _end_of_call(code: str) -> int | None:
    """Where the bracket that ends `DataLoader(...)` stands; None where the code has no such call, or not all of it."""
    call = CALL.search(code)
    depth = 0
    for end in range(call.end() - 1, len(code)) if call is not None else ():
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        if depth == 0:
            return end
    return None


def find_edits(
    source_around: SourceAround, fixes: tuple[Fix, ...], files: tuple[tuple[ProcessId, str], ...]
) -> dict[str, Edit]:
    """The first line in these files that each fix changes, by the fix's text. May be slow; never raises."""
    edits: dict[str, Edit] = {}
    for process, file in files:
        try:
            lines = source_around(process, file, 0) or []
        except Exception:
            # What cannot be read has no line to change.
            lines = []
        for fix in fixes:
            edit = edit_of(fix, lines) if fix.text not in edits else None
            if edit is not None:
                edits[fix.text] = edit._replace(file=file)
    return edits
