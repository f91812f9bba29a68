"""What the fuzzer has found before, and a short run on each of its subjects; `fuzz.py --minutes N` is the long one."""

from __future__ import annotations

import subprocess
import sys

import fuzz as fuzzer
import pytest
from fuzz import CORPUS, fuzz
from fuzz_subjects import SUBJECTS, Subject, forget_ring

INPUTS = {
    "ring": 250, "recording": 40, "comparison": 12, "spy": 250, "dump": 250, "trace": 250, "metrics": 250, "notes": 250,
    "elf": 250, "source": 20, "kernel": 250,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_ring_is_left():
    yield
    forget_ring()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SUBJECTS if name != "screen"])
def test_a_few_inputs(name, tmp_path, capsys):
    """A finding is told with its file; it is for a person to add to the corpus."""
    findings = fuzz(SUBJECTS[name], 600.0, 4, tmp_path, most=INPUTS[name])
    assert findings == 0, f"{[str(path) for path in tmp_path.iterdir()]}\n{capsys.readouterr().out}"
    assert f"{name}: {INPUTS[name]} inputs" in capsys.readouterr().out


@pytest.mark.slow
def test_a_few_inputs_on_the_screen(tmp_path):
    """In a process of its own: the screen has the terminal until that ends."""
    limits = ("--minutes", "0.1", "--seed", "4", "--results", tmp_path / "results.json", "--keep", tmp_path / "inputs")
    done = subprocess.run([sys.executable, fuzzer.__file__, "screen", *limits], capture_output=True, text=True)
    assert done.returncode == 0 and ", 0 findings" in done.stdout, done.stdout + done.stderr


def test_past_findings_stay_mended():
    """In a process of its own, whose stack may overflow, and to whose terminal nothing may be written but this."""
    done = subprocess.run(
        [sys.executable, "-W", "always:invalid escape sequence", fuzzer.__file__, "--again"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    fed = {line.split(" ")[1].rstrip(":") for line in done.stdout.splitlines()}
    assert fed == {path.name for path in CORPUS.iterdir()} and len(fed) >= 15


def test_a_new_finding_becomes_one_of_them(tmp_path, monkeypatch, capsys):
    def fussy(data):
        if b"\x1b" in data:
            raise ValueError("an escape")

    subject = Subject("fussy", lambda: [b'{"name": "x"}'], fussy, lambda data: [(0, len(data))])
    assert fuzz(subject, 60.0, 1, tmp_path, most=300) == 1
    (path,) = tmp_path.iterdir()
    monkeypatch.setitem(SUBJECTS, "fussy", subject)
    capsys.readouterr()
    assert fuzzer.again([path]) == 1
    assert "ValueError" in capsys.readouterr().out
