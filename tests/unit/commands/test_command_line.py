"""How the command line is read, and what every kind of failure becomes."""

import argparse

import pytest

from aitop import __version__, cli
from aitop.commands import diagnose, monitor, run
from aitop.commands.options import duration, interval, process_id


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


def test_help_says_exit_codes_and_every_verb(capsys):
    with pytest.raises(SystemExit) as left:
        cli.run(["--help"])
    out = capsys.readouterr().out
    assert left.value.code == 0 and "exit codes:" in out
    assert [verb for verb in cli.VERBS if f"\n    {verb} " not in out] == []


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as left:
        cli.run(["--version"])
    assert (left.value.code, capsys.readouterr().out) == (0, f"aitop {__version__}\n")


def test_a_replay_says_what_is_wrong_with_its_output_before_it_reads(tmp_path, capsys):
    for line, words in (
        (f"replay none -o {tmp_path}/out", "--format or --export"),
        (f"replay none --format json -o {tmp_path}", "cannot write"),
        (f"replay none --export csv -o {tmp_path}/none/out", "cannot write"),
    ):
        assert cli.run(line.split()) == 2
        assert words in capsys.readouterr().err
