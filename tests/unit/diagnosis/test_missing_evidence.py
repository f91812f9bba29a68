"""Where evidence does not suffice every rule says so, and none of them guesses: one test for all rules there are."""

import msgspec
import pytest
from snapshot_builder import ON_CUDA, line, snapshot, steps

from aitop.diagnosis.causes import between_steps, input_bound, python_overhead
from aitop.diagnosis.conditions.hang import hang
from aitop.diagnosis.evidence import CLOSED
from aitop.diagnosis.rule import Finding
from aitop.diagnosis.rules import RULES
from aitop.model.ranks import Ranks, RankView, Standing, Standstill
from aitop.model.snapshot import Phases, Series
from aitop.model.source import SourceStatus
from aitop.model.verdict import Abstention

COMPILED = Series(times=(998.0, 999.0), values=(0.0, 1.0))


TWO_RANKS = Ranks(ranks=(RankView(rank=0, pid=100), RankView(rank=1, pid=101)), world_size=2, steps=3)


def poor(**fields):
    """Three steps of a run on a GPU that nobody can see, without stacks, and with nothing known of the host."""
    seen = snapshot(steps(3), main_samples=0, facts=ON_CUDA, series={"recompiles": COMPILED}, ranks=TWO_RANKS, **fields)
    return msgspec.structs.replace(seen, host=None)


# Evaluation is no stall but in training, and making the model's input none but in inference, where requests are.
KINDS = {"preprocessing-bound": "inference", "latency-tail": "inference", "queue-bound": "inference"}


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.id != "hang"], ids=lambda rule: rule.id)
def test_every_rule_says_what_is_missing(rule):
    answer = rule(poor(kind=KINDS.get(rule.id, "training")))
    assert isinstance(answer, Abstention) and answer.id == rule.id, answer
    assert len(answer.reason) > 10


@pytest.mark.parametrize("kind", ["training", "inference", "unknown"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_no_rule_guesses(rule, kind):
    assert not isinstance(rule(poor(kind=kind)), Finding)
    assert not isinstance(rule(msgspec.structs.replace(poor(kind=kind), steps=None, facts=None)), Finding)


def test_a_closed_source_is_not_waited_for():
    def told(**states):
        sources = {name: SourceStatus(time=1.0, source=name, state=state) for name, state in states.items()}
        return input_bound.judge(msgspec.structs.replace(poor(), steps=None, stacks=None, sources=sources)).reason

    assert told(stacks="denied", hook="absent") == CLOSED
    assert "needed" in told(stacks="ok", hook="absent") and "needed" in told(stacks="denied", hook="ok")
    assert "needed" in told()


def test_a_standstill_without_stacks_blames_nobody():
    """Both ranks have not run for a minute: that is certain, and why is not."""
    still = Standstill(seconds=60.0, usual=0.1, ranks=tuple(Standing(pid=100 + n, rank=n, role="rank") for n in (0, 1)))
    verdict = hang(msgspec.structs.replace(poor(), standstill=still)).verdict
    assert verdict.speedup is None
    assert verdict.subtype == "unknown" and verdict.ranks == () and verdict.where == ()
    assert verdict.confidence <= 0.5 and "only stacks could tell" in verdict.title


@pytest.mark.parametrize(
    ("judge", "seen"),
    [
        (between_steps.checkpoint, {"phase": "save", "activity": "native", "work": "save"}),
        (between_steps.evaluation, {"phase": "evaluation", "activity": "native"}),
        (between_steps.host_io, {"activity": "wait-disk"}),
        (python_overhead.judge, {"activity": "python"}),
    ],
)
def test_a_cause_seen_in_one_stretch_of_windows_is_only_information(judge, seen):
    def severity(*windows):
        counts = tuple(9 if number in windows else 0 for number in range(6)) if windows else ()
        aside = line("aside", 0.3, by_window=counts, **seen)
        verdict = judge(snapshot(phases=Phases(forward=0.3, backward=0.4, outside=0.3), lines=[aside])).verdict
        assert ("how often it comes is not known" in " ".join(verdict.evidence)) == (verdict.severity == "info")
        return verdict.severity

    assert severity(4) == severity(4, 5) == "info", "at the border of two windows"
    assert "info" not in (severity(1, 4), severity(3, 4, 5), severity())
