"""`aitop diagnose`: what is written where, and its exit codes."""

import msgspec
import pytest
import snapshot_builder
from publishing_feed import PublishingFeed

from aitop import cli
from aitop.commands import demo, diagnose, headless
from aitop.errors import (
    NoTargetError,
    NotEnoughEvidenceError,
    WrongUsageError,
)
from aitop.model.ledger import Entry, Ledger
from aitop.model.snapshot import Snapshot, Target
from aitop.model.verdict import Diagnosis, Verdict


def test_a_report_whose_name_no_file_can_have_is_refused_in_words(capsys):
    # Before anything is watched: process 1 is not looked at.
    assert cli.run(["diagnose", "--pid", "1", "-o", "/tmp/" + "x" * 300]) == 2
    assert "cannot write /tmp/xxx" in capsys.readouterr().err


@pytest.fixture
def diagnosed(monkeypatch):
    """`aitop diagnose` of a run that is seen; `wait` is called in place of the waiting."""

    def diagnose_seen(wait, *options):
        good = msgspec.structs.replace(snapshot_builder.snapshot(snapshot_builder.steps()), ledgers=(LEDGER,))

        monkeypatch.setattr("aitop.engine.live.LiveFeed", lambda *_: PublishingFeed(good))
        monkeypatch.setattr("aitop.sources.host.target.look", lambda pid, **_: good.target)
        monkeypatch.setattr(headless.Watcher, "wait", wait)
        return cli.run(["diagnose", "--pid", "7", *options])

    return diagnose_seen


def interrupt(watcher, *words, **more):
    raise KeyboardInterrupt


def test_ctrl_c_keeps_the_report_of_what_was_seen(diagnosed, tmp_path):
    assert diagnosed(interrupt, "--for", "8h", "-o", f"{tmp_path}/report", "--fail-on", "regression") == 130
    assert "100 %  host  runs Python" in (tmp_path / "report").read_text()


def test_a_recording_that_failed_is_1_and_the_report_is_written_nevertheless(diagnosed, tmp_path, capsys):
    def fill_the_disk(watcher, *words, **more):
        watcher._recording.failed = "the recording has stopped: No space left on device"

    assert diagnosed(fill_the_disk, "--record", f"{tmp_path}/seen.jsonl") == 1
    said = capsys.readouterr()
    assert "100 %  host  runs Python" in said.out and "No space left on device" in said.err


LEDGER = Ledger(
    pid=7,
    thread="MainThread",
    unit="second",
    entries=(
        Entry(lane="main", phase="host", activity="python", share=1.0, low=0.9, high=1.0, basis="sampled", pid=7),
    ),
)


def snapshot(*severities, ended=None, ledgers=()):
    verdicts = tuple(Verdict(id="input-bound", severity=severity, title="x", confidence=0.9) for severity in severities)
    target = Target(pid=7, command="python x.py", ended=ended)
    return Snapshot(
        tick=1, time=1.0, wall=1.0, window=1.0, target=target, ledgers=ledgers, diagnosis=Diagnosis(verdicts=verdicts)
    )


@pytest.mark.parametrize(
    ("severity", "fail_on", "code"),
    [
        ("critical", None, 0),
        ("critical", "critical", 1),
        ("critical", "warning", 1),
        ("warning", "warning", 1),
        ("warning", "critical", 0),
        ("info", "warning", 0),
    ],
)
def test_fail_on(capsys, severity, fail_on, code):
    assert diagnose.conclude(snapshot("info", severity), 7, "text", None, fail_on) == code
    assert "INPUT-BOUND" in capsys.readouterr().out


@pytest.mark.parametrize("ledgers", [(), (Ledger(pid=7, thread="MainThread", unit="second"),)])
def test_nothing_to_sample_is_5_and_the_report_is_written_nevertheless(capsys, ledgers):
    with pytest.raises(NotEnoughEvidenceError, match="nothing to sample"):
        diagnose.conclude(snapshot(ledgers=ledgers), 7, "text", None, "warning")
    assert "NO VERDICT" in capsys.readouterr().out
    with pytest.raises(NotEnoughEvidenceError):
        diagnose.conclude(None, 7, "text", None)
    with pytest.raises(NotEnoughEvidenceError, match="in the time given: start the demo again"):
        diagnose.conclude(snapshot(ledgers=ledgers), 7, "text", None, remedy=demo.AGAIN)


def test_a_ledger_without_a_verdict_is_an_answer(capsys):
    assert diagnose.conclude(snapshot(ledgers=(LEDGER,)), 7, "text", None, "warning") == 0
    assert "  100 %  host  runs Python" in capsys.readouterr().out
    assert diagnose.conclude(snapshot(ledgers=(LEDGER,), ended="it exited"), 7, "text", None) == 0
    assert diagnose.conclude(snapshot("critical", ledgers=(LEDGER,)), 7, "text", None, "critical") == 1


def test_an_end_before_anything_could_be_said_is_3(capsys):
    with pytest.raises(NoTargetError, match="it exited, before"):
        diagnose.conclude(snapshot(ended="it exited"), 7, "json", None)
    assert capsys.readouterr().out == ""
    assert diagnose.conclude(snapshot("info", ended="it exited"), 7, "json", None) == 0


def test_a_report_that_could_not_be_written_is_said_before_watching(tmp_path):
    for place in (tmp_path, tmp_path / "none" / "out.json"):
        with pytest.raises(WrongUsageError, match="cannot write"):
            diagnose.check_writable(place)
    diagnose.check_writable(tmp_path / "out.json")
    diagnose.check_writable(None)
    assert list(tmp_path.iterdir()) == []
