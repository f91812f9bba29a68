"""What several rules ask of the same steps is found once: a fast run has thousands of them at each judgement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from aitop.model.steps import StepRecord

Steps = tuple[StepRecord, ...]
P = ParamSpec("P")
R = TypeVar("R")


def kept(ask: Callable[Concatenate[Steps, P], R]) -> Callable[Concatenate[Steps, P], R]:
    """Remember what a pure function of steps and of hashable arguments said, until it is asked of other steps.

    These are told by which tuple it is: a snapshot's is never changed.
    """
    newest: tuple[Steps, dict[object, R]] = ((), {})

    def asked(steps: Steps, /, *args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal newest
        about, answers = newest
        if about is not steps:
            answers = {}
            newest = steps, answers
        key = (args, tuple(kwargs.items()))
        if key not in answers:
            answers[key] = ask(steps, *args, **kwargs)
        return answers[key]

    return asked
