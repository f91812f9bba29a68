"""Runs the rules over successive Snapshots: claims, bands, dwell and order. The only state of the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aitop.diagnosis import what_if
from aitop.diagnosis.evidence import judged_pid
from aitop.diagnosis.rule import Finding, Judgement, Rule, claim
from aitop.diagnosis.rules import RULES
from aitop.model.ledger import Ledger
from aitop.model.snapshot import Snapshot
from aitop.model.verdict import SEVERITY_ORDER, Abstention, Diagnosis, Verdict

DWELL_SECONDS = 4.0
CONFIRM_TICKS = 2
# What gains less than this factor is worth knowing, but no warning.
LEAST_GAIN = 1.1
# Another process loses time in the same way if it spends at least this part of the first one's share at its lines.
PEER = 0.5


@dataclass(frozen=True)
class _Shown:
    verdict: Verdict
    last_seen: float
    claims: frozenset[tuple[object, ...]] = frozenset()


class Judge:
    """Remembers which findings are shown. A finding is shown once it entered its band in `CONFIRM_TICKS` ticks
    running, and stays until it was below its band's `leave` for `DWELL_SECONDS`.

    Rules claim entries of the ledger in their order: what a finding explains is not seen by the rules after it, so no
    moment is blamed twice.
    """

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = rules
        self._scopes = {rule.id: rule.scope for rule in rules}
        self._shown: dict[str, _Shown] = {}
        self._entering: dict[str, int] = {}

    def judge(self, snapshot: Snapshot) -> Diagnosis:
        """The findings and abstentions of this tick, the primary finding first. The Snapshot has its ledgers."""
        abstained: list[Abstention] = []
        left = snapshot
        owned: frozenset[tuple[object, ...]] = frozenset()
        shares = {claim(entry): entry.share for ledger in snapshot.ledgers for entry in ledger.entries}
        for rule in self._rules:
            judgement = _judged(rule, left)
            if isinstance(judgement, Abstention):
                abstained.append(judgement)
            finding = judgement if isinstance(judgement, Finding) else None
            self._update(rule, finding, snapshot.time)
            if rule.id in self._shown and _explained(self._shown[rule.id].claims, owned, shares):
                del self._shown[rule.id]
            # A finding keeps its claims while it is shown, so that another rule does not take them for a moment.
            claims = self._shown[rule.id].claims if rule.id in self._shown else frozenset()
            if finding is not None and finding.level >= rule.band.leave:
                claims |= frozenset(map(claim, finding.claims))
                if rule.id in self._shown:
                    owned |= claims
            if claims:
                left = _without(left, claims)
        verdicts = sorted((_weighed(shown.verdict) for shown in self._shown.values()), key=_importance)
        verdicts = _alone_or_not(verdicts, {rule.id for rule in self._rules if rule.only_alone})
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
        shown = self._shown.get(rule.id)
        level = finding.level if finding else 0.0
        if finding is not None and shown is None and level >= rule.band.enter:
            self._entering[rule.id] = self._entering.get(rule.id, 0) + 1
        else:
            self._entering.pop(rule.id, None)
        if finding is not None and (
            self._entering.get(rule.id, 0) >= CONFIRM_TICKS or (shown is not None and level >= rule.band.leave)
        ):
            self._entering.pop(rule.id, None)
            self._shown[rule.id] = _Shown(finding.verdict, now, frozenset(map(claim, finding.claims)))
        elif shown is not None and now - shown.last_seen >= DWELL_SECONDS:
            del self._shown[rule.id]


def _judged(rule: Rule, snapshot: Snapshot) -> Judgement:
    try:
        return rule(snapshot)
    except Exception as error:  # one rule's mistake must not silence the others
        return Abstention(id=rule.id, reason=f"this rule failed ({type(error).__name__}: {error})")


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
    """Whether rules that come first explain most of these entries by now: there is no reason to wait for a dwell."""
    return sum(shares.get(each, 0.0) for each in claims & owned) > 0.5 * sum(shares.get(each, 0.0) for each in claims)


def _weighed(verdict: Verdict) -> Verdict:
    """The verdict, as information only where next to nothing would be gained."""
    little = verdict.severity == "warning" and verdict.speedup is not None and verdict.speedup < LEAST_GAIN
    return msgspec.structs.replace(verdict, severity="info") if little else verdict


def _alone_or_not(verdicts: list[Verdict], lonely: set[str]) -> list[Verdict]:
    """Without the `lonely` ones where another one is more than information and has a share, else with them ahead of
    all information.
    """
    if any(verdict.share and verdict.severity != "info" and verdict.id not in lonely for verdict in verdicts):
        return [verdict for verdict in verdicts if verdict.id not in lonely]
    return sorted(verdicts, key=lambda verdict: (SEVERITY_ORDER[verdict.severity], verdict.id not in lonely))


def _processes(verdict: Verdict, snapshot: Snapshot) -> tuple[int, ...]:
    """The processes that lose the time: the one that was judged first, then those that lose as much at its lines."""
    pid = judged_pid(snapshot)
    places = {(where.file, where.line) for where in verdict.where}
    shares = {ledger.pid: _share_at(places, ledger) for ledger in snapshot.ledgers}
    peers = [other for other, share in shares.items() if share > 0.0 and share >= PEER * shares.get(pid, 0.0)]
    return tuple(dict.fromkeys((pid, *(where.pid for where in verdict.where), *peers)))


def _share_at(places: set[tuple[str, int]], ledger: Ledger) -> float:
    """The share of the process's own time at these lines."""
    entries = [entry for entry in ledger.entries if entry.lane == "main"]
    return sum(entry.share for entry in entries if (entry.file, entry.line) in places)


def _ranks(snapshot: Snapshot) -> tuple[int, ...]:
    """The rank whose time was judged; empty where it has no number."""
    pid = judged_pid(snapshot)
    processes = snapshot.host.processes if snapshot.host else ()
    return tuple(process.rank for process in processes if process.pid == pid and process.rank is not None)


def _importance(verdict: Verdict) -> tuple[int, float, str]:
    return SEVERITY_ORDER[verdict.severity], -(verdict.share or 0.0), verdict.id
