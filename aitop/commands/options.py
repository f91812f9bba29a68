"""Arguments that several verbs share, and how their text is read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aitop.model.settings import THEME_NAMES, Settings

if TYPE_CHECKING:
    from aitop.sources.prometheus.address import Address

SWITCHES = {
    "passive": "never touch the process: no hook, no stack sampling, no /metrics",
    "gpu": "ask the driver about GPUs",
    "stacks": "sample Python stacks",
    "hook": "put the step hook into the process",
    "metrics": "read a server's own /metrics, over the loopback only",
    "history": "compare with the last run of the same script, and keep a small summary of this one for the next",
}
"""What can be switched on and off, on the command line and in the settings."""
LARGEST_PID = 2**22
LONGEST_SECONDS = 30 * 86400.0
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """The seconds in 15s, 2m, 500ms, 1h or a plain number. Raises argparse's error for anything else and for zero."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 15s, 2m, 500ms or 1.5")
    return seconds


def at_least(shortest: float) -> Callable[[str], float]:
    """Return a parser of durations from `shortest` seconds to a month."""

    def read(text: str) -> float:
        seconds = duration(text)
        if not shortest <= seconds <= LONGEST_SECONDS:
            bounds = f"{shortest:g}s to {LONGEST_SECONDS / 3600:g}h"
            raise argparse.ArgumentTypeError(f"{text!r} is not a time from {bounds}")
        return seconds

    return read


# With shorter intervals, aitop would mostly watch its own load.
interval = at_least(0.1)


def process_id(text: str) -> int:
    """A number that Linux may give to a process."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= LARGEST_PID):
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a process")
    return int(text)


def prometheus(text: str) -> Address:
    """The address of a Prometheus server. The error for a wrong one does not repeat it, as it may hold a password."""
    from aitop.sources.prometheus.address import EXAMPLE, parse

    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not a URL such as {EXAMPLE}: {error}") from None


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    """How closely to watch: --passive, --interval and the sources to use. An option not given is None: see `settle`."""
    group = parser.add_argument_group("how to watch")
    group.add_argument("--interval", type=interval, metavar="S", help="time between two looks (default: 1s)")
    add_switches(group, SWITCHES)


def add_switches(group: argparse._ArgumentGroup, names: Iterable[str], **defaults: bool) -> None:
    """A pair of options for each name. One that is not given is None (see `settle`), or what `defaults` say."""
    for name in names:
        words = f"{SWITCHES[name]} (default: {'yes' if defaults.get(name, name != 'passive') else 'no'})"
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=defaults.get(name), help=words)


def add_screen_options(parser: argparse.ArgumentParser) -> None:
    """How the screen looks: --theme --ascii."""
    group = parser.add_argument_group("how it looks")
    group.add_argument("--theme", choices=THEME_NAMES, help="colours (default: what suits the terminal)")
    group.add_argument(
        "--ascii", action=argparse.BooleanOptionalAction, default=None, help="draw with ASCII characters only"
    )


def settle(args: argparse.Namespace, settings: Settings) -> None:
    """Set `args.settings` to the settings, overridden by what the command line says."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    asked = {name: given[name] for name in ("interval", *SWITCHES, "theme", "ascii") if name in given}
    args.settings = msgspec.structs.replace(settings, **asked)


def add_record_option(parser: argparse.ArgumentParser) -> None:
    """--record FILE, for the verbs whose purpose is not the recording."""
    parser.add_argument("--record", type=Path, metavar="FILE", help="also keep what was seen (FILE.gz: compressed)")
