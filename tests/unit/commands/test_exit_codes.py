"""Each kind of failure is one sentence on stderr, and has an exit code of its own."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest
import snapshot_builder
from publishing_feed import PublishingFeed

from aitop import cli
from aitop.commands import demo, headless, monitor
from aitop.engine.feed import own_failure
from aitop.errors import (
    AitopError,
    NoTargetError,
    NotEnoughEvidenceError,
    NotPermittedError,
    UnreadableRecordingError,
    WrongUsageError,
)
from aitop.model.job import Candidate
from aitop.model.snapshot import Target


def test_a_full_disk_behind_stdout_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "aitop", "explain", "input-bound"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"aitop: cannot write what was asked for: No space left on device\n"


NO_EVIDENCE = """
import sys
from types import SimpleNamespace
from aitop import cli
from aitop.errors import NotEnoughEvidenceError

def verb(args):
    sys.stdout.write("a report")
    raise NotEnoughEvidenceError("it was too short")

cli.parse = lambda words: SimpleNamespace(run=verb)
sys.exit(cli.run([]))
"""


@pytest.mark.parametrize(
    ("stdout", "code", "said"),
    [
        ("> /dev/null", 5, "aitop: it was too short\n"),
        ("> /dev/full", 1, "aitop: cannot write what was asked for: No space left on device\n"),
        # Its reader is gone once the pipe has no other end.
        ("| true", 141, ""),
        (">&-", 5, "aitop: it was too short\n"),
    ],
)
def test_the_exit_code_of_a_verb_that_writes_and_then_fails(tmp_path, stdout, code, said):
    wait = "import select\npipe = select.poll()\npipe.register(1, 0)\npipe.poll()\n" if "|" in stdout else ""
    (tmp_path / "verb.py").write_text(wait + NO_EVIDENCE)
    command = f"{sys.executable} {tmp_path}/verb.py {stdout}; exit ${{PIPESTATUS[0]}}"
    # What is unbuffered fails when it is written, not at the end.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_where_stdout_or_stderr_is_closed_what_is_written_there_is_dropped(closed):
    words = f"{sys.executable} -m aitop explain input-bound {closed}; {sys.executable} -m aitop explain none {closed}"
    done = subprocess.run(["bash", "-c", f"{words}; echo $?"], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("2\n") and ("input-bound" in done.stdout.lower()) == (">&-" not in closed.split())
    assert ("aitop: " in done.stderr) == ("2>&-" not in closed) and "fault in aitop" not in done.stderr


def test_a_signal_that_nohup_ignores_stays_ignored():
    code = "from aitop.cli import catch_signals; catch_signals(); import os; os.kill(os.getpid(), 1); print('lives')"
    for ignored, words in ((True, b"lives\n"), (False, b"")):
        # These tests may be run under nohup themselves.
        start = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False, preexec_fn=start)
        assert (done.stdout, done.returncode) == (words, 0 if ignored else 129)


def test_where_aitop_itself_fails_the_last_snapshot_stays():
    seen = headless.Watcher(None)
    good = snapshot_builder.snapshot(snapshot_builder.steps())
    seen.publish(msgspec.structs.replace(good, tick=3))
    failure = msgspec.structs.replace(good.target, ended="aitop failed: can't start new thread")
    seen.publish(msgspec.structs.replace(good, tick=0, target=failure))
    assert seen.ended and seen.failed == failure.ended and seen.snapshot.tick == 3


@pytest.mark.parametrize(
    "line",
    [
        "diagnose --pid 7",
        "record --pid 7 -o {folder}/seen.jsonl",
        "profile --pid 7",
        "demo",
    ],
)
def test_where_aitop_itself_fails_every_verb_says_so_and_leaves_with_1(line, tmp_path, monkeypatch, capsys):
    good = snapshot_builder.snapshot(snapshot_builder.steps())

    failure = own_failure(good.target, ZeroDivisionError("of nothing"), time=1.0, wall=1.0)
    feed = PublishingFeed(msgspec.structs.replace(good, tick=3), failure)
    monkeypatch.setattr("aitop.engine.live.LiveFeed", lambda *_: feed)
    monkeypatch.setattr("aitop.sources.host.target.look", lambda pid, **_: good.target)
    monkeypatch.setattr(demo, "running", lambda *_: contextlib.nullcontext(7))
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.run(line.format(folder=tmp_path).split()) == 1
    said = capsys.readouterr()
    assert "aitop: aitop itself failed and stopped watching (ZeroDivisionError: of nothing)" in said.err
    assert said.out == "" and "--for" not in said.err
    assert ("what was seen until then is in" in said.err) == ("record" in line)


def failing(monkeypatch, error):
    def fail(args):
        raise error

    monkeypatch.setattr(cli, "parse", lambda arguments: SimpleNamespace(run=fail))
    return cli.run([])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AitopError, 1),
        (WrongUsageError, 2),
        (NoTargetError, 3),
        (NotPermittedError, 4),
        (NotEnoughEvidenceError, 5),
        (UnreadableRecordingError, 6),
    ],
)
def test_our_errors_are_one_sentence_and_their_code(monkeypatch, capsys, error, code):
    assert failing(monkeypatch, error("There is no\nprocess \x1b[31m12.")) == code
    assert capsys.readouterr() == ("", "aitop: There is no process ·[31m12.\n")


def test_ctrl_c_is_130_and_quiet_and_a_fault_of_ours_asks_to_be_reported(monkeypatch, capsys):
    assert failing(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr() == ("", "")
    monkeypatch.delenv("AITOP_DEBUG", raising=False)
    assert failing(monkeypatch, KeyError("rank")) == 1
    err = capsys.readouterr().err
    assert "KeyError: 'rank'" in err and "report" in err and "Traceback" not in err
    monkeypatch.setenv("AITOP_DEBUG", "1")
    assert failing(monkeypatch, KeyError("rank")) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_ascii_terminal_gets_question_marks_and_no_traceback(aitop):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = aitop("replay", "/żółć", env=environment)
    assert done.returncode == 6
    assert done.stderr == "aitop: cannot read the recording /????: No such file or directory\n"


def test_a_screen_whose_engine_has_failed_ends_with_a_sentence_and_a_code(monkeypatch, capsys):
    target = Target(pid=7, command="python train.py")

    failure = own_failure(target, ZeroDivisionError("of nothing"), time=1.0, wall=1.0)

    class Screen:
        def __init__(self, feed, *_, **__):
            self.feed = feed

        def show(self):
            self.feed.start(lambda snapshot: None)
            return 0

    monkeypatch.setattr("aitop.ui.app.MonitorApp", Screen)
    monkeypatch.setattr("aitop.engine.live.LiveFeed", lambda *_: PublishingFeed(failure))
    arguments = cli.parse(["--pid", "7"])
    assert monitor.watch([target], arguments) == AitopError.exit_code
    assert "aitop itself failed and stopped watching (ZeroDivisionError: of nothing)" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--pid", str(os.getpid())], [], ["run", "--", "true"]])
def test_without_a_terminal_the_screen_says_what_to_do_instead(arguments, monkeypatch, capsys):
    with open(os.devnull) as no_terminal:
        monkeypatch.setattr(sys, "stdin", no_terminal)
        assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "needs a terminal" in err
    assert err.count("\n") == 1


def test_without_a_terminal_the_jobs_that_could_be_chosen_are_named(monkeypatch, capsys):
    command = "python train.py " + "--flag " * 20
    job = Candidate(pid=4242, user="ada", command=command, framework="torch", ranks=1, workers=0, age=9.0)
    monkeypatch.setattr(monitor, "find", lambda: [job] * 9)
    with open(os.devnull) as no_terminal:
        monkeypatch.setattr(sys, "stdin", no_terminal)
        assert cli.run([]) == 2
    err = capsys.readouterr().err
    assert "`aitop diagnose --pid PID`" in err and err.count("4242 (python train.py --flag") == 5
    assert len(err) < 600 and err.count("\n") == 1
