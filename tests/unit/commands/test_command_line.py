"""How the command line is read, and what every kind of failure becomes."""

import argparse
import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import tracemalloc
from types import SimpleNamespace

import msgspec
import pytest
import snapshot_builder

from aitop import __version__, cli
from aitop.commands import demo, diagnose, headless, how_ended, monitor, run
from aitop.commands.options import duration, interval, process_id
from aitop.engine.feed import own_failure
from aitop.errors import (
    AitopError,
    NoTargetError,
    NotEnoughEvidenceError,
    NotPermittedError,
    UnreadableRecordingError,
    WrongUsageError,
)
from aitop.model.ledger import Entry, Ledger
from aitop.model.snapshot import Snapshot, Target
from aitop.model.verdict import Diagnosis, Verdict


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15), ("2m", 120), ("500ms", 0.5), ("1.5", 1.5), ("1h", 3600), (".5s", 0.5), ("3.", 3)]
)
def test_durations(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((duration, text) for text in ("", "0", "0s", "-1", "s", "1d", "1 2", "nan", "inf", "1e3", "9" * 400)),
        *((duration, text) for text in ("٣s", "1s\n2")),
        *((process_id, text) for text in ("0", "-5", "1.5", "abc", "", "99999999999", "٣", "²")),
        (interval, "99ms"),
    ],
)  # fmt: skip
def test_what_is_no_duration_no_process_and_no_interval(read, text):
    with pytest.raises(argparse.ArgumentTypeError):
        read(text)


def test_no_verb_is_the_monitor_with_all_its_options():
    args = cli.parse(
        [
            "--pid",
            "12",
            "13",
            "--passive",
            "--interval",
            "2s",
            "--no-gpu",
            "--no-stacks",
            "--no-hook",
            "--record",
            "f.gz",
        ]
    )
    assert (args.run, args.pid, str(args.record)) == (monitor.run, [12, 13], "f.gz")
    options = args.settings
    assert (options.passive, options.interval, options.gpu, options.stacks, options.hook) == (True, 2.0, *[False] * 3)


def test_defaults_touch_everything_once_a_second():
    args = cli.parse([])
    assert (args.run, args.pid, args.record) == (monitor.run, None, None)
    options = args.settings
    assert (options.passive, options.interval, options.gpu, options.stacks, options.hook) == (False, 1.0, *[True] * 3)
    assert interval("100ms") == 0.1


def test_diagnose_line():
    line = "diagnose --pid 7 --for 500ms --format json -o out.json --fail-on warning --passive --record f.gz"
    args = cli.parse(line.split())
    assert (args.run, str(args.record), args.passive) == (diagnose.run, "f.gz", True)
    assert (args.pid, args.seconds, args.format) == (7, 0.5, "json")
    assert (str(args.output), args.fail_on) == ("out.json", "warning")


def test_everything_behind_the_dashes_belongs_to_the_command():
    args = cli.parse(["run", "--headless", "--", "python", "train.py", "--pid", "--", "-h"])
    assert args.run is run.run
    assert args.headless
    assert args.command == ["python", "train.py", "--pid", "--", "-h"]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("python train.py", "python train.py"),
        ("--interval 2s python train.py --interval 3 -- -h", "python train.py --interval 3 -- -h"),
        ("-- python train.py -- -h", "python train.py -- -h"),
    ],
)
def test_the_command_begins_at_the_first_word_that_is_no_option(line, command):
    args = cli.parse(["run", *line.split()])
    assert args.command == command.split()
    assert args.settings.interval == (2.0 if "2s" in line else 1.0)


