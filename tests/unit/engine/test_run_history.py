"""What is kept of earlier runs: enough to compare with, nothing of what they were told, never more than so much."""

from __future__ import annotations

import contextlib
import functools
import gzip
import math
import os
import random
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from aitop import cli
from aitop.commands import headless
from aitop.diagnosis.run_comparison import compared
from aitop.engine import run_history
from aitop.engine.replay import last_snapshot
from aitop.engine.run_history import RunHistory, history_folder
from aitop.model.snapshot import Target, Tick
from aitop.model.steps import HookSample, StepRecord
from aitop.model.units import moment
from aitop.model.verdict import Diagnosis, Verdict
from aitop.outputs.recording import RecordingWriter
from aitop.sources.replay import Recording
from aitop.ui.panes.since_mark import since_mark
from aitop.ui.state import View

SCRIPT, SECRET = "/proj/train.py", "--token=hunter2"


def target(pid=1, arguments=SECRET, script=SCRIPT):
    return Target(pid=pid, command=f"python {script} {arguments}", script=script, started=100.0 + pid)


def recorded(file, seed, *, seconds=0.1, of=None, count=240):
    """A recording of noisy steps that take so long on average."""
    chance, writer, at = random.Random(seed), RecordingWriter(file, of or target()), 1000.0
    for index in range(count):
        length = seconds * chance.uniform(0.9, 1.1)
        at += length
        step = StepRecord(index=index, end=at, seconds=length, backward=0.6 * length, optimizer=0.2 * length)
        writer.write(HookSample(time=at, pid=1, steps=(step,)))
        if index % 10 == 9:
            writer.write(Tick(time=at, wall=at))
    writer.close()
    return file


@functools.cache
def end_of_run(seed, seconds=0.1, count=240):
    """The last Snapshot of such a recording."""
    with tempfile.TemporaryDirectory() as folder:
        return last_snapshot(Recording(recorded(Path(folder) / "run.jsonl", seed, seconds=seconds, count=count)))


@pytest.fixture
def runs():
    """The last Snapshots of a run, and of one that is a third slower."""
    return {"usual": end_of_run(0), "slower": end_of_run(1, seconds=0.13)}


def test_a_run_is_compared_with_the_last_one_of_its_script(tmp_path, runs):
    folder = tmp_path / "history"
    assert RunHistory(target(), folder).last() is None
    RunHistory(target(), folder).keep(runs["usual"])
    assert RunHistory(target(), folder).last() is None, "the same process, watched again"
    before = RunHistory(target(pid=2), folder).last()
    change = compared(msgspec.structs.replace(runs["slower"], before=before)).change
    assert change.verdict == "slower"
    assert change.ratio == pytest.approx(1 / 1.3, rel=0.03)
    assert RunHistory(target(pid=2, script="/proj/other.py"), folder).last() is None


def test_the_same_arguments_go_before_a_later_run_with_others(tmp_path, runs):
    folder = tmp_path / "history"
    RunHistory(target(pid=2), folder).keep(runs["usual"])
    later = RunHistory(target(pid=3, arguments="--fast"), folder)
    later.keep(runs["slower"])
    for number, file in enumerate(sorted(folder.iterdir(), key=lambda file: "-3.json" in file.name)):
        os.utime(file, (number, number))
    usual, slower = (sum(runs[name].so_far.units[0].seconds) for name in ("usual", "slower"))
    for arguments, seconds in ((SECRET, usual), ("--fast", slower), ("--new", slower)):
        assert sum(RunHistory(target(pid=4, arguments=arguments), folder).last().units.seconds) == seconds


def test_a_summary_is_small_and_says_nothing_of_what_the_run_was_told(tmp_path, runs):
    RunHistory(target(), tmp_path / "history").keep(runs["usual"])
    (file,) = (tmp_path / "history").iterdir()
    for word in ("hunter2", "python ", "/proj"):
        assert word not in gzip.decompress(file.read_bytes()).decode() + file.name
    assert file.stat().st_size < 16 * 1024
    assert file.parent.stat().st_mode & 0o077 == 0


def test_a_bounded_number_is_kept_and_none_of_a_moment(tmp_path, runs, monkeypatch):
    short = end_of_run(1, count=10)
    RunHistory(target(), tmp_path / "history").keep(short)
    assert not (tmp_path / "history").exists()
    monkeypatch.setattr(run_history, "MOST_RUNS", 3)
    for pid in range(1, 6):
        RunHistory(target(pid=pid), tmp_path).keep(runs["usual"])
    assert len(list(tmp_path.glob("*.json.gz"))) == 3
    monkeypatch.setattr(run_history, "LARGEST_RUN", 10)
    assert RunHistory(target(pid=9), tmp_path).last() is None


# The names are fixed: gzip writes the time into its header, and pytest-xdist needs every worker to
# find the same tests.
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="not compressed"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"\xff", id="not text"),
        pytest.param(gzip.compress(b"{}"), id="without figures"),
        pytest.param(gzip.compress(b"{")[:-9], id="cut off"),
        pytest.param(gzip.compress(b'{"kind": "training", "watched": -1.0, "ended": 0.0}'), id="of no run"),
    ],
)
def test_a_damaged_summary_is_passed_over(tmp_path, runs, content):
    RunHistory(target(), tmp_path / "history").keep(runs["usual"])
    (file,) = (tmp_path / "history").iterdir()
    file.write_bytes(content)
    assert RunHistory(target(pid=2), tmp_path / "history").last() is None


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path, runs):
    (tmp_path / "file").write_text("")
    history = RunHistory(target(), tmp_path / "file" / "history")
    history.keep(runs["usual"])
    assert history.last() is None


