"""Show the jobs of a whole cluster by what they waste, from what `aitop export` has left in a Prometheus server."""

from __future__ import annotations

import argparse
import sys

from aitop.commands.options import add_screen_options, at_least, prometheus
from aitop.errors import WrongUsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--prometheus --over --every --once --format and how the screen looks."""
    parser.add_argument(
        "--prometheus",
        type=prometheus,
        metavar="URL",
        help="the server to ask, as http://HOST:9090 (default: the setting `prometheus`)",
    )
    parser.add_argument(
        "--over", type=at_least(60.0), default=3600.0, metavar="T", help="the time to look back (default: 1h)"
    )
    parser.add_argument(
        "--every", type=at_least(1.0), default=15.0, metavar="T", help="ask again every T (default: 15s)"
    )
    parser.add_argument("--once", action="store_true", help="no screen: print the jobs, and end")
    parser.add_argument("--format", choices=("text", "json"), help="how --once prints them (default: text)")
    add_screen_options(parser)


def run(args: argparse.Namespace) -> int:
    """Show the screen, or print the jobs once."""
    address = args.prometheus or (prometheus(args.settings.prometheus) if args.settings.prometheus else None)
    if address is None:
        raise WrongUsageError(
            "no Prometheus server is named",
            "use --prometheus http://HOST:9090, or set `prometheus` in the file of `aitop config --path`",
        )
    from aitop.sources.prometheus.fleet import FleetReader

    reader = FleetReader(address, args.over)
    if args.once or args.format:
        from aitop.outputs.fleet import to_json, to_text

        fleet = reader.jobs()
        sys.stdout.write((to_json if args.format == "json" else to_text)(fleet, address.shown))
        return 0
    from aitop.commands.monitor import check_terminal

    check_terminal("`aitop fleet --once` prints the jobs without one")
    from aitop.ui.app import FleetApp

    return FleetApp(reader, args.every, args.settings).show()
