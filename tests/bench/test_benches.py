"""Every bench can be loaded, and one that runs writes its section and fails on a missed bar."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import random
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import all as every
import compare_runs
import pytest
import results
from everything_cost import step_ms
from export_slowdown import slowdown
from results import BENCHES, MISSED_BAR, TESTS, Bench, Figure, outdated, publish
from terminal import OnTerminal

PATHS = [bench.path for group in BENCHES.values() for bench in group]


@pytest.fixture(autouse=True, scope="module")
def _no_hook_stays_in():
    """Some benches import the hook, which installs itself: not in the process of all later tests."""
    yield
    if "aitop.hook" in sys.modules:
        sys.modules["aitop.hook"].remove()


@pytest.mark.parametrize("path", PATHS)
def test_a_bench_can_be_loaded(path):
    assert callable(importlib.import_module(Path(path).stem).main)


class _Parsed(Exception):
    """A bench has made its parser."""


@pytest.mark.parametrize("bench", results.benches().values(), ids=lambda bench: bench.path)
def test_a_bench_does_the_usual_where_nothing_else_is_asked_for(bench, monkeypatch):
    """So that an argument that is not among those of a result stands for the usual number."""
    parsers = []

    def parse(parser, *_):
        parsers.append(parser)
        raise _Parsed

    with monkeypatch.context() as patch, pytest.raises(_Parsed):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        importlib.import_module(Path(bench.path).stem).main()
    (parser,) = parsers
    words = shlex.split(bench.usual)
    usual, plain = (vars(parser.parse_args(given)) for given in (words, []))
    assert {name for name, value in usual.items() if value != plain[name]} <= {"mended", "gains"}
    if bench.quick is not None:
        parser.parse_args(shlex.split(bench.quick))


@pytest.mark.parametrize(
    ("usual", "words", "enough"),
    [
        ("--pairs 6 --seconds 10", "", True),
        ("--pairs 6 --seconds 10", "--pairs 12", True),
        ("--pairs 6 --seconds 10", "--pairs 5 --seconds 10", False),
        ("--pairs 6 --seconds 10", "--pairs=6 --seconds=10.0", True),
        ("--pairs 6 --seconds 10", "embeddings --pairs 6", False),
        ("-n 20", "-n 20 -j 1 --seed 4 --resume", True),
        ("-n 20", "--resume crash", False),
        ("--tiers 3,2 --mended", "--tiers 3,2 --mended", True),
        ("--tiers 3,2 --mended", "--tiers 3,2", False),
        ("--tiers 3,2 --mended", "--tiers 3 --mended", False),
        ("--tiers 3,2 --mended", "--tiers 3,2 --mended --no-gains", False),
        ("", "--recordings FOLDER", True),
        ("", "--same 1", False),
    ],
)
def test_a_result_is_whole_with_at_least_the_usual_arguments(usual, words, enough):
    assert results.at_least(words, usual) == enough


@pytest.mark.parametrize(
    ("words", "written"),
    [("--minutes 0.1", False), ("live", False), ("--minutes 30", True), ("", True), ("--minutes 60 --resume", True)],
)
def test_what_does_less_than_the_usual_is_only_printed(tmp_path, monkeypatch, words, written):
    file = tmp_path / "results.json"
    monkeypatch.setattr(results, "RESULTS", file)
    monkeypatch.setattr(results, "versions", dict)
    monkeypatch.setattr(sys, "argv", ["soak.py", *words.split()])
    assert publish(argparse.Namespace(results=file), [Figure("figures that grow", 0, most=0)]) == 0
    assert file.exists() == written


def test_pieces_are_those_of_the_same_code_and_arguments_until_they_are_published(tmp_path, monkeypatch):
    monkeypatch.setattr(results.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(results, "code", lambda: "1234567")
    monkeypatch.setattr(results, "versions", dict)
    monkeypatch.setattr(sys, "argv", ["faults.py", "-n", "20"])
    results.Pieces(resume=False).add([1])
    monkeypatch.setattr(sys, "argv", ["faults.py", "-n", "20", "--resume"])
    assert results.Pieces(resume=True).read() == [[1]]
    monkeypatch.setattr(results.time, "strftime", lambda _: "2026-01-02")
    monkeypatch.setattr(results, "code", lambda: "1234567+0a1b2c3d")
    assert results.Pieces(resume=True).read() == []
    results.Pieces(resume=True).add([2])
    monkeypatch.setattr(sys, "argv", ["faults.py", "-n", "1", "--resume"])
    assert results.Pieces(resume=True).read() == []
    monkeypatch.setattr(sys, "argv", ["faults.py", "-n", "20", "--resume"])
    monkeypatch.setattr(results.time, "strftime", lambda _: "2026-01-03")
    file = tmp_path / "results.json"
    publish(argparse.Namespace(results=file), [Figure("runs harmed", 0, most=0)])
    assert json.loads(file.read_text())["faults"]["date"] == "2026-01-02"
    assert results.Pieces(resume=True).read() == []


@pytest.mark.parametrize("path", PATHS)
def test_a_bench_says_how_it_is_run(path):
    assert f"python tests/{path}" in (TESTS / path).read_text()


@pytest.mark.parametrize(
    "bench", [bench for group in BENCHES.values() for bench in group], ids=lambda bench: bench.path
)
def test_what_a_bench_is_about_is_there(bench):
    assert bench.about and [path for path in bench.about if not (TESTS.parent / path).exists()] == []


@pytest.fixture
def history(tmp_path):
    """A repository; `history(path)` commits a change of that file and gives the commit."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)

    def change(path):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.read_text() + "more\n" if file.exists() else "first\n")
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", path], check=True)
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True)
        return head.stdout.strip()

    return change


