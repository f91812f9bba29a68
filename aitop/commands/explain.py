"""Explain a verdict: what it is, how aitop knows, how to be sure, how to fix it, and when it is fine."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from aitop.errors import WrongUsageError

if TYPE_CHECKING:
    from aitop.diagnosis.catalogue import Block, Page

METAVAR = "ID"
WIDEST = 78


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The id, which may be left out."""
    parser.add_argument("id", nargs="?", metavar=METAVAR, help="a verdict, as input-bound; without one, all are listed")


def run(args: argparse.Namespace) -> int:
    """Print the page of an id, or the list of ids. Raises WrongUsageError with the nearest ids for an unknown one."""
    from aitop.diagnosis.catalogue import no_such, page

    width = shutil.get_terminal_size().columns
    if args.id is None:
        sys.stdout.write(contents(width))
        return 0
    shown = page(args.id.strip().lower())
    if shown is None:
        raise WrongUsageError(no_such(args.id))
    sys.stdout.write(explanation(shown, width))
    return 0


def explanation(shown: Page, width: int) -> str:
    """A page, wrapped to `width` columns and at most 78; lines of code are never broken."""
    width = min(width, WIDEST)
    pieces = [*textwrap.wrap(f"{shown.id}: {shown.summary}", width)]
    for title, blocks in shown.parts:
        pieces += ["", title]
        before = None
        for block in blocks:
            pieces += [] if block.kind == before == "item" else [""]
            pieces += _lines(block, width)
            before = block.kind
    return "\n".join(pieces) + "\n"


def contents(width: int) -> str:
    """Every id with its one line, by family."""
    from aitop.diagnosis.catalogue import FAMILIES, page

    longest = max(len(verdict) for _, members in FAMILIES for verdict in members)
    lines = ["aitop explain ID prints the page of a verdict. The ids:"]
    for family, members in FAMILIES:
        lines += ["", family]
        for member in filter(None, map(page, members)):
            indent = " " * (longest + 4)
            lines += textwrap.wrap(
                member.summary,
                max(longest + 24, min(width, WIDEST)),
                initial_indent=f"  {member.id:<{longest}}  ",
                subsequent_indent=indent,
            )
    return "\n".join(lines) + "\n"


def _lines(block: Block, width: int) -> list[str]:
    if block.kind == "code":
        return [f"    {line}".rstrip() for line in block.text.split("\n")]
    mark = "- " if block.kind == "item" else ""
    return textwrap.wrap(
        block.text,
        width,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )
