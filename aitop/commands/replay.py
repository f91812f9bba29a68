"""Play a recording on the same screen, or write its report or its data without one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from aitop.commands import say
from aitop.commands.diagnose import FORMATS, check_writable, render, write_report
from aitop.commands.options import add_screen_options
from aitop.errors import NotEnoughEvidenceError, WrongUsageError

if TYPE_CHECKING:
    from aitop.sources.replay import Recording

EXPORTS = ("speedscope", "collapsed", "perfetto", "csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE --speed --format --export -o."""
    parser.add_argument("file", type=Path, metavar="FILE", help="what `aitop record` or --record has written")
    parser.add_argument("--speed", type=speed, default=1.0, metavar="N", help="N times as fast as it was (default: 1)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--format", choices=FORMATS, help="no screen: write the report of the recording's end")
    instead.add_argument(
        "--export",
        choices=EXPORTS,
        help="no screen: write the stacks for speedscope or flame graph tools (collapsed), "
        "the steps as a trace for Perfetto, or the figures of every tick as a table",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="with --format or --export: write to FILE")
    add_screen_options(parser)


def speed(text: str) -> float:
    """A factor above zero."""
    try:
        factor = float(text.rstrip("x×"))
    except ValueError:
        factor = 0.0
    if not 0 < factor <= 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed such as 4 or 0.5")
    return factor


def run(args: argparse.Namespace) -> int:
    """Play the recording, or write what was asked for."""
    from aitop.sources.replay import Recording

    if args.output is not None and args.export is None and args.format is None:
        raise WrongUsageError("-o says where the output goes: say which with --format or --export")
    check_writable(args.output)
    recording = Recording(args.file)
    code = 0
    if args.export is not None:
        write_report(export(recording, args.export, args.file.name), args.output)
    elif args.format is not None:
        from aitop.engine.replay import last_snapshot

        last = last_snapshot(recording)
        if last is None:
            raise _too_short(args.file)
        write_report(render(last, args.format), args.output)
    else:
        from aitop.commands.monitor import check_terminal
        from aitop.engine.replay import ReplayFeed

        check_terminal("`aitop replay FILE --format text` writes the report without one")
        from aitop.ui.app import ReplayApp

        feed, title = ReplayFeed(recording, args.speed), f"replay of {args.file.name}"
        code = ReplayApp(feed, title, settings=args.settings).show()
    if recording.skipped:
        say(f"{recording.skipped} lines of {args.file} could not be read and were left out")
    return code


def export(recording: Recording, form: str, name: str) -> str:
    """The recording in one of EXPORTS. Raises NotEnoughEvidenceError where it has nothing to export in that form."""
    if form == "csv":
        from aitop.engine.core import Engine
        from aitop.outputs.formats.table import to_csv

        table = to_csv(filter(None, map(Engine(recording.header.target).handle, recording.events())))
        if not table:
            raise _too_short(name)
        return table
    if form == "perfetto":
        from aitop.outputs.formats.trace import to_trace

        return to_trace(recording.events())
    from aitop.outputs.formats.stacks import sampled, to_collapsed, to_speedscope

    stacks = list(sampled(recording.events()))
    if not stacks:
        raise NotEnoughEvidenceError(f"no stacks were sampled in the recording {name}")
    return to_collapsed(stacks) if form == "collapsed" else to_speedscope(stacks, name)


def _too_short(file: Path | str) -> NotEnoughEvidenceError:
    return NotEnoughEvidenceError(f"the recording {file} ends before its first second is over: record for longer")
