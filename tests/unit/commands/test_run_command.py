"""`aitop run`: what it starts, where the output goes, and what is said when the command has ended."""

import os
import signal
import sys
import tempfile
import tracemalloc

import pytest

from aitop import cli
from aitop.commands import how_ended, run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "aitop run -- python train.py"),
        (["--headless"], "aitop run -- python train.py"),
        (["--"], "aitop run -- python train.py"),
        (["--headless", "--", "/no/such/command"], "aitop: cannot start /no/such/command: No such file or directory\n"),
    ],
)
def test_run_without_a_command_that_is_there_is_wrong_usage(arguments, words, capsys):
    assert cli.run(["run", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_recording_that_cannot_be_written_is_said_before_the_command_runs(tmp_path, capsys):
    there, marker = tmp_path / "run.jsonl", tmp_path / "ran"
    there.write_text("of yesterday")
    for recording, words in ((there, "exists already"), (tmp_path / "no" / "run.jsonl", "cannot write")):
        assert cli.run(["run", "--headless", "--record", str(recording), "--", "touch", str(marker)]) == 2
        assert words in capsys.readouterr().err
    assert not marker.exists() and there.read_text() == "of yesterday"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with code 0"),
        (-signal.SIGKILL, "was ended by SIGKILL"),
        (-signal.SIGRTMIN - 1, f"was ended by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_how_a_process_ended(code, words):
    assert how_ended(code) == words


@pytest.fixture
def on_screen(monkeypatch, tmp_path):
    """`aitop run` with a screen that closes when the command has ended; returns its exit code."""

    def run_on_screen(watch, *command):
        monkeypatch.setattr("aitop.commands.monitor.check_terminal", lambda instead: None)
        monkeypatch.setattr("aitop.commands.monitor.watch", watch)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        return cli.run(["run", "--", *command])

    return run_on_screen


def ended(targets, args):
    """A screen that closes once the command has ended."""
    os.waitid(os.P_PID, targets[0].pid, os.WEXITED | os.WNOWAIT)
    return 0


def test_a_command_that_does_not_start_leaves_no_log(on_screen, tmp_path):
    assert on_screen(ended, "/no/such/command") == 2
    assert list(tmp_path.iterdir()) == []


def test_of_a_large_log_only_its_end_is_read(on_screen, capsys):
    loud = "print('x' * 20_000_000); print(*range(30), sep='\\n')"
    tracemalloc.start()
    assert on_screen(ended, sys.executable, "-c", loud) == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    out, err = capsys.readouterr()
    assert out.split() == [str(number) for number in range(10, 30)]
    assert "ended with code 0; all of its output is in" in err and peak < 10_000_000


def test_a_log_that_is_gone_is_told_with_how_the_command_ended(on_screen, capsys, tmp_path):
    def remove(targets, args):
        for log in tmp_path.iterdir():
            log.unlink()
        return ended(targets, args)

    assert on_screen(remove, "true") == 0
    assert "true ended with code 0; its output cannot be read" in capsys.readouterr().err


def test_the_hook_goes_before_other_paths():
    site = run.with_hook({})["PYTHONPATH"]
    assert site.endswith("aitop/hook/site")
    hooked = run.with_hook({"PYTHONPATH": "/mine:/yours", "A": "b"})
    assert hooked == {"PYTHONPATH": f"{site}:/mine:/yours", "A": "b", "AITOP_RUN": "1"}
    assert run.with_hook(hooked) == hooked
