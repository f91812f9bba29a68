"""Pages of the catalogue as plain text."""

from __future__ import annotations

import textwrap

from aitop.diagnosis.catalogue import FAMILIES, Block, Page, page

WIDEST = 78


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
