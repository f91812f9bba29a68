"""The table of scenarios, and what the bench of verdicts makes of what it saw."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scenarios"))
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from expected import BY_NAME, SCENARIOS, WORKLOAD_DIR, Scenario
from verdict_table import error, unsure
from verdict_watch import Patience, Row, Seen, Watch, predicted

from aitop.diagnosis.rules import RULES
from aitop.model.verdict import Fix, Verdict


def verdict(name: str, **more: object) -> Verdict:
    """A warning with this id (and subtype after a slash)."""
    verdict_id, _, subtype = name.partition("/")
    fields: dict[str, object] = {"severity": "warning", "title": name, "confidence": 0.8, **more}
    return Verdict(id=verdict_id, subtype=subtype or None, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_row_of_the_table_fits_its_script(scenario: Scenario) -> None:
    known = {rule.id for rule in RULES}
    text = scenario.script.read_text()

    assert scenario.true_ids() <= known
    assert len(scenario.guilty_lines()) == len(scenario.guilty)
    assert '"--fixed"' in text or "arguments(__doc__" in text
    assert scenario.healthy() or scenario.fixed or scenario.verdict in ("memory-leak", "step-time-growth")
    if scenario.fixed and scenario.script.parent != WORKLOAD_DIR:
        mends = {"first": r"args\.first\b", "both": r"args\.(fixed|second)\b"}
        assert re.search(mends["first" if "first" in scenario.fix else "both"], text)


def test_the_suite_is_as_wide_as_it_has_to_be() -> None:
    faults = {scenario.script for scenario in SCENARIOS if not scenario.healthy()}
    healthy = {scenario.script for scenario in SCENARIOS if scenario.healthy()}
    two = {scenario.script for scenario in SCENARIOS if scenario.fix == ("--fixed", "first")}

    assert len(BY_NAME) == len(SCENARIOS)
    assert len(faults) >= 24
    assert len(healthy) >= 4
    assert len(two) >= 3
    assert not faults & healthy


def watched(name: str, *ticks: list[str], tier: int = 3) -> Watch:
    """A watch of that scenario, one tick a second, with the verdicts of each."""
    watch = Watch(BY_NAME[name], tier, alive=lambda: True)
    watch.ticks = [Seen(float(n), tuple(verdict(v) for v in tick)) for n, tick in enumerate(ticks, 1)]
    return watch


def test_the_time_to_the_verdict_counts_from_when_it_stays() -> None:
    right, wrong = ["input-bound/transform"], ["compute-bound"]

    assert watched("custom_loop", [], right, wrong, right, right).right_since() == 4.0
    assert watched("custom_loop", [], right, right, wrong).right_since() is None
    assert watched("custom_loop", ["input-bound/storage"]).right_since() is None
    assert watched("custom_loop").right_since() is None


def test_a_warning_on_a_healthy_run_counts_even_if_it_goes_away() -> None:
    assert watched("healthy_mlp", [], ["input-bound"], ["compute-bound"]).alarms() == ["input-bound"]
    assert watched("custom_loop", ["eval-stall"], ["input-bound/transform"]).alarms() == []
    assert watched("plankton", ["input-bound/transform", "checkpoint-stall"]).alarms() == []


def test_silence_is_right_for_a_healthy_run_without_stacks_only() -> None:
    assert watched("healthy_mlp", [], tier=1).right(())
    assert not watched("healthy_mlp", [], tier=2).right(())
    assert not watched("custom_loop", [], tier=1).right(())


def test_watching_ends_when_the_right_verdict_has_settled_or_the_time_is_over() -> None:
    patience = Patience(least=5.0, most=10.0, settled=3.0)

    assert not patience.over(4.0, 0.5)
    assert patience.over(5.5, 2.5)
    assert not patience.over(5.5, 3.0)
    assert not patience.over(9.9, None)
    assert patience.over(10.0, None)


def test_the_prediction_is_that_of_the_fix_that_the_script_has() -> None:
    workers = Fix(text="num_workers 2 → 6", speedup=2.4)
    found = verdict("input-bound/workers", speedup=2.8, fixes=(Fix(text="something else", speedup=1.2), workers))

    assert predicted(found, "num_workers") == 2.4
    assert predicted(found, "cache") == 2.8
    assert predicted(found, "") == 2.8
    assert predicted(verdict("compute-bound", speedup=1.0), "") is None


def test_predictions_are_held_against_the_measured_gain() -> None:
    row = Row("respawn", 3, "input-bound", "input-bound", right=True, predicted=3.0, confidence=0.5)

    assert error(row, {"respawn": (10.0, 20.0)}) == pytest.approx(0.5)
    assert error(row, {}) is None
    assert unsure(row)
    assert not unsure(Row("respawn", 3, "input-bound", "input-bound", right=True, confidence=0.7))