def test_a_result_is_outdated_by_a_change_of_what_it_is_about(history, tmp_path):
    bench = Bench("bench/hook_cost.py", about=("aitop/hook", "aitop/ring.py"))
    record = {"date": "2026-01-02", "commit": history("aitop/hook/core.py")}
    assert outdated(bench, record, tmp_path) is None
    history("aitop/ui/app.py")
    assert outdated(bench, record, tmp_path) is None
    (tmp_path / "tests" / "bench").mkdir(parents=True)
    (tmp_path / "tests" / "bench" / "hook_cost.py").write_text("import results\nfrom peers import figure\n")
    (tmp_path / "tests" / "bench" / "peers.py").write_text(
        "import terminal as screen\nJOB = FOLDER / 'ranks' / 'job.py'\n"
    )
    for path in ("results", "terminal"):
        (tmp_path / "tests" / "bench" / f"{path}.py").touch()
    (tmp_path / "tests" / "e2e" / "ranks").mkdir(parents=True)
    (tmp_path / "tests" / "e2e" / "ranks" / "job.py").touch()
    record["commit"] = history("README.md")
    history("tests/bench/results.py")
    assert outdated(bench, record, tmp_path) is None
    for path in (
        "aitop/ring.py",
        "aitop/hook/core.py",
        "tests/bench/terminal.py",
        "tests/e2e/ranks/job.py",
        "tests/bench/peers.py",
        "tests/bench/hook_cost.py",
    ):
        history(path)
        assert "change what it is about" in outdated(bench, record, tmp_path)
        record["commit"] = history("README.md")
        assert outdated(bench, record, tmp_path) is None
    record["commit"] += "+"
    assert "not committed" in outdated(bench, record, tmp_path)
    assert "not in this history" in outdated(bench, {**record, "commit": "1234567"}, tmp_path)
    assert outdated(bench, None, tmp_path) == "there is no result"


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["--resume", "hook_cost_steps"], True),
        (["--resume", "--quick", "hook_cost_steps"], False),
        (["--whole", "--outdated", "hook_cost_steps"], True),
    ],
)
@pytest.mark.parametrize("arguments", ["--processes 3", "--processes 18"])
def test_a_quick_result_is_no_whole_one(monkeypatch, words, again, arguments):
    record = {"commit": "1234567", "arguments": arguments}
    monkeypatch.setattr(results, "read", lambda: {"hook_cost_steps": record})
    monkeypatch.setattr(results, "commit", lambda: "1234567")
    monkeypatch.setattr(results, "outdated", lambda bench, record: None)
    run = []
    monkeypatch.setattr(every, "run_to_end", lambda command: run.append(command) or 0)
    monkeypatch.setattr(sys, "argv", ["all.py", *words])
    assert every.main() == 0
    assert bool(run) == (again and arguments == "--processes 3")


