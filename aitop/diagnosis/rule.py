"""What a rule is: a function that looks at a Snapshot and explains what it sees there, and when that is shown.

A rule gives an Explanation, the reason why it cannot tell, or None. What all verdicts share is made of it here: the
gain (by `what_if`), how severe it is and how sure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

from aitop.diagnosis.evidence import NO_LINES, Lines, enough, records
from aitop.diagnosis.what_if import PART, Length, Scope, Timeline
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.verdict import Abstention, Fix, Severity, Verdict, Where

# A cause that takes this part of the time is critical, if two independent signals speak for it.
CRITICAL_SHARE = 0.3
# The most that one is sure of where times of the host are all there is to a run on a GPU, or one reading of a cause.
UNPROVEN = 0.45


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What a rule has to say. `share` is of the time, None for a condition that takes none.

    `gone` is the share that would go with the cause, or the new length; `share` where it is left out. With `gains`
    False there is nothing to gain. `claims` are the entries that it explains, those of `lines` where it is left out;
    `where` the places, likewise. `level` is held against the rule's band, `share` where it is left out.
    `signals` speak for the cause independently of each other: two of them make a large share critical. `base` is how
    sure it is without any, `most_sure` with all, and `doubtful` says that the evidence cannot prove it. `critical`,
    `severity` and `confidence` are for rules that know better than by signals.
    """

    title: str
    share: float | None = None
    gone: float | Length | None = None
    lines: Lines = NO_LINES
    claims: tuple[Entry, ...] | None = None
    where: tuple[Where, ...] | None = None
    evidence: Sequence[str] = ()
    fixes: Sequence[Fix] = ()
    subtype: str | None = None
    signals: Sequence[bool] = ()
    base: float = 0.55
    doubtful: bool = False
    critical: bool | None = None
    severity: Severity | None = None
    confidence: float | None = None
    most_sure: float = 0.95
    level: float | None = None
    gains: bool = True
    ranks: tuple[int, ...] = ()


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
Said = Union[Explanation, Finding, Abstention, str, None]  # noqa: UP007


@dataclass(frozen=True)
class Rule:
    """One verdict id, the function that looks for it, and its band.

    `ready` says what is missing before it can be asked; `where` it does not apply at all, it is silent. With
    `only_alone` the finding is shown only where no other one of more than information has a share of the time, and then
    ahead of all information.
    """

    id: str
    look: Callable[[Snapshot], Said]
    band: Band
    scope: Scope = PART
    ready: Callable[[Snapshot], str | None] | None = None
    applies: Callable[[Snapshot], bool] | None = None
    only_alone: bool = False

    def __call__(self, snapshot: Snapshot) -> Judgement:
        """What this rule says of a Snapshot."""
        if self.applies is not None and not self.applies(snapshot):
            return None
        said = (self.ready(snapshot) if self.ready is not None else None) or self.look(snapshot)
        if isinstance(said, str):
            return Abstention(id=self.id, reason=said)
        return _finding(self.id, said, snapshot) if isinstance(said, Explanation) else said


def rule(
    name: str,
    enter: float,
    leave: float,
    *,
    scope: Scope = PART,
    applies: Callable[[Snapshot], bool] | None = None,
    only_alone: bool = False,
) -> Callable[[Callable[[Snapshot], Said]], Rule]:
    """Make a rule of a function that explains where time goes: it is asked once there is enough to judge steps by."""
    return lambda look: Rule(name, look, Band(enter, leave), scope, enough, applies, only_alone)


def condition(name: str, enter: float = 0.5, leave: float = 0.5) -> Callable[[Callable[[Snapshot], Said]], Rule]:
    """Make a rule of a function that looks at a state of the run, which needs no steps."""
    return lambda look: Rule(name, look, Band(enter, leave))


def _finding(name: str, said: Explanation, snapshot: Snapshot) -> Finding:
    claims = said.lines.entries if said.claims is None else said.claims
    share = said.share
    gone = share if said.gone is None else said.gone
    length = gone if gone is None or isinstance(gone, Length) else Timeline().without(gone, claims)
    if share is None or not said.gains:
        length = None
    critical = sum(said.signals) >= 2 if said.critical is None else said.critical
    severe = critical and not said.doubtful and (share or 0.0) >= CRITICAL_SHARE
    sure = _confidence(said, len(records(snapshot))) if said.confidence is None else said.confidence
    verdict = Verdict(
        id=name,
        subtype=said.subtype,
        severity=said.severity or ("critical" if severe else "warning"),
        share=None if share is None else round(share, 4),
        speedup=None if length is None else round(length.speedup, 3),
        speedup_range=None if length is None else length.speedup_range,
        confidence=sure,
        title=said.title,
        where=said.lines.where if said.where is None else said.where,
        evidence=tuple(said.evidence),
        fixes=tuple(said.fixes),
        ranks=said.ranks,
    )
    return Finding(verdict, (share or 0.0) if said.level is None else said.level, claims)


def _confidence(said: Explanation, steps: int) -> float:
    """How sure a cause is: from signals that agree and the number of steps seen. The width of the gain is another
    matter.
    """
    seen = 0.1 if steps >= 50 else 0.05 if steps >= 20 else 0.0
    sure = round(min(0.95, said.base + 0.12 * sum(said.signals) + seen), 2)
    return min(sure, said.most_sure, UNPROVEN if said.doubtful else 1.0)


def claim(entry: Entry) -> tuple[object, ...]:
    """What names an entry from tick to tick, whatever its share."""
    return (
        entry.lane, entry.pid, entry.thread, entry.phase, entry.activity, entry.file, entry.line, entry.position,
        entry.work, entry.instead,
    )  # fmt: skip
