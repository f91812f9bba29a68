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


def escaped_json(text: str) -> str:
    """A JSON text that says the same without anything that a terminal would obey: such characters as \\uXXXX."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _escape(one) for one in text)


def _escape(one: str) -> str:
    """As JSON writes it: one unit of UTF-16, or two."""
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
