"""Runs the rules on each Snapshot and decides which findings are shown. Holds all state of the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from aitop.diagnosis import what_if
from aitop.diagnosis.evidence import judged_pid, shares_by
from aitop.diagnosis.rule import Finding, Judgement, Rule, claim
from aitop.diagnosis.rules import RULES
from aitop.errors import own_error
from aitop.model.ledger import Ledger
from aitop.model.snapshot import Snapshot
from aitop.model.verdict import SEVERITY_ORDER, Abstention, Diagnosis, Verdict

DWELL_SECONDS = 4.0
CONFIRM_TICKS = 2
# A verdict is information, not a warning, if the lower bound of its speedup is below this factor.
LEAST_GAIN = 1.1
# Memory that fills up weighs as much as the part of the next hour that it costs: once it is full, the run makes no more
# steps.
HOUR_SECONDS = 3600.0
# Another process counts as affected if its share at the verdict's lines is at least this part of the judged one's.
PEER = 0.5


class _Shown(msgspec.Struct, frozen=True):
    verdict: Verdict
    last_seen: float
    claims: frozenset[tuple[object, ...]] = frozenset()


class Judge:
    """Turns the findings of successive ticks into a stable list of verdicts.

    A finding is shown once it was at or above its band's `enter` in `CONFIRM_TICKS` ticks in a row, and is dropped once
    it was below `leave` for `DWELL_SECONDS`. While no finding is shown or being confirmed, that of the `only_alone`
    rule is shown, however weak, so there is always an answer to where the time goes.
    Rules run in order. Later rules do not see the ledger entries that an earlier finding has claimed, so no time is
    counted twice.
    """

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = rules
        self._scopes = {rule.id: rule.scope for rule in rules}
        self._lonely = {rule.id for rule in rules if rule.only_alone}
        self._following = {rule.id for rule in rules if rule.follows}
        self._shown: dict[str, _Shown] = {}
        self._entering: dict[str, int] = {}
        # What was found at the last tick. It is shown for one more, in which what follows it is confirmed.
        self._before: list[Verdict] = []

    def judge(self, snapshot: Snapshot) -> Diagnosis:
        """The verdicts and abstentions of this tick, the main verdict first. The Snapshot must have its ledgers."""
        abstained: list[Abstention] = []
        resort: Verdict | None = None
        unclaimed = snapshot
        owned: frozenset[tuple[object, ...]] = frozenset()
        shares = shares_by((entry for ledger in snapshot.ledgers for entry in ledger.entries), claim)
        for rule in self._rules:
            judgement = _judged(rule, unclaimed)
            if isinstance(judgement, Abstention):
                abstained.append(judgement)
            finding = judgement if isinstance(judgement, Finding) else None
            self._update(rule, finding, snapshot.time)
            if rule.only_alone and finding is not None and finding.level > 0.0:
                resort = finding.verdict
            shown = self._shown.get(rule.id)
            if shown is not None and _explained(shown.claims, owned, shares):
                shown = None
                del self._shown[rule.id]
            # A finding keeps its claims while it is shown, so that no other rule claims them in between.
            claims = shown.claims if shown is not None else frozenset()
            if finding is not None and finding.level >= (rule.enter if shown is None else rule.leave):
                claims |= frozenset(map(claim, finding.claims))
                if shown is not None:
                    owned |= claims
            if claims:
                unclaimed = _without(unclaimed, claims)
        shown_now = [each.verdict for each in self._shown.values()]
        before, self._before = self._before, shown_now
        if not shown_now and self._entering:
            shown_now = [verdict for verdict in before if verdict.share is not None and verdict.id != "hang"]
        elif not shown_now and resort is not None:
            shown_now = self._before = [resort]
        weighed = [_weighed(verdict) for verdict in shown_now]
        if any(verdict.share and verdict.severity != "info" for verdict in weighed):
            weighed = [verdict for verdict in weighed if not self._is_resort(verdict)]
        verdicts = sorted(weighed, key=self._importance)
        verdicts = [_weighed(verdict) for verdict in what_if.together(verdicts, self._scopes, snapshot)]
        verdicts = sorted(verdicts, key=lambda verdict: SEVERITY_ORDER[verdict.severity])
        ranks = _ranks(snapshot)
        verdicts = [
            msgspec.structs.replace(
                verdict, ranks=verdict.ranks or ranks, processes=verdict.processes or _processes(verdict, snapshot)
            )
            for verdict in verdicts
        ]
        return Diagnosis(verdicts=tuple(verdicts), abstained=tuple(abstained))

    def _update(self, rule: Rule, finding: Finding | None, now: float) -> None:
        """Show a rule's finding once it is confirmed; drop it once it was weak or absent for DWELL_SECONDS."""
        shown, ticks = self._shown.get(rule.id), self._entering.pop(rule.id, 0) + 1
        strong = finding is not None and finding.level >= (rule.enter if shown is None else rule.leave)
        if finding is not None and strong and (shown is not None or ticks >= CONFIRM_TICKS):
            self._shown[rule.id] = _Shown(finding.verdict, now, frozenset(map(claim, finding.claims)))
        elif strong:
            self._entering[rule.id] = ticks
        elif shown is not None and now - shown.last_seen >= DWELL_SECONDS:
            del self._shown[rule.id]

    def _is_resort(self, verdict: Verdict) -> bool:
        """Whether it only says where the time goes, for want of a fault."""
        return verdict.id in self._lonely and verdict.severity == "info"

    def _importance(self, verdict: Verdict) -> tuple[int, bool, bool, bool, float, str]:
        """The sort key of verdicts: severity; within it what was found alone, causes by weight, then consequences, then
        what takes no time.
        """
        weight = verdict.share or 0.0
        if verdict.full_in is not None:
            weight = max(weight, 1.0 - verdict.full_in / HOUR_SECONDS)
        together, follows = not self._is_resort(verdict), verdict.id in self._following
        return SEVERITY_ORDER[verdict.severity], together, not weight, follows, -weight, verdict.id


