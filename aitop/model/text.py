"""Text of unknown origin made safe to show. Names, command lines, source and messages all pass through here."""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """`text` on one line, with nothing in it that a terminal would obey: no controls, escapes or direction marks.

    Line breaks and other white space become spaces (a tab four), everything else that is not printable a middle dot,
    so that what was tampered with can be seen.
    """
    if text.isprintable():
        return text
    expanded = text.replace("\t", "    ")
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "·" for letter in expanded)


def escaped_json(text: str) -> str:
    """The same JSON with every character that a terminal would obey written as an escape of JSON (`\\u001b`)."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1] for letter in text)
