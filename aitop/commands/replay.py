"""Play a recording on the same screen, or write its last report without one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aitop.commands.diagnose import FORMATS
from aitop.commands.options import add_screen_options
from aitop.errors import NotEnoughEvidenceError
from aitop.model.text import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """FILE --speed --format -o."""
    parser.add_argument("file", type=Path, metavar="FILE", help="what `aitop record` or --record has written")
    parser.add_argument("--speed", type=speed, default=1.0, metavar="N", help="N times as fast as it was (default: 1)")
    parser.add_argument("--format", choices=FORMATS, help="no screen: write the report of the recording's end")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="with --format: write to FILE")
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
    """Play the recording."""
    from aitop.sources.replay import Recording

    recording = Recording(args.file)
    target = recording.header.target
    if args.format is None:
        from aitop.commands.monitor import check_terminal
        from aitop.engine.replay import ReplayFeed

        check_terminal("`aitop replay FILE --format text` writes the report without one")
        from aitop.ui.app import MonitorApp

        feed, title = ReplayFeed(recording, args.speed), f"replay of {args.file.name}"
        code = MonitorApp(feed, title, settings=args.settings).show_run()
    else:
        code = 0
        from aitop.commands.diagnose import render, write_report
        from aitop.engine.core import Engine

        engine, snapshot = Engine(target), None
        for event in recording.events():
            snapshot = engine.handle(event) or snapshot
        if snapshot is None:
            raise NotEnoughEvidenceError(
                f"the recording {args.file} ends before its first second is over: record for longer"
            )
        write_report(render(snapshot, args.format), args.output)
    if recording.skipped:
        name = printable(str(args.file))
        print(f"aitop: {recording.skipped} lines of {name} could not be read and were left out", file=sys.stderr)
    return code
