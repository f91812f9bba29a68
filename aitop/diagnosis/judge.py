"""Runs the rules over successive Snapshots: bands, dwell and order. The only state of the diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from aitop.diagnosis.composition import composed
from aitop.diagnosis.rule import Finding, Judgement, Rule
from aitop.diagnosis.rules import RULES
from aitop.model.snapshot import Snapshot
from aitop.model.verdict import SEVERITY_ORDER, Abstention, Diagnosis, Verdict

DWELL_SECONDS = 4.0
CONFIRM_TICKS = 2


@dataclass(frozen=True)
class _Shown:
    verdict: Verdict
    last_seen: float


class Memory(NamedTuple):
    """What a Judge remembers of the ticks before: see `Judge.memory`."""

    shown: dict[str, _Shown]
    entering: dict[str, int]


class Judge:
    """Remembers which findings are shown. A finding is shown once it entered its band in `CONFIRM_TICKS` ticks
    running, and stays until it was below its band's `leave` for `DWELL_SECONDS`.
    """

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self._rules = rules
        self._shown: dict[str, _Shown] = {}
        self._entering: dict[str, int] = {}

    def memory(self) -> Memory:
        """A copy of what is remembered now."""
        return Memory(dict(self._shown), dict(self._entering))

    def recall(self, memory: Memory) -> None:
        """Remember this and nothing else."""
        self._shown, self._entering = dict(memory.shown), dict(memory.entering)

    def judge(self, snapshot: Snapshot) -> Diagnosis:
        """The findings and abstentions of this tick, the primary finding first."""
        abstained: list[Abstention] = []
        for rule in self._rules:
            judgement = _judged(rule, snapshot)
            if isinstance(judgement, Abstention):
                abstained.append(judgement)
            self._update(rule, judgement if isinstance(judgement, Finding) else None, snapshot.time)
        verdicts = sorted((shown.verdict for shown in self._shown.values()), key=_importance)
        verdicts = _alone_or_not(verdicts, {rule.id for rule in self._rules if rule.only_alone})
        verdicts = list(composed(verdicts, snapshot))
        ranks = _ranks(snapshot)
        verdicts = [msgspec.structs.replace(verdict, ranks=verdict.ranks or ranks) for verdict in verdicts]
        return Diagnosis(verdicts=tuple(verdicts), abstained=tuple(abstained))

    def _update(self, rule: Rule, finding: Finding | None, now: float) -> None:
        shown = self._shown.get(rule.id)
        level = finding.level if finding else 0.0
        if shown is not None:
            if finding is not None and level >= rule.band.leave:
                self._shown[rule.id] = _Shown(finding.verdict, now)
            elif now - shown.last_seen >= DWELL_SECONDS:
                del self._shown[rule.id]
            return
        if finding is None or level < rule.band.enter:
            self._entering.pop(rule.id, None)
            return
        seen = self._entering.get(rule.id, 0) + 1
        self._entering[rule.id] = seen
        if seen >= CONFIRM_TICKS:
            del self._entering[rule.id]
            self._shown[rule.id] = _Shown(finding.verdict, now)


def _judged(rule: Rule, snapshot: Snapshot) -> Judgement:
    try:
        return rule.judge(snapshot)
    except Exception as error:  # one rule's mistake must not silence the others
        return Abstention(id=rule.id, reason=f"this rule failed ({type(error).__name__}: {error})")


def _alone_or_not(verdicts: list[Verdict], lonely: set[str]) -> list[Verdict]:
    """Without the `lonely` ones where another one is more than information and has a share, else with them ahead of
    all information.
    """
    if any(one.share and one.severity != "info" and one.id not in lonely for one in verdicts):
        return [one for one in verdicts if one.id not in lonely]
    return sorted(verdicts, key=lambda one: (SEVERITY_ORDER[one.severity], one.id not in lonely))


def _ranks(snapshot: Snapshot) -> tuple[int, ...]:
    """The rank whose steps were judged; empty where it has no number."""
    judged = snapshot.steps.pid if snapshot.steps and snapshot.steps.pid else snapshot.target.pid
    processes = snapshot.host.processes if snapshot.host else ()
    return tuple(process.rank for process in processes if process.pid == judged and process.rank is not None)


def _importance(verdict: Verdict) -> tuple[int, float, str]:
    return SEVERITY_ORDER[verdict.severity], -(verdict.share or 0.0), verdict.id
