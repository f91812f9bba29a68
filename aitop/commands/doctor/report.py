"""One line of the doctor's report, and the whole report as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

import msgspec

from aitop import __version__
from aitop.model.text import printable

State = Literal["works", "does-not", "not-needed"]

SCHEMA = 1
MARKS = {"works": "works", "does-not": "does not", "not-needed": "not needed"}
INDENT = 12
NARROWEST = 24


class Check(msgspec.Struct, frozen=True):
    """One line of the report: what was checked, its state, the reason, and a remedy (only where it `does-not` work).

    `not-needed`: it is not there, and would not help here, such as NVML on a machine without a GPU.
    """

    name: str
    state: State
    reason: str
    remedy: str | None = None


def works(name: str, reason: str) -> Check:
    """A check of something that is as it should be."""
    return Check(name, "works", printable(reason))


def fault(name: str, reason: str, remedy: str | None = None) -> Check:
    """A check of something that does not work, with what would mend it."""
    return Check(name, "does-not", printable(reason), None if remedy is None else printable(remedy))


def not_needed(name: str, reason: str) -> Check:
    """A check of something that is not there and need not be."""
    return Check(name, "not-needed", printable(reason))


def as_text(checks: Sequence[Check], columns: int | None = None) -> str:
    """One line per check, and one for its remedy. Lines are wrapped at `columns`; None wraps none."""
    indent = INDENT + max((len(check.name) for check in checks), default=0) + 2
    lines = []
    for check in checks:
        head = f"{MARKS[check.state]:<{INDENT}}{check.name}".ljust(indent)
        lines += _broken(head, check.reason, indent, columns)
        if check.remedy:
            lines += _broken(" " * indent + "→ ", check.remedy, indent + 2, columns)
    return "\n".join(lines) + "\n"


def _broken(head: str, text: str, indent: int, columns: int | None) -> list[str]:
    """`head` and `text` wrapped at `columns`; further lines are indented by `indent`."""
    if columns is None:
        return [head + text]
    width, below = max(columns, indent + NARROWEST), " " * indent
    wrapper = textwrap.TextWrapper(width, head, below, break_on_hyphens=False, break_long_words=False)
    return wrapper.wrap(text) or [head]


def as_json(checks: Sequence[Check], pid: int | None) -> str:
    """One object with `schema`, `aitop`, `ok`, `pid` and `checks`; keys are added, none removed."""
    from aitop.outputs.report import as_json as indented

    report = {
        "schema": SCHEMA,
        "aitop": __version__,
        "ok": all(check.state != "does-not" for check in checks),
        "pid": pid,
        "checks": checks,
    }
    return indented(report)
