"""Rules: functions from a Snapshot to an Explanation, and the band that decides when it is shown.

A rule returns an Explanation, a reason why it cannot judge (a string), or None. This module makes the verdict from an
Explanation, with what all verdicts have in common: predicted gain (`what_if`), severity and confidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Union

import msgspec

from aitop.diagnosis.evidence import NO_LINES, Lines, base_of, records, short_place, too_little_seen
from aitop.diagnosis.what_if import USUAL_SCOPE, Length, Scope, without
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Base, Fix, NamedShare, Severity, Verdict, Where

# A cause is critical if it takes at least this share of the time and two independent signals support it.
CRITICAL_SHARE = 0.3
# Confidence without any signal, what each signal adds, and the highest value. Many steps add to it as well.
LEAST_CONFIDENCE, OF_SIGNAL, MOST_CONFIDENCE = 0.5, 0.12, 0.95
# The highest confidence if the evidence cannot prove the cause: host times alone of a run on a GPU, or one reading.
UNPROVEN = 0.45
# The library functions below a line are named if at least this share of its samples ends in them.
MOSTLY = 0.5


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rule that found something.

    share       share of the time (0..1); None for a condition that takes no time
    base        what `share` is a share of; default: the base of the ledger
    saved       the share that fixing the cause would save, or the new length of a unit; default: `share`
    gains       False: no speedup is predicted
    lines       the lines to blame: the default for `claims` and `where`
    claims      the ledger entries that it explains; where: the places to show
    level       what is compared with the rule's band; default: `share`
    signals     independent pieces of evidence; two that are True make a large share critical
    most_sure   the highest confidence (0..1) that signals and steps can give
    doubtful    the evidence cannot prove the cause: never critical, confidence at most UNPROVEN
    parts       the causes that make up `share`, where there are several
    severity, confidence   given by rules that do not derive them from signals
    processes   pids that lose the time; default: the judged process and those that lose it at the same lines
    since       when it began (seconds since the epoch), where that is known
    full_in     seconds until the memory in question is full
    """

    title: str
    share: float | None = None
    base: Base | None = None
    saved: float | Length | None = None
    lines: Lines = NO_LINES
    claims: tuple[Entry, ...] | None = None
    where: tuple[Where, ...] | None = None
    evidence: Sequence[str] = ()
    fixes: Sequence[Fix] = ()
    subtype: str | None = None
    signals: Sequence[bool] = ()
    doubtful: bool = False
    severity: Severity | None = None
    confidence: float | None = None
    most_sure: float = MOST_CONFIDENCE
    level: float | None = None
    gains: bool = True
    ranks: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()
    parts: tuple[NamedShare, ...] = ()
    since: float | None = None
    full_in: float | None = None


class Finding(msgspec.Struct, frozen=True):
    """A verdict that may be shown. `level` is compared with the rule's band.

    `claims` are the ledger entries that it explains; later rules do not see them while it is shown.
    """

    verdict: Verdict
    level: float
    claims: tuple[Entry, ...] = ()


Judgement = Union[Finding, Abstention, None]  # noqa: UP007 - evaluated at run time on 3.10
Answer = Union[Explanation, Finding, str, None]  # noqa: UP007


class Rule(msgspec.Struct, frozen=True):
    """One verdict id, the function that looks for it, and its band.

    A finding appears at `enter` and goes only below `leave`, so that it does not flicker.
    `missing` returns what is missing before the rule can judge, or None. The rule says nothing if `applies` returns
    False. With `only_alone` a finding for information is shown only if no warning has a share of the time, and then
    ahead of all others. With `follows` it is a consequence of what others found, and comes behind those of its
    severity that have a share.
    """

    id: str
    judge: Callable[[Snapshot], Answer]
    enter: float
    leave: float
    scope: Scope = USUAL_SCOPE
    missing: Callable[[Snapshot], str | None] | None = None
    applies: Callable[[Snapshot], bool] | None = None
    only_alone: bool = False
    follows: bool = False

    def __call__(self, snapshot: Snapshot) -> Judgement:
        """Judge a Snapshot."""
        if self.applies is not None and not self.applies(snapshot):
            return None
        answer = (self.missing(snapshot) if self.missing is not None else None) or self.judge(snapshot)
        if isinstance(answer, str):
            return Abstention(id=self.id, reason=answer)
        return _finding(self.id, answer, snapshot) if isinstance(answer, Explanation) else answer


