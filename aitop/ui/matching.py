"""Which rows a filter keeps. Pure text: every word must be found somewhere in the row, in any order and case."""

from __future__ import annotations

from collections.abc import Iterable


def matches(wanted: str, *texts: str | None) -> bool:
    """Whether every word of `wanted` occurs in one of `texts`; nothing wanted matches everything.

    A word in lower case ignores case; one with a capital means it. A word after `!` must not occur.
    """
    found = [text for text in texts if text]
    return all(_holds(word, found) for word in wanted.split())


def _holds(word: str, texts: Iterable[str]) -> bool:
    if word.startswith("!"):
        return len(word) == 1 or not _occurs(word[1:], texts)
    return _occurs(word, texts)


def _occurs(word: str, texts: Iterable[str]) -> bool:
    if word == word.lower():
        return any(word in text.lower() for text in texts)
    return any(word in text for text in texts)
