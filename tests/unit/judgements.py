"""What a rule said, for tests of rules."""

from __future__ import annotations

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
