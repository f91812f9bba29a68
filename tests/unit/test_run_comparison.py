"""Two runs: chance is not taken for a change, a real one is found with its parts, which add up, and its line."""

from __future__ import annotations

import json
import random

import pytest

from aitop import cli
from aitop.diagnosis.noise import blocks_of, half_width, student, warm_up
from aitop.diagnosis.run_comparison import compare_runs
from aitop.engine.run_summary import MOST_STRETCHES, Units
from aitop.model.ledger import Entry
from aitop.model.run import Mean, Run, Stretch
from aitop.model.verdict import Verdict, Where
from aitop.outputs.comparison import comparison_json, comparison_text

SEEDS = 200
LOOP, SLOW = ("train.py", 10, "main", "loss.backward()"), ("train.py", 20, "main", "tidy(batch)")


def noise_of(count, seed, *, like=0.6, spread=0.05):
    """Values around 1 of which each resembles the last one."""
    chance, off = random.Random(seed), 0.0
    for _ in range(count):
        off = like * off + spread * (1 - like**2) ** 0.5 * chance.gauss(0, 1)
        yield max(0.1, 1 + off)


def place(file, line, function, text):
    return Where(pid=1, file=f"/proj/{file}", line=line, function=function, text=text)


def entry(phase, share, where=LOOP, **changes):
    known = {"lane": "main", "activity": "native", "basis": "measured", "pid": 1, "low": share * 0.9}
    return Entry(phase=phase, share=share, high=share * 1.1, where=place(*where), **{**known, **changes})


def made(seed, *, host=0.02, compute=0.08, count=300, samples=32, wait_core=0.0, **changes):
    """A run whose steps compute, and then spend time on a line of the host."""
    stretches = tuple(
        Stretch(count=1, seconds=(host + compute) * off, samples=samples, phases={"backward": compute * off})
        for off in noise_of(count, seed, **{key: changes.pop(key) for key in ("like", "spread") if key in changes})
    )
    whole = host + compute
    entries = (
        entry("backward", compute / whole - wait_core),
        entry("host", host / whole, SLOW),
        *([entry("backward", wait_core, activity="wait-core")] if wait_core else []),
    )
    known = {"file": "run", "basis": "recording", "command": "python train.py", "kind": "training", "unit": "step"}
    return Run(**{**known, "watched": 30.0, "stretches": stretches, "entries": entries, **changes})


def test_the_expansion_agrees_with_the_tables():
    assert student(10) == pytest.approx(2.228, rel=0.004)
    assert student(30) == pytest.approx(2.042, rel=0.002)


@pytest.mark.parametrize("like", [0.0, 0.6, 0.9])
def test_the_interval_holds_the_mean(like):
    held = 0
    for seed in range(SEEDS):
        values = list(noise_of(400, seed, like=like))
        held += abs(sum(values) / len(values) - 1) <= half_width(values)
    assert held >= 0.92 * SEEDS


@pytest.mark.parametrize("like", [0.0, 0.6, 0.9])
def test_the_same_code_is_hardly_ever_called_faster_or_slower(like):
    outcomes = [
        compare_runs(made(seed, like=like), made(seed + SEEDS, like=like)).change.outcome for seed in range(SEEDS)
    ]
    assert sum(outcome in ("same", "cannot-tell") for outcome in outcomes) >= 0.95 * SEEDS


def test_a_slower_line_of_five_percent_is_found():
    found = []
    for seed in range(SEEDS):
        compared = compare_runs(made(seed), made(seed + SEEDS, host=0.0255))
        line = compared.lines[0].where
        found.append(compared.change.outcome == "slower" and line is not None and line.line == SLOW[1])
        assert compared.change.low < compared.change.ratio < compared.change.high
    assert sum(found) >= 0.8 * SEEDS


@pytest.mark.parametrize("after", [made(2), made(2, host=0.05), made(2, host=0.0, samples=64)])
def test_the_parts_add_up(after):
    compared = compare_runs(made(1), after)
    whole = compared.after.mean - compared.before.mean
    for parts in (compared.phases, compared.causes, compared.lines):
        assert sum(part.delta for part in parts) == pytest.approx(whole, abs=1e-12)
        assert sum(part.before for part in parts) == pytest.approx(compared.before.mean)


def test_a_line_is_the_same_where_it_has_moved():
    moved = made(2, entries=(entry("backward", 0.8), entry("host", 0.2, (SLOW[0], 27, *SLOW[2:]))))
    lines = [part for part in compare_runs(made(1), moved).lines if part.where and part.where.text == SLOW[3]]
    assert [(part.where.line, part.before > 0, part.after > 0) for part in lines] == [(27, True, True)]


def test_a_loaders_line_takes_the_time_that_the_step_waits_for_it():
    waiting = (
        entry("data", 0.5, activity="wait-queue"),
        entry("backward", 0.5),
        entry("host", 0.9, ("decode.py", 5, "decode", "unpack(raw)"), lane="producers", activity="python"),
        entry("host", 0.1, ("decode.py", 9, "run", "queue.get()"), lane="producers", activity="wait-queue"),
    )
    stretches = tuple(Stretch(count=1, seconds=0.2 * off, phases={"data": 0.1 * off}) for off in noise_of(100, 3))
    compared = compare_runs(made(1, stretches=stretches, entries=waiting), made(2))
    assert compared.lines[0].where.file == "/proj/decode.py"
    assert compared.lines[0].before == pytest.approx(compared.before.mean / 2)


