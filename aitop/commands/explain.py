"""Explain a verdict: what it is, how aitop knows, how to be sure, how to fix it, and when it is fine."""

from __future__ import annotations

import argparse
import shutil
import sys

from aitop.errors import WrongUsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The id, which may be left out."""
    parser.add_argument("id", nargs="?", metavar="ID", help="a verdict, as input-bound; without one, all are listed")


def run(args: argparse.Namespace) -> int:
    """Print the page, or the list; WrongUsageError with the nearest ids for one that is not known."""
    from aitop.diagnosis.catalogue import nearest, page
    from aitop.outputs.explanation import contents, explanation

    width = shutil.get_terminal_size().columns
    if args.id is None:
        sys.stdout.write(contents(width))
        return 0
    shown = page(args.id.strip().lower())
    if shown is None:
        meant = nearest(args.id)
        hint = f"did you mean {' or '.join(meant)}?" if meant else "`aitop explain` lists them"
        raise WrongUsageError(f"there is no verdict {args.id!r}; {hint}")
    sys.stdout.write(explanation(shown, width))
    return 0