def test_a_bench_that_runs_writes_its_section(tmp_path):
    file = tmp_path / "results.json"
    command = [sys.executable, str(TESTS / "bench" / "monitor_hour.py"), "--minutes", "1", "--results", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode in (0, MISSED_BAR), done.stderr
    record = json.loads(file.read_text())["monitor_hour"]
    assert record["arguments"] == "--minutes 1"
    assert {figure["unit"] for figure in record["figures"]} == {"MB", "ms"}
    page = (tmp_path / "README.md").read_text()
    assert "| memory after 1 min of samples |" in page
    assert f"{record['date']}; {record['commit'] or 'no commit'}; " in page


@pytest.mark.parametrize(
    ("figure", "code"),
    [
        (Figure("time", 3.0, "s", most=3), 0),
        (Figure("time", 3.1, "s", most=3), MISSED_BAR),
        (Figure("right", 89.0, "%", least=90), MISSED_BAR),
        (Figure("beside a peer that is missing", None, "×", most=0.8, without="nvitop"), 0),
        (Figure("what was not measured", None, "µs", most=10), MISSED_BAR),
        (Figure("what nothing is asked of", 3.0, "µs"), MISSED_BAR),
    ],
)
def test_a_missed_bar_is_the_exit_code(tmp_path, monkeypatch, figure, code):
    monkeypatch.setattr(sys, "argv", ["monitor_cost.py"])
    monkeypatch.setattr(results, "versions", dict)
    assert publish(argparse.Namespace(results=tmp_path / "results.json"), [figure]) == code
    page = (tmp_path / "README.md").read_text()
    assert ("**missed**" in page or "**not measured**" in page) == figure.missed()


def test_a_bench_that_measures_nothing_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["serving_cost.py"])
    monkeypatch.setattr(results, "versions", dict)
    assert publish(argparse.Namespace(results=tmp_path / "results.json"), []) == MISSED_BAR


@pytest.mark.parametrize("longer", [0.0, 0.03])
def test_the_slowdown_of_some_stretches_is_found_in_a_run_that_drifts(longer):
    chance, ends = random.Random(0), [0.0]
    stretches = [(float(begin), begin + 2.0) for begin in range(5, 95, 12)]
    while ends[-1] < 100.0:
        length = 1e-3 * (1 + 0.05 * math.sin(ends[-1] / 7)) * chance.gauss(1.0, 0.1)
        ends.append(ends[-1] + length * (1 + longer * any(begin <= ends[-1] < end for begin, end in stretches)))
    slower = slowdown(ends, stretches, full=False)
    assert slower.percent(slower.excess) == pytest.approx(longer * 100 * 16 / 100, abs=0.06)
    assert (slower.active, len(slower.excess)) == (16.0, 8)


def test_a_stall_at_the_edge_of_a_block_is_measured():
    millisecond = 10**6
    ends = [n * millisecond for n in range(500)]
    assert step_ms(ends, 100 * millisecond, 400 * millisecond) == pytest.approx(1.0)
    stalled = [end if end < 390 * millisecond else end + 100 * millisecond for end in ends]
    assert step_ms(stalled, 100 * millisecond, 400 * millisecond) > 1.3
    with pytest.raises(SystemExit, match="tell nothing"):
        step_ms(ends[::100], 100 * millisecond, 400 * millisecond)


def test_what_does_not_come_up_ends_the_bench():
    with OnTerminal(["sh", "-c", "echo here; exec sleep 30"]) as program:
        program.must_show("here", 5.0)
    with OnTerminal(["false"]) as program, pytest.raises(SystemExit, match="exit code 1"):
        program.must_show("here", 5.0)


@pytest.mark.parametrize(("value", "missed"), [(0.88, True), (1.0, False), (1.02, True)])
def test_a_control_is_barred_on_both_sides(value, missed):
    figure = Figure("step after the hook has left", value, "×", most=1.01, least=0.99)
    assert figure.missed() == missed and "| ≤ 1.01 ≥ 0.99 |" in figure.row()


def test_recordings_of_other_code_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(compare_runs, "of_other_code", set())
    monkeypatch.setattr(compare_runs, "code", lambda: "1234567")
    recordings = {word: tmp_path / f"{word}.jsonl.gz" for word in ("1234567", "89abcde", "unknown")}
    for word, path in recordings.items():
        path.touch()
        if word != "unknown":
            path.with_suffix(".code").write_text(word)
        assert compare_runs.record("never_started.py", (), 1.0, path) == path
    assert compare_runs.of_other_code == {recordings["89abcde"], recordings["unknown"]}