def test_twice_the_batch_is_compared_by_the_sample():
    compared = compare_runs(made(1, samples=32), made(2, host=0.02, compute=0.14, samples=64))
    assert (compared.change.outcome, compared.change.equal_load) == ("faster", True)
    assert compared.change.ratio == pytest.approx(1.25, rel=0.03)
    assert (compared.change.load.before, compared.change.load.after) == (32, 64)
    assert compare_runs(made(1, samples=None), made(2, samples=None)).change.equal_load is None


def test_latencies_under_another_load_are_not_compared():
    before, after = made(1, samples=None, concurrency=2.0), made(2, samples=None, concurrency=8.0, host=0.3)
    change = compare_runs(before, after).change
    assert (change.outcome, change.equal_load) == ("cannot-tell", False)


def test_other_programs_are_not_blamed_on_the_code():
    busy = made(2, compute=0.12, wait_core=0.3, other_load=1.5)
    change = compare_runs(made(1, other_load=0.1), busy).change
    assert change.outcome == "cannot-tell"
    assert "other programs took 1.5 cores instead of 0.1" in change.reason
    # Without them the same difference counts.
    assert compare_runs(made(1, other_load=0.1), made(2, compute=0.12, other_load=0.1)).change.outcome == "slower"


def test_few_or_noisy_units_are_said_with_how_long_to_record():
    change = compare_runs(made(1, count=12), made(2)).change
    assert (change.outcome, change.low) == ("cannot-tell", None)
    assert "at least 20 are needed" in change.reason
    noisy = compare_runs(made(1, count=60, spread=0.5, like=0.9), made(5, count=60, spread=0.5, like=0.9)).change
    assert noisy.outcome == "cannot-tell"
    assert noisy.record_seconds is None or noisy.record_seconds > 30


def test_warm_up_is_left_out():
    slow_start = [5.0] * 20 + list(noise_of(200, 1))
    assert 20 <= warm_up(slow_start) <= 30
    assert warm_up([1.0] * 100) == 0
    assert warm_up([]) == 0
    assert len(blocks_of([1.0, 2.0])) == 2


def test_a_long_run_is_kept_in_bounds():
    units = Units()
    for _ in range(3 * MOST_STRETCHES):
        units.add(Stretch(count=1, seconds=0.5, samples=2, phases={"data": 0.25}))
    assert len(units.stretches) < MOST_STRETCHES
    assert {(each.seconds, each.samples, each.phases["data"]) for each in units.stretches} == {(2.0, 8, 1.0)}


def test_verdicts_and_settings():
    slow = Verdict(id="input-bound", severity="critical", title="", confidence=1, share=0.5, subtype="workers")
    kept = Verdict(id="precision", severity="warning", title="", confidence=1, share=0.2)
    new = Verdict(id="compute-bound", severity="info", title="", confidence=1, share=0.9)
    before = made(1, verdicts=(slow, kept), settings={"threads": 1, "torch": "2.13"})
    after = made(2, verdicts=(kept, new), settings={"threads": 2, "torch": "2.13", "fused": True})
    compared = compare_runs(before, after)
    assert [[one.id for one in each] for each in (compared.gone, compared.new, compared.kept)] == [
        ["input-bound"],
        ["compute-bound"],
        ["precision"],
    ]
    assert {one.name: (one.before, one.after) for one in compared.settings} == {
        "threads": (1, 2),
        "fused": (None, True),
    }
    assert compared.causes[0].name == "input-bound"
    assert compared.causes[0].delta == pytest.approx(-compared.before.mean / 2)
    said = comparison_text(before, after, compared)
    assert "gone    input-bound · workers [critical]" in said
    assert "threads: 1 → 2" in said


def test_a_report_is_compared_by_its_mean():
    report = made(1, basis="report", stretches=(), mean=Mean(seconds=0.1, low=0.098, high=0.102))
    assert compare_runs(report, made(2, host=0.07)).change.outcome == "slower"
    change = compare_runs(made(1, stretches=()), made(2)).change
    assert (change.outcome, change.ratio) == ("cannot-tell", None)


def test_json_has_the_keys_of_the_contract():
    before, after = made(1), made(2, host=0.05)
    said = json.loads(comparison_json(before, after, compare_runs(before, after)))
    assert list(said)[:4] == ["schema", "aitop", "before", "after"]
    assert said["schema"] == 1
    assert {"ratio", "range", "verdict", "at_equal_load"} <= set(said["change"])
    assert {"phase", "before_ms", "after_ms", "delta_ms", "range"} == set(said["phases"][0])
    assert {"where", "before_ms", "after_ms", "delta_ms"} <= set(said["lines"][0])
    assert set(said["verdicts"]) == {"gone", "new", "kept"}
    assert said["change"]["verdict"] == "slower"


def test_names_of_the_target_cannot_reach_the_terminal():
    hostile = made(2, host=0.05, command="python \x1b[2J train.py", settings={"threads": "\x1b[31m"})
    assert "\x1b" not in comparison_text(made(1), hostile, compare_runs(made(1), hostile))


@pytest.mark.parametrize(
    "content", [b"", b"noise", b"{}", b'{"schema": 1, "ledger": 3}', b'{"schema": 9, "ledger": []}']
)
def test_what_is_neither_recording_nor_report_is_6(tmp_path, capsys, content):
    file = tmp_path / "file"
    file.write_bytes(content)
    assert cli.run(["compare", str(file), str(file)]) == 6
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("aitop: ")
    assert said.err.count("\n") == 1


def test_a_missing_file_is_6(tmp_path, capsys):
    assert cli.run(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 6
    assert "No such file" in capsys.readouterr().err
