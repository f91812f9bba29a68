"""Text of unknown origin made safe to show. Names, command lines, source and messages all pass through here."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` on one line, with nothing in it that a terminal would obey: no controls, escapes or direction marks.

    Line breaks and other white space become spaces (a tab four), everything else that is not printable a middle dot,
    so that what was tampered with can be seen.
    """
    if text.isprintable():
        return text
    expanded = text.replace("\t", "    ")
    return "".join(one if one.isprintable() else " " if one.isspace() else "·" for one in expanded)
