"""Watch without a screen and keep everything that was seen."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aitop.commands.alert import add_alert_options, alert_of
from aitop.commands.options import add_watch_options, duration, process_id
from aitop.errors import AitopError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--pid -o --for, alerts and the options of watching."""
    parser.add_argument("-p", "--pid", type=process_id, nargs="+", required=True, help="the processes to record")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", required=True, help="the recording to write (FILE.gz: compressed)"
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        type=duration,
        metavar="T",
        help="how long (default: until the process ends or Ctrl-C is pressed)",
    )
    add_alert_options(parser)
    add_watch_options(parser)


def run(args: argparse.Namespace) -> int:
    """Record until the time is over, the target has ended or the user presses Ctrl-C; all of these are success."""
    from aitop.commands.headless import Watcher, watching
    from aitop.sources.host.target import look

    watcher: Watcher | None = None
    alert = alert_of(args)
    try:
        with watching([look(pid) for pid in args.pid], args.settings, args.output, alert) as watcher:
            watcher.wait(args.seconds, f"Recording {args.output}, Ctrl-C ends it …")
    except KeyboardInterrupt:
        if args.seconds is not None or watcher is None:
            raise
    if watcher.recording_failed is not None:
        raise AitopError(watcher.recording_failed)
    print(f"Recorded {args.output}; look at it with: aitop replay {args.output}", file=sys.stderr)
    return 0
