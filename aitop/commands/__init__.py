"""The verbs of the command line, one file each."""

from __future__ import annotations

import signal
import sys

from aitop.model.text import printable


def say(sentence: str) -> None:
    """Print one line on stderr; control characters in it are replaced."""
    print(f"aitop: {printable(sentence)}", file=sys.stderr, flush=True)


def how_ended(code: int) -> str:
    """How a process ended, by the return code that subprocess gives: "ended with code 1", "was ended by SIGKILL"."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        # Python has no names for most real-time signals.
        return f"was ended by signal {-code}"
