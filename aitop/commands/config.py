"""Say what is set, and in which file. The file is TOML; without one everything is as --show prints it."""

from __future__ import annotations

import argparse

from aitop.commands.settings import as_toml, path, read
from aitop.errors import WrongUsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--show or --path."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--show", action="store_true", help="print all settings as they are, as a file that can be edited (default)"
    )
    what.add_argument("--path", action="store_true", help="print where the file is, or would be")


def run(args: argparse.Namespace) -> int:
    """Print one of the two."""
    if args.path:
        print(path())
        return 0
    try:
        file = path()
    except WrongUsageError:  # nobody knows a home: the settings are what they are without a file
        file = None
    print(as_toml(read(file), file), end="")
    return 0
