"""`aitop compare` on committed recordings: a run with itself, as it was and mended, with a report, and bad pairs."""

from __future__ import annotations

import gzip
import json

import pytest
from recorded import RECORDINGS

from aitop import cli

SLOW, MENDED = RECORDINGS / "ticket_router.t3.jsonl.gz", RECORDINGS / "ticket_router+then.t3.jsonl.gz"


def compared(capsys, before, after, *more):
    """The exit code, and what was said as JSON."""
    code = cli.run(["compare", str(before), str(after), "--format", "json", *more])
    written = capsys.readouterr()
    return code, json.loads(written.out) if written.out else None, written.err


@pytest.mark.parametrize("name", ["ticket_router", "healthy_mlp", "slow-loader", "plankton", "bridge_strain"])
def test_a_run_is_as_fast_as_itself(capsys, name):
    file = RECORDINGS / f"{name}.t3.jsonl.gz"
    code, said, _ = compared(capsys, file, file, "--fail-on", "regression")
    assert code == 0
    assert said["change"]["verdict"] in ("same", "cannot-tell")
    assert said["change"]["ratio"] == 1
    assert said["settings"] == said["verdicts"]["gone"] == said["verdicts"]["new"] == []
    assert all(
        part["delta_ms"] == pytest.approx(0, abs=1e-9) for part in (*said["phases"], *said["causes"], *said["lines"])
    )


def test_a_mended_run_is_faster_and_its_verdict_gone(capsys):
    code, said, complaint = compared(capsys, SLOW, MENDED)
    assert (code, complaint) == (0, "")
    assert said["change"]["verdict"] == "faster"
    low, high = said["change"]["range"]
    assert low < said["change"]["ratio"] < high
    assert "preprocessing-bound" in {verdict["id"] for verdict in said["verdicts"]["gone"]}
    assert said["causes"][0]["id"] == "preprocessing-bound"
    assert said["lines"][0]["where"]["function"] == "distance"
    whole = said["after"]["mean_ms"] - said["before"]["mean_ms"]
    for parts in (said["phases"], said["causes"], said["lines"]):
        assert sum(part["delta_ms"] for part in parts) == pytest.approx(whole, rel=0.01)


def test_the_other_way_round_it_is_a_regression(capsys):
    assert compared(capsys, MENDED, SLOW, "--fail-on", "regression")[0] == 1
    assert compared(capsys, SLOW, MENDED, "--fail-on", "regression")[0] == 0


def test_a_report_can_stand_for_a_recording(capsys, tmp_path):
    report = tmp_path / "report.json"
    assert cli.run(["replay", str(SLOW), "--format", "json", "-o", str(report)]) == 0
    code, said, _ = compared(capsys, report, MENDED)
    assert (code, said["before"]["file"]) == (0, "report.json")
    assert said["change"]["verdict"] == "faster"
    assert compared(capsys, report, report)[1]["change"]["ratio"] == 1


def test_two_scripts_are_compared_with_a_word(capsys):
    _, said, complaint = compared(capsys, RECORDINGS / "healthy_mlp.t3.jsonl.gz", RECORDINGS / "plankton.t3.jsonl.gz")
    assert said is not None
    assert complaint == "aitop: these are runs of two scripts: healthy_mlp.py and plankton.py\n"


def test_training_is_not_compared_with_inference(capsys):
    code, said, complaint = compared(capsys, SLOW, RECORDINGS / "healthy_mlp.t3.jsonl.gz")
    assert (code, said) == (2, None)
    assert "do different work: inference and training" in complaint


def test_steps_that_were_not_timed_are_5(capsys, tmp_path):
    without = tmp_path / "without-hook.jsonl"
    lines = gzip.decompress(SLOW.read_bytes()).splitlines(keepends=True)
    without.write_bytes(b"".join(line for line in lines if not line.startswith(b'{"type":"hook"')))
    code, said, complaint = compared(capsys, without, without)
    assert code == 5
    assert said["change"]["verdict"] == "cannot-tell"
    assert "that takes the hook" in complaint
    assert complaint.count("\n") == 1


def test_a_recording_of_a_moment_is_5(capsys, tmp_path):
    short = tmp_path / "short.jsonl"
    short.write_bytes(gzip.decompress(SLOW.read_bytes()).splitlines(keepends=True)[0])
    code, said, complaint = compared(capsys, short, SLOW)
    assert (code, said) == (5, None)
    assert "ends before its first second is over" in complaint
