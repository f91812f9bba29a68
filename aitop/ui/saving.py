"""Files that the user asks for, in the working directory: never over others, and for nobody else's eyes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual.screen import Screen

from aitop.ui.widgets.pane import Pane

MOST_FILES = 10_000


def free_stem(folder: Path, stem: str, suffixes: tuple[str, ...]) -> str:
    """`stem` with the lowest number under which none of the suffixes is taken."""
    taken = set(os.listdir(folder))
    for number in range(1, MOST_FILES):
        if not any(f"{stem}-{number}{suffix}" in taken for suffix in suffixes):
            return f"{stem}-{number}"
    raise FileExistsError(f"there are {MOST_FILES} such files here already")


def write_new(folder: Path, stem: str, contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write a file for each suffix, all under one new number. Raises OSError; then none of them is left."""
    name = free_stem(folder, stem, tuple(contents))
    written: list[Path] = []
    try:
        for suffix, content in contents.items():
            path = folder / f"{name}{suffix}"
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            written.append(path)
            with open(fd, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return written


def text_of(screen: Screen[Any]) -> str:
    """What the panes of a screen show, as plain text: each row from the panes that lie on it, left to right."""
    rows: dict[int, list[tuple[int, str]]] = {}
    for pane in screen.query(Pane):
        if pane.display:
            for number, line in enumerate(pane.drawn):
                rows.setdefault(pane.region.y + number, []).append((pane.region.x, line.text))
    return "".join("".join(text for _, text in sorted(row)).rstrip() + "\n" for _, row in sorted(rows.items()))