@pytest.mark.parametrize("verb", ["", "diagnose", "record -o x", "export", "profile", "doctor"])
def test_p_is_short_for_pid(verb):
    assert cli.parse([*verb.split(), "-p", "7"]).pid == cli.parse([*verb.split(), "--pid", "7"]).pid


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("4242", "aitop --pid 4242"),
        ("run --frobnicate python train.py", "unrecognized arguments: --frobnicate"),
        ("--passive diagnose --pid 1", "aitop diagnose --passive"),
        ("--pid", "expected at least one argument"),
        ("--pid x", "'x' is not the number of a process"),
        ("diagnose", "--pid"),
        ("diagnose --pid 1 --for soon", "'soon' is not a time"),
        ("diagnose --pid 1 --format xml", "invalid choice"),
        ("record --pid 1", "-o"),
        ("replay x --speed 0", "not a speed"),
        ("diagnose --pid 1 -- python", "only `aitop run`"),
        ("--frobnicate", "unrecognized arguments: --frobnicate"),
        ("fly", "invalid choice: 'fly'"),
        ("--pas", "unrecognized arguments"),
    ],
)
def test_wrong_usage_leaves_with_2_and_says_what_is_wrong(line, words, capsys):
    with pytest.raises(SystemExit) as left:
        cli.run(line.split())
    assert left.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


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


def test_a_report_whose_name_no_file_can_have_is_refused_in_words(capsys):
    # Before anything is watched: process 1 is not looked at.
    assert cli.run(["diagnose", "--pid", "1", "-o", "/tmp/" + "x" * 300]) == 2
    assert "cannot write /tmp/xxx" in capsys.readouterr().err


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

    class Engine:
        def __init__(self, *_):
            pass

        def start(self, publish):
            publish(msgspec.structs.replace(good, tick=3))
            publish(own_failure(good.target, ZeroDivisionError("of nothing"), time=1.0, wall=1.0))

        def conclude(self):
            pass

        stop = conclude

    monkeypatch.setattr("aitop.engine.live.LiveFeed", Engine)
    monkeypatch.setattr("aitop.sources.host.target.look", lambda pid, **_: good.target)
    monkeypatch.setattr(demo, "running", lambda *_: contextlib.nullcontext(7))
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.run(line.format(folder=tmp_path).split()) == 1
    said = capsys.readouterr()
    assert "aitop: aitop itself failed and stopped watching (ZeroDivisionError: of nothing)" in said.err
    assert said.out == "" and "--for" not in said.err
    assert ("what was seen until then is in" in said.err) == ("record" in line)


@pytest.fixture
def diagnosed(monkeypatch):
    """`aitop diagnose` of a run that is seen; `wait` is called in place of the waiting."""

    def diagnose_seen(wait, *options):
        good = msgspec.structs.replace(snapshot_builder.snapshot(snapshot_builder.steps()), ledgers=(LEDGER,))

        class Engine:
            def __init__(self, *_):
                pass

            def start(self, publish):
                publish(good)

            def conclude(self):
                pass

            stop = conclude

        monkeypatch.setattr("aitop.engine.live.LiveFeed", Engine)
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


def test_help_says_exit_codes_and_every_verb(capsys):
    with pytest.raises(SystemExit) as left:
        cli.run(["--help"])
    told = capsys.readouterr().out
    assert left.value.code == 0 and "exit codes:" in told
    assert [verb for verb in cli.VERBS if f"\n    {verb} " not in told] == []


def test_neither_the_screen_nor_the_names_of_kept_runs_load_openssl():
    code = """
import sys
import aitop.ui.app
from aitop.diagnosis.run_summary import digest
assert digest("train.py") == digest("train.py") != digest("train.pz") and len(digest("\\udce4")) == 16
loaded = [line for line in open("/proc/self/maps") if "libcrypto" in line or "libssl" in line]
assert not loaded, loaded
import asyncio, ssl, hashlib
assert ssl.create_default_context() and asyncio.run(asyncio.sleep(0, True))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SCREEN = ("textual", "rich", "pynvml", "torch")
EXPLAIN = "from aitop import cli; cli.run(['explain', 'oom-risk'])"
DIAGNOSE = "from aitop import cli; cli.parse(['diagnose', '--pid', '1'])"
SCREEN_ALONE = "import aitop.cli, aitop.commands.monitor, aitop.ui.app, aitop.engine.feed"
WITHOUT_SCREEN = "import aitop.cli, aitop.commands.headless, aitop.engine.live, aitop.outputs.text"
FEW_NEED = ("asyncio", "concurrent", "hashlib", "html", "jinja2", "logging", "pickletools", "pynvml", "ssl", "textual")


@pytest.mark.parametrize(
    ("code", "others"),
    [
        ("import aitop", ("msgspec", "torch", "argparse")),
        ("from aitop import cli; cli.build_parser()", (*SCREEN, "prometheus_client", "opentelemetry")),
        (DIAGNOSE, ("aitop.commands.demo", "aitop.commands.export", "aitop.commands.doctor")),
        (EXPLAIN, SCREEN),
        (WITHOUT_SCREEN, FEW_NEED),
        # The screen is there before rules and sources are.
        (SCREEN_ALONE, ("aitop.diagnosis.rules", "aitop.engine.core", "aitop.engine.live", "aitop.attach")),
    ],
    ids=["the package", "the command line", "a verb", "explain", "without a screen", "the screen"],
)
def test_nothing_is_imported_that_is_not_needed_yet(code, others):
    prefixes = tuple(f"{one}." for one in others)
    code += f"; import sys; print([name for name in sys.modules if f'{{name}}.'.startswith({prefixes})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_imports_are_not_searched_for_garbage():
    code = """
