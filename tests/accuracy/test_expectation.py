"""The table of scenarios fits its scripts, and a run is held against it rightly."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from expectation import Row, Seen, predicted, row_of
from expected import BY_NAME, SCENARIOS, WORKLOAD_DIR, Scenario
from verdict_gains import write_gains
from verdict_table import figures

from aitop.diagnosis.judge import LEAST_GAIN
from aitop.diagnosis.rules import RULES
from aitop.model.verdict import Fix, Verdict, Where


def verdict(name: str, **more: object) -> Verdict:
    """A warning with this id (and subtype after a slash)."""
    verdict_id, _, subtype = name.partition("/")
    fields: dict[str, object] = {"severity": "warning", "title": name, "confidence": 0.8, **more}
    return Verdict(id=verdict_id, subtype=subtype or None, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_row_of_the_table_fits_its_script(scenario: Scenario) -> None:
    text = scenario.script.read_text()

    assert scenario.true_ids() <= {rule.id for rule in RULES}
    assert len(scenario.guilty_lines()) == len(scenario.guilty)
    assert '"--fixed"' in text or "arguments(__doc__" in text
    assert scenario.healthy() or scenario.fixed or scenario.verdict in ("memory-leak", "step-time-growth")
    if scenario.fixed and scenario.script.parent != WORKLOAD_DIR:
        mends = {"first": r"args\.first\b", "both": r"args\.(fixed|second)\b"}
        assert re.search(mends["first" if "first" in scenario.fix else "both"], text)


def seen(*ticks: list[str]) -> list[Seen]:
    """One tick a second, with the verdicts of each."""
    return [Seen(float(n), tuple(verdict(v) for v in tick)) for n, tick in enumerate(ticks, 1)]


def row(name: str, *ticks: list[str], tier: int = 3) -> Row:
    """The row of a run of that scenario, one tick a second."""
    return row_of(BY_NAME[name], tier, seen(*ticks))


def test_the_time_to_the_verdict_counts_from_when_it_stays() -> None:
    right, wrong = ["input-bound/transform"], ["compute-bound"]

    assert row("custom_loop", [], right, wrong, right, right).seconds == 4.0
    assert row("custom_loop", [], right, right, wrong).seconds is None
    assert row("healthy_mlp", ["compute-bound"]).seconds is None


def test_a_warning_on_a_healthy_run_counts_even_if_it_goes_away() -> None:
    assert row("healthy_mlp", [], ["input-bound"], ["compute-bound"]).alarms == ["input-bound"]
    assert row("custom_loop", ["eval-stall"], ["input-bound/transform"]).alarms == []
    assert row("custom_loop", ["input-bound/transform", "eval-stall"]).alarms == ["eval-stall"]
    assert row("plankton", ["input-bound/transform", "checkpoint-stall"]).alarms == []


def test_silence_is_right_for_a_healthy_run_without_stacks_only() -> None:
    assert row("healthy_mlp", [], tier=1).right
    assert not row("healthy_mlp", [], tier=2).right
    assert not row("custom_loop", [], tier=1).right


def test_a_line_is_right_in_the_scripts_file_alone() -> None:
    scenario = BY_NAME["custom_loop"]
    line = min(scenario.guilty_lines())

    def said(file: str, line: int, files: dict[str, str] | None = None) -> bool | None:
        place = Where(pid=1, file=file, line=line, function="f")
        ticks = [Seen(1.0, (verdict("input-bound/transform", where=(place,)),))]
        return row_of(scenario, 3, ticks, files).right_line

    assert said("/elsewhere/custom_loop.py", line)
    assert not said("/elsewhere/other.py", line)
    assert not said("/elsewhere/custom_loop.py", max(scenario.guilty_lines()) + 1000)
    assert said("/elsewhere/river.py", line, {"river.py": "custom_loop.py"})


def test_a_mended_script_has_only_its_second_fault_left() -> None:
    plankton, loop = BY_NAME["plankton"].mended(), BY_NAME["custom_loop"].mended()

    assert row_of(plankton, 3, seen(["checkpoint-stall"])).alarms == []
    assert row_of(plankton, 3, seen(["input-bound/transform"], ["compute-bound"])).alarms == ["input-bound/transform"]
    assert row_of(loop, 3, seen(["compute-bound"])).right


def test_what_is_left_of_a_mended_script_is_no_untrue_warning() -> None:
    baskets = BY_NAME["baskets"].mended()

    assert row_of(baskets, 3, seen(["input-bound/transform"])).alarms == []
    assert row_of(baskets, 3, seen(["compute-bound", "gc-stall"])).alarms == ["gc-stall"]
    assert row_of(BY_NAME["custom_loop"].mended(), 3, seen(["input-bound"])).alarms == ["input-bound"]


@pytest.mark.parametrize(
    "scenario", [scenario for scenario in SCENARIOS if scenario.left], ids=lambda scenario: scenario.name
)
def test_what_is_left_can_be_taken_away_and_is_worth_a_warning(scenario: Scenario) -> None:
    for left in scenario.left:
        compile(left.edited(scenario.script.read_text()), scenario.script.name, "exec")
        assert left.verdict.partition("/")[0] in {rule.id for rule in RULES}
        assert left.gain >= LEAST_GAIN


def test_the_prediction_is_that_of_the_fix_that_the_script_has() -> None:
    workers, other = Fix(text="num_workers 2 → 6", speedup=2.4), Fix(text="something else", speedup=1.2)
    warning = verdict("input-bound/workers", speedup=2.8, fixes=(other, workers))

    assert predicted(warning, "num_workers") == (2.4, False)
    assert predicted(warning, "something") == (1.2, True)
    assert predicted(warning, "cache") == (2.8, False)
    assert predicted(verdict("gc-stall", speedup=2.8), "") == (2.8, None)
    assert predicted(verdict("compute-bound", speedup=1.0), "") == (None, None)


GOOD = Row(
    "respawn",
    3,
    "input-bound",
    "input-bound",
    right=True,
    right_line=True,
    seconds=3.0,
    predicted=2.0,
    if_gone=2.0,
    gone_range=(1.8, 2.4),
)


@pytest.mark.parametrize(
    ("change", "gain", "missed"),
    [
        ({"right": False}, 2.0, "first verdict right"),
        ({"right_line": False}, 2.0, "line right"),
        ({"alarms": ["eval-stall"]}, 2.0, "faulty runs with an untrue warning"),
        ({"seconds": 9.0}, 2.0, "until the right verdict stays, median"),
        ({}, 3.0, "error of a predicted gain, median"),
        ({"said": "compute-bound", "predicted": None}, 2.0, "error of a predicted gain, median"),
        ({"gone_range": (2.4, 2.6)}, 2.0, "measured gain within the range"),
        ({"mended": True, "alarms": ["input-bound"]}, 2.0, "mended runs with an untrue warning"),
    ],
)
def test_a_missed_bar_is_told(change: dict[str, object], gain: float, missed: str) -> None:
    assert not [figure for figure in figures([GOOD], {"respawn": (1.0, 2.0)}) if figure.missed()]

    judged = figures([replace(GOOD, **change)], {"respawn": (1.0, gain)})  # type: ignore[arg-type]

    assert f"tier 3: {missed}" in [figure.what for figure in judged if figure.missed()]


def test_the_gains_are_written_as_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "gains.json"

    write_gains(file, {"respawn": (64.4632, 124.597), "baskets": (109.847, 241.45)}, "verdicts.py --gains-only on abc")

    written = json.loads(file.read_text())
    assert written["gains"] == {"baskets": [109.847, 241.45], "respawn": [64.463, 124.597]}
    assert written.keys() == json.loads((Path(__file__).with_name("gains.json")).read_text()).keys()
    assert file.read_text().count("\n") == 8


def test_what_was_not_measured_misses_its_bar() -> None:
    silent = replace(GOOD, right=False, seconds=None, predicted=None)

    missed = {figure.what for figure in figures([silent], {}) if figure.missed()}

    assert missed >= {
        "tier 3: error of a predicted gain, median",
        "tier 3: measured gain within the range",
        "tier 3: until the right verdict stays, median",
    }
    assert not [figure for figure in figures([GOOD], None) if figure.missed()]