def rule(
    name: str,
    enter: float,
    leave: float,
    *,
    scope: Scope = USUAL_SCOPE,
    missing: Callable[[Snapshot], str | None] | None = too_little_seen,
    applies: Callable[[Snapshot], bool] | None = None,
    only_alone: bool = False,
    follows: bool = False,
) -> Callable[[Callable[[Snapshot], Answer]], Rule]:
    """Decorator: make a rule of a function. By default it abstains until enough was seen (`too_little_seen`)."""
    return lambda judge: Rule(name, judge, enter, leave, scope, missing, applies, only_alone, follows)


def condition(name: str, enter: float = 0.5, leave: float = 0.5) -> Callable[[Callable[[Snapshot], Answer]], Rule]:
    """Decorator: make a rule of a function that looks for a condition. It needs no minimum of steps or samples."""
    return rule(name, enter, leave, missing=None)


def _finding(name: str, explanation: Explanation, snapshot: Snapshot) -> Finding:
    """Make the Finding of an explanation: add the predicted gain, severity and confidence."""
    claims = explanation.lines.entries if explanation.claims is None else explanation.claims
    share = explanation.share
    saved = share if explanation.saved is None else explanation.saved
    length = saved if saved is None or isinstance(saved, Length) else without(saved, claims)
    if share is None or not explanation.gains:
        length = None
    confirmed = sum(explanation.signals) >= 2 and not explanation.doubtful
    severe = confirmed and (share or 0.0) >= CRITICAL_SHARE
    sure = (
        _confidence(explanation, len(records(snapshot))) if explanation.confidence is None else explanation.confidence
    )
    where = tuple(explanation.lines.where if explanation.where is None else explanation.where)
    verdict = Verdict(
        id=name,
        subtype=explanation.subtype,
        severity=explanation.severity or ("critical" if severe else "warning"),
        share=None if share is None else round(share, 4),
        base=explanation.base or base_of(snapshot),
        speedup=None if length is None else round(length.speedup, 3),
        speedup_range=None if length is None else length.speedup_range,
        confidence=sure,
        title=explanation.title,
        where=where,
        evidence=(*explanation.evidence, *(_below(snapshot, where[0]) if where else ())),
        fixes=tuple(explanation.fixes),
        ranks=explanation.ranks,
        processes=explanation.processes,
        parts=explanation.parts,
        since=explanation.since,
        full_in=None if explanation.full_in is None else round(explanation.full_in, 1),
    )
    return Finding(verdict, (share or 0.0) if explanation.level is None else explanation.level, claims)


def _below(snapshot: Snapshot, place: Where) -> Iterator[str]:
    """Yield the evidence that names the library functions in which the line spends most of its time, if it does."""
    entries = [
        entry
        for ledger in snapshot.ledgers
        for entry in ledger.entries
        if entry.pid == place.pid and entry.at == (place.file, place.line) and entry.phase != "backward"
    ]
    below = max(entries, key=lambda entry: entry.share).below if entries else ()
    if sum(share for _, share in below) >= MOSTLY:
        found = (f"{percent(share)} {frame.function} ({short_place(frame)})" for frame, share in below)
        yield f"below that line: {', '.join(found)}"


def _confidence(explanation: Explanation, steps: int) -> float:
    """Confidence (0..1) in the cause, from its signals and the number of steps. It says nothing about the gain."""
    seen = 0.1 if steps >= 50 else 0.05 if steps >= 20 else 0.0
    sure = round(LEAST_CONFIDENCE + OF_SIGNAL * sum(explanation.signals) + seen, 2)
    return min(sure, UNPROVEN if explanation.doubtful else explanation.most_sure)


def claim(entry: Entry) -> tuple[object, ...]:
    """The key of an entry: the same from tick to tick, whatever its share."""
    return (
        entry.lane, entry.pid, entry.thread, entry.phase, entry.activity, entry.file, entry.line, entry.position,
        entry.work, entry.instead,
    )  # fmt: skip
