"""The verbs of the command line, one file each."""

from __future__ import annotations

import sys

from aitop.model.text import printable


def say(sentence: str) -> None:
    """Print one line on stderr; control characters in it are replaced."""
    print(f"aitop: {printable(sentence)}", file=sys.stderr, flush=True)