@pytest.mark.parametrize("clock", [-3.5e9, 6e9], ids=["before 1970", "after 2106"])
def test_a_run_is_kept_whatever_the_clock_says(tmp_path, runs, monkeypatch, clock):
    monkeypatch.setattr(time, "time", lambda: clock)
    RunHistory(target(), tmp_path / "history").keep(runs["usual"])
    assert RunHistory(target(pid=2), tmp_path / "history").last() is not None


def test_nothing_is_left_in_the_folder_of_another_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_folder() == tmp_path / "aitop" / "history"
    own = os.geteuid()
    with monkeypatch.context() as stranger:
        stranger.setattr(os, "geteuid", lambda: own + 1)
        assert history_folder() is None
    if own != 0:
        pytest.skip("needs root, to make another user's folder")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "state").symlink_to(tmp_path)
    os.chown(tmp_path / "theirs", 12345, 12345)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs" / "state"))
    assert history_folder() is None, "a link of theirs"


def test_a_mark_survives_the_restart_of_the_run(tmp_path, runs):
    folder = tmp_path / "history"
    RunHistory(target(), folder).keep(runs["usual"], runs["usual"])
    (file,) = folder.iterdir()
    assert file.stat().st_size < 16 * 1024
    for word in ("hunter2", "python ", "/proj"):
        assert word not in gzip.decompress(file.read_bytes()).decode()
    # Watched again, it is the same moment; for the next run it lies before all of its steps.
    assert RunHistory(target(), folder).mark().time == runs["usual"].time
    mark = RunHistory(target(pid=2), folder).mark()
    assert (mark.time, mark.steps.p50) == (-math.inf, runs["usual"].steps.p50)
    later = runs["slower"]
    line = since_mark(View(snapshot=later, mark=mark), 100).text
    assert line.startswith(f"since the mark of the run at {moment(mark.wall, later.wall)}: 1.3")
    assert "× slower (±" in line
    # It stays with the runs that follow, until it is forgotten.
    RunHistory(target(pid=2), folder).keep(later, mark)
    assert RunHistory(target(pid=3), folder).mark().wall == mark.wall
    RunHistory(target(pid=3), folder).keep(later)
    assert RunHistory(target(pid=4), folder).mark() is None


def diagnosed(monkeypatch, snapshot, *options):
    """The exit code of `diagnose --fail-on regression` where this is the last Snapshot."""
    seen = headless.Watcher(None)
    seen.publish(snapshot)
    monkeypatch.setattr(seen, "wait", lambda *_, **__: None)
    monkeypatch.setattr(headless, "watching", lambda *_: contextlib.nullcontext(seen))
    monkeypatch.setattr("aitop.sources.host.target.look", lambda pid, even_stopped: target())
    return cli.run(["diagnose", "--pid", "1", *options, "--fail-on", "regression"])


@pytest.mark.parametrize(("seconds", "code", "words"), [(0.1, 0, "As fast as"), (0.11, 1, "1.10× slower than")])
def test_a_pipeline_fails_on_a_regression_and_passes_on_noise(tmp_path, capsys, monkeypatch, seconds, code, words):
    baseline = recorded(tmp_path / "baseline.jsonl", 1, count=480)
    snapshot = end_of_run(2, seconds=seconds, count=480)
    assert diagnosed(monkeypatch, snapshot, "--baseline", str(baseline)) == code
    assert f"{words} baseline.jsonl" in capsys.readouterr().out


@pytest.mark.parametrize(("severity", "code"), [("warning", 1), ("info", 0)])
def test_a_pipeline_fails_on_a_run_that_became_slower(tmp_path, monkeypatch, severity, code):
    baseline = recorded(tmp_path / "baseline.jsonl", 1, count=480)
    since = Verdict(id="regression", severity=severity, title="steps take 2× as long", confidence=0.9)
    seen = end_of_run(2, count=480)
    seen = msgspec.structs.replace(seen, diagnosis=Diagnosis(verdicts=(since,)))
    assert diagnosed(monkeypatch, seen) == diagnosed(monkeypatch, seen, "--baseline", str(baseline)) == code


def test_without_a_baseline_it_takes_time_to_tell(monkeypatch, capsys):
    short = end_of_run(1, count=100)
    assert diagnosed(monkeypatch, short) == 5
    assert "look longer with --for, or name a --baseline" in capsys.readouterr().err
    assert diagnosed(monkeypatch, end_of_run(1, count=480)) == 0


@pytest.mark.parametrize("seconds", [0.1, 0.13])
def test_without_a_baseline_the_last_run_of_the_script_fails_nothing(tmp_path, monkeypatch, capsys, seconds):
    folder = tmp_path / "history"
    RunHistory(target(), folder).keep(end_of_run(1, count=480))
    big = end_of_run(2, seconds=seconds, count=480)
    big = msgspec.structs.replace(big, before=RunHistory(target(pid=2, arguments="--big"), folder).last())
    assert (compared(big).change.verdict == "slower") == (seconds > 0.1)
    assert diagnosed(monkeypatch, big) == 0
    untimed = msgspec.structs.replace(big.before, units=None)
    assert diagnosed(monkeypatch, msgspec.structs.replace(big, before=untimed)) == 0
    assert "baseline" not in capsys.readouterr().err
