"""The catalogue: every verdict id, and the page of text that explains it.

A page is a text file in `pages/`: "ID: SUMMARY" in its first line, then each of PARTS, at most 76 cells wide. Lines
that begin with "- " are items, those that are indented by four spaces are code.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

PARTS = ("What it is", "How aitop knows", "How to be sure", "How to fix", "When it is fine")
FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("the step waits", ("input-bound", "transfer-bound", "preprocessing-bound", "underbatched", "sync-stall")),
    (
        "the host is the limit",
        ("python-overhead", "launch-bound", "gil-contention", "cpu-oversubscription", "host-bound"),
    ),
    ("the device is the limit", ("compute-bound", "memory-bandwidth-bound", "precision", "optimizer-bound")),
    ("between steps", ("checkpoint-stall", "eval-stall", "host-io-stall", "gc-stall", "recompile", "step-time-growth")),
    ("memory", ("memory-leak", "fragmentation", "oom-risk", "host-memory-pressure")),
    ("several ranks", ("comm-bound", "straggler", "hang")),
    ("hardware", ("thermal-throttle", "power-cap", "gpu-shared", "pcie-degraded", "gpu-fault")),
    ("serving, and runs compared", ("latency-tail", "queue-bound", "regression")),
)
IDS = tuple(verdict for _, members in FAMILIES for verdict in members)


class Block(msgspec.Struct, frozen=True):
    """A paragraph (`text`), one item of a list, or lines of `code`, which keep their breaks."""

    kind: Literal["text", "item", "code"]
    text: str


class Page(msgspec.Struct, frozen=True):
    """The page of a verdict id. `parts` has each of PARTS with its blocks."""

    id: str
    summary: str
    parts: tuple[tuple[str, tuple[Block, ...]], ...]


@cache
def page(verdict: str) -> Page | None:
    """The page of an id; None where there is none."""
    if verdict not in IDS:
        return None
    from importlib.resources import files  # noqa: PLC0415 - loads hashlib and more, and only who reads a page needs it

    text = files(__name__).joinpath("pages").joinpath(f"{verdict}.txt").read_text(encoding="utf-8")
    head, _, body = text.partition("\n")
    name, _, summary = head.partition(": ")
    return Page(name, summary, _parts(body))


def nearest(word: str) -> tuple[str, ...]:
    """Ids that `word` may have meant, the likeliest first: ids that contain it, then ids with similar spelling."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for a word that is no id

    word = word.strip().lower().replace("_", "-").replace(" ", "-")
    within = [verdict for verdict in IDS if word and word in verdict]
    alike = get_close_matches(word, IDS, n=3, cutoff=0.5)
    return tuple(dict.fromkeys([*within, *alike]))[:4]


def no_such(word: str) -> str:
    """The error sentence for a word that is no id, with the ids that it may have meant."""
    meant = nearest(word)
    return f"there is no verdict {word!r}; " + (
        f"did you mean {' or '.join(meant)}?" if meant else "`aitop explain` lists them"
    )


def _parts(body: str) -> tuple[tuple[str, tuple[Block, ...]], ...]:
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in body.splitlines():
        if line in PARTS:
            lines = parts.setdefault(line, [])
        else:
            lines.append(line)
    return tuple((title, _blocks(rest)) for title, rest in parts.items())


def _blocks(lines: list[str]) -> tuple[Block, ...]:
    """Divide lines into paragraphs, items and code. Blank lines end a block, but are kept within code."""
    blocks: list[Block] = []
    open_block = False
    for line in lines:
        if not line.strip():
            open_block = False
            continue
        kind: Literal["text", "item", "code"] = (
            "code" if line.startswith("    ") else "item" if line.startswith("- ") else "text"
        )
        text = line[4:] if kind == "code" else line[2:] if kind == "item" else line.strip()
        if blocks and kind == "code" and blocks[-1].kind == "code":
            gap = "\n" if open_block else "\n\n"
            blocks[-1] = Block("code", f"{blocks[-1].text}{gap}{text}")
        elif open_block and kind == "text":
            blocks[-1] = Block(blocks[-1].kind, f"{blocks[-1].text} {text}")
        else:
            blocks.append(Block(kind, text))
        open_block = True
    return tuple(blocks)
