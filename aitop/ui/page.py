"""Pages of the catalogue, and what could not be judged, as lines of the screen."""

from __future__ import annotations

from functools import lru_cache

from aitop.diagnosis.catalogue import Block, page
from aitop.model.verdict import Diagnosis, by_reason
from aitop.ui.line import Line, wrap
from aitop.ui.palette import BRIGHT, DIM, FAINT, TEXT, TITLE
from aitop.ui.words import one_line

# Longer lines of prose are hard to follow.
WIDEST = 100


@lru_cache(maxsize=8)
def page_lines(verdict: str, width: int) -> tuple[Line, ...]:
    """The page of a verdict id, wrapped to `width` or what reads well; empty where the catalogue has none."""
    found = page(verdict)
    if found is None:
        return ()
    lines = [Line(), Line("─" * width, FAINT)]
    width = min(width, WIDEST)
    lines += [Line(text, BRIGHT) for text in wrap(f"{found.id}: {found.summary}", width)]
    for title, blocks in found.parts:
        lines += [Line(), Line(title, TITLE)]
        for number, block in enumerate(blocks):
            follows = number > 0 and not (block.kind == "item" and blocks[number - 1].kind == "item")
            lines += [Line()] if follows else []
            lines += _lines(block, width)
    return tuple(lines)


def unjudged_lines(diagnosis: Diagnosis, width: int) -> list[Line]:
    """For want of what which verdicts could not be judged: a line or two for each reason."""
    lines = []
    for reason, ids in by_reason(diagnosis.abstained):
        first, *rest = wrap(f"{one_line(reason)}: {', '.join(ids)}", width - 4) or [""]
        lines.append(Line("  ? ", FAINT).add(first, DIM))
        lines += [Line("    ").add(text, DIM) for text in rest]
    return lines


def _lines(block: Block, width: int) -> list[Line]:
    if block.kind == "code":
        return [Line("    ").add(text, BRIGHT) for text in block.text.split("\n")]
    mark = "· " if block.kind == "item" else ""
    parts = wrap(block.text, width - len(mark))
    return [Line(mark if not row else " " * len(mark), DIM).add(text, TEXT) for row, text in enumerate(parts)]
