"""A fix as an edit: the line of the user's own source that it changes, before and after. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aitop.model.host import ProcessId
from aitop.model.verdict import Fix

KEYWORDS = frozenset({"num_workers", "batch_size"})
"""Settings that are keyword arguments of a loader: those can be edited."""

CALL = re.compile(r"\bDataLoader\(")
_STRING = re.compile(r"'[^']*'|\"[^\"]*\"")


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

    If the keyword is in the file, it gets the new value. Otherwise num_workers is added to the first `DataLoader(...)`.
    """
    if not editable(fix) or fix.setting is None:
        return None
    keyword, value = fix.setting.name, str(fix.setting.to)
    given = re.compile(rf"(?<![\w.])({keyword}\s*=\s*)([^,()=\n]+?)(?=\s*[,)]|\s*$)")
    call = None
    for number, line in lines:
        code, mark, comment = line.partition("#")
        stripped = code.strip()
        assigned = stripped.startswith(keyword) and not stripped.endswith((",", ")", "("))
        if stripped.startswith(("def ", "class ")) or assigned:
            continue
        after = given.sub(rf"\g<1>{value}", code, count=1)
        if after != code:
            return Edit(number, line, f"{after}{mark}{comment}")
        end = _end_of_call(code) if call is None and keyword not in code else None
        if end is not None:
            given_before = code[:end].rstrip()
            comma = {"(": "", ",": " "}.get(given_before[-1], ", ")
            call = Edit(number, line, f"{given_before}{comma}{keyword}={value}{code[end:]}{mark}{comment}")
    return call if keyword == "num_workers" else None


def _end_of_call(code: str) -> int | None:
    """Where the bracket that ends `DataLoader(...)` stands; None where the code has no such call, or not all of it."""
    # What strings say is no code.
    code = _STRING.sub(lambda string: "_" * len(string[0]), code)
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
