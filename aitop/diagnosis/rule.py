"""What a rule is: a pure function from a Snapshot to a finding, an abstention, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.verdict import Abstention, Verdict


@dataclass(frozen=True)
class Finding:
    """A verdict that could be given, and how strongly: `level` is held against the rule's band.

    `claims` are the entries of the ledger that it explains; no later rule sees them while it is shown.
    """

    verdict: Verdict
    level: float
    claims: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Band:
    """A finding appears at `enter` and goes only below `leave`, so that it does not flicker."""

    enter: float
    leave: float


Judgement = Union[Finding, Abstention, None]  # noqa: UP007 - evaluated at run time on 3.10


@dataclass(frozen=True)
class Rule:
    """One verdict id, the function that looks for it, and its band.

    With `only_alone` the finding is told only where no other one of more than information has a share of step time to
    gain, and then ahead of all information.
    """

    id: str
    judge: Callable[[Snapshot], Judgement]
    band: Band
    only_alone: bool = False


def claim(entry: Entry) -> tuple[object, ...]:
    """What names an entry from tick to tick, whatever its share."""
    return (
        entry.lane, entry.pid, entry.thread, entry.phase, entry.activity, entry.file, entry.line, entry.position,
        entry.work, entry.instead,
    )  # fmt: skip