import gc, sys
from aitop.__main__ import main

def collections():
    return sum(generation["collections"] for generation in gc.get_stats())

before, sys.argv = collections(), ["aitop", "--help"]
try:
    main()
except SystemExit:
    print("collections:", collections() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.rpartition("collections:")[2]) < 5


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as left:
        cli.run(["--version"])
    assert (left.value.code, capsys.readouterr().out) == (0, f"aitop {__version__}\n")


def test_an_ascii_terminal_gets_question_marks_and_no_traceback(aitop):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = aitop("replay", "/żółć", env=environment)
    assert done.returncode == 6
    assert done.stderr == "aitop: cannot read the recording /????: No such file or directory\n"


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


def test_a_replay_says_what_is_wrong_with_its_output_before_it_reads(tmp_path, capsys):
    for line, words in (
        (f"replay none -o {tmp_path}/out", "--format or --export"),
        (f"replay none --format json -o {tmp_path}", "cannot write"),
        (f"replay none --export csv -o {tmp_path}/none/out", "cannot write"),
    ):
        assert cli.run(line.split()) == 2
        assert words in capsys.readouterr().err


def test_a_demo_ends_with_the_exit_code_of_its_screen(monkeypatch):
    monkeypatch.setattr("aitop.commands.monitor.check_terminal", lambda instead: None)
    monkeypatch.setattr("aitop.sources.host.target.look", lambda pid: None)
    monkeypatch.setattr("aitop.commands.monitor.watch", lambda targets, args: 1)
    assert demo.look_at(os.getpid(), argparse.Namespace()) == 1


def test_a_screen_whose_engine_has_failed_ends_with_a_sentence_and_a_code(monkeypatch, capsys):
    target = Target(pid=7, command="python train.py")

    class Engine:
        def __init__(self, *_):
            pass

        def start(self, publish):
            publish(own_failure(target, ZeroDivisionError("of nothing"), time=1.0, wall=1.0))

    class Screen:
        def __init__(self, feed, *_, **__):
            self.feed = feed

        def show(self):
            self.feed.start(lambda snapshot: None)
            return 0

    monkeypatch.setattr("aitop.ui.app.MonitorApp", Screen)
    monkeypatch.setattr("aitop.engine.live.LiveFeed", Engine)
    arguments = cli.parse(["--pid", "7"])
    assert monitor.watch([target], arguments) == AitopError.exit_code
    assert "aitop itself failed and stopped watching (ZeroDivisionError: of nothing)" in capsys.readouterr().err


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


def test_a_demo_that_a_signal_ends_says_so(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(NoTargetError, match="was ended by SIGKILL before its first step"), demo.running(script, []):
        pass


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


@pytest.mark.parametrize("arguments", [["--pid", str(os.getpid())], [], ["run", "--", "true"]])
def test_without_a_terminal_the_screen_says_what_to_do_instead(arguments, monkeypatch, capsys):
    with open(os.devnull) as no_terminal:
        monkeypatch.setattr(sys, "stdin", no_terminal)
        assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "needs a terminal" in err
    assert err.count("\n") == 1