def _judged(rule: Rule, snapshot: Snapshot) -> Judgement:
    try:
        return rule(snapshot)
    except Exception as error:  # an error in one rule must not stop the others
        return Abstention(id=rule.id, reason=f"this rule failed ({own_error(error)})")


def _without(snapshot: Snapshot, claims: frozenset[tuple[object, ...]]) -> Snapshot:
    """The Snapshot without the entries of its ledgers that are claimed."""
    ledgers = tuple(
        msgspec.structs.replace(ledger, entries=tuple(entry for entry in ledger.entries if claim(entry) not in claims))
        for ledger in snapshot.ledgers
    )
    return msgspec.structs.replace(snapshot, ledgers=ledgers)


def _explained(
    claims: frozenset[tuple[object, ...]],
    owned: frozenset[tuple[object, ...]],
    shares: Mapping[tuple[object, ...], float],
) -> bool:
    """Whether earlier rules now claim (`owned`) most of the time of these claims: then the finding goes at once."""
    return sum(shares.get(key, 0.0) for key in claims & owned) > 0.5 * sum(shares.get(key, 0.0) for key in claims)


def _weighed(verdict: Verdict) -> Verdict:
    """The verdict, its severity lowered to info if the lower bound of its speedup is below LEAST_GAIN."""
    unsure = verdict.speedup_range is not None and verdict.speedup_range[0] < LEAST_GAIN
    return msgspec.structs.replace(verdict, severity="info") if unsure else verdict


def _processes(verdict: Verdict, snapshot: Snapshot) -> tuple[int, ...]:
    """The processes that lose this time: the judged one, then those with a similar share at its lines (PEER)."""
    pid = judged_pid(snapshot)
    places = {where.at for where in verdict.where}
    shares = {ledger.pid: _share_at(places, ledger) for ledger in snapshot.ledgers}
    peers = [other for other, share in shares.items() if share > 0.0 and share >= PEER * shares.get(pid, 0.0)]
    return tuple(dict.fromkeys((pid, *(where.pid for where in verdict.where), *peers)))


def _share_at(places: set[tuple[str, int]], ledger: Ledger) -> float:
    """The share of the process's main lane at these lines."""
    return sum(entry.share for entry in ledger.main if entry.at in places)


def _ranks(snapshot: Snapshot) -> tuple[int, ...]:
    """The number of the rank that was judged; empty if it has none."""
    pid = judged_pid(snapshot)
    return tuple(process.rank for process in snapshot.processes if process.pid == pid and process.rank is not None)
