"""What one rule says, and what all of them show, for tests of rules."""

from aitop.diagnosis.judge import CONFIRM_TICKS, Judge
from aitop.diagnosis.rule import Finding
from aitop.model.verdict import Abstention


def fired(judgement):
    """The verdict of a rule that has one."""
    assert isinstance(judgement, Finding), judgement
    return judgement.verdict


def level(judgement):
    """How strongly a rule speaks, 0 where it does not."""
    return judgement.level if isinstance(judgement, Finding) else 0.0


def unjudged(judgement):
    """Why a rule could not speak."""
    assert isinstance(judgement, Abstention), judgement
    return judgement.reason


def shown(seen):
    """The verdicts on a Snapshot that stays as it is, the primary one first."""
    judge = Judge()
    return [judge.judge(seen) for _ in range(CONFIRM_TICKS)][-1].verdicts
