"""The doctor's report as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aitop import __version__
from aitop.commands.doctor.check import Check
from aitop.model.text import printable

SCHEMA = 1
MARKS = {"works": "works", "does-not": "does not", "not-needed": "not needed"}
INDENT = 12


def as_text(checks: Sequence[Check]) -> str:
    """One line a check, and one with what mends it."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{MARKS[check.state]:<{INDENT}}{printable(check.name):<{width}}  {printable(check.reason)}")
        if check.remedy and check.state == "does-not":
            lines.append(f"{'':<{INDENT + width + 2}}→ {printable(check.remedy)}")
    return "\n".join(lines) + "\n"


def as_json(checks: Sequence[Check], pid: int | None) -> str:
    """One object with `schema`, `aitop`, `ok`, `pid` and `checks`; keys are added, none removed."""
    report = {
        "schema": SCHEMA,
        "aitop": __version__,
        "ok": all(check.state != "does-not" for check in checks),
        "pid": pid,
        "checks": [msgspec.structs.replace(check, **_clean(check)) for check in checks],
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def _clean(check: Check) -> dict[str, str | None]:
    remedy = None if check.remedy is None else printable(check.remedy)
    return {"reason": printable(check.reason), "remedy": remedy}
