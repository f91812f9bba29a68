"""Writes screenshots, traces and recordings to the working directory. No file is replaced; only the user can read them.

`save_screen` and `start_or_end_recording` return the text of a notice, which may be an error in words.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual.screen import Screen

from aitop.engine.recorder import Recorder
from aitop.model.text import printable
from aitop.model.units import size
from aitop.output_file import open_output, remove_output
from aitop.ui.widgets.pane import Pane

MOST_FILES = 10_000
RECORDING_SUFFIX = ".jsonl.gz"


def free_stem(folder: Path, stem: str, suffixes: tuple[str, ...]) -> str:
    """`stem-N` with the lowest number N for which no file with any of the suffixes exists."""
    taken = set(os.listdir(folder))
    for number in range(1, MOST_FILES):
        if not any(f"{stem}-{number}{suffix}" in taken for suffix in suffixes):
            return f"{stem}-{number}"
    raise FileExistsError(f"there are {MOST_FILES} such files here already")


def write_new(folder: Path, stem: str, contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write one file per suffix, all with the same new number. Raises OSError; none of the files is left then."""
    name = free_stem(folder, stem, tuple(contents))
    written: list[Path] = []
    try:
        for suffix, content in contents.items():
            path = folder / f"{name}{suffix}"
            descriptor = open_output(path, 0o600, new=True)
            written.append(path)
            with open(descriptor, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
    except BaseException:
        for path in written:
            remove_output(path)
        raise
    return written


def save_screen(screen: Screen[Any], pid: int) -> str:
    """Save the screen as a picture (SVG) and as text. Returns a sentence on what was saved where, or why not."""
    pictures = {".svg": screen.app.export_screenshot(title="aitop"), ".txt": text_of(screen)}
    try:
        saved = write_new(Path.cwd(), f"aitop-{pid}", pictures)
    except OSError as error:
        return f"nothing saved: {_reason(error)}"
    return f"saved {saved[0].name} and {saved[1].suffix} in {printable(str(saved[0].parent))}"


def text_of(screen: Screen[Any]) -> str:
    """The screen as plain text: each row joins the lines of the panes there, from left to right."""
    rows: dict[int, list[tuple[int, str]]] = {}
    for pane in screen.query(Pane):
        if pane.display:
            for number, line in enumerate(pane.drawn):
                rows.setdefault(pane.region.y + number, []).append((pane.region.x, line.text))
    return "".join("".join(text for _, text in sorted(row)).rstrip() + "\n" for _, row in sorted(rows.items()))


def start_or_end_recording(recorder: Recorder | None, pid: int) -> str:
    """End the current recording, or begin one if there is none. Returns a sentence for the screen."""
    if recorder is None:
        return "only a live run can be recorded"
    ended = recorder.end()
    if ended is not None:
        return printable(ended.failed or f"recorded {size(ended.written)} in {ended.path.name}")
    try:
        folder = Path.cwd()
        name = free_stem(folder, f"aitop-{pid}", (RECORDING_SUFFIX,))
        recording = recorder.begin(folder / f"{name}{RECORDING_SUFFIX}")
    except Exception as error:
        return f"not recording: {_reason(error)}"
    return f"recording to {printable(str(recording.path))}"


def recording_state(recorder: Recorder | None) -> str | None:
    """The size of the recording, or that it has stopped by an error; None without a recording."""
    recording = recorder.recording if recorder else None
    if recording is None:
        return None
    return "REC STOPPED" if recording.failed else f"●REC {size(recording.written).rjust(7)}"


def _reason(error: BaseException) -> str:
    """An error in words; of an OSError only the text, without its number and path."""
    return printable((error.strerror if isinstance(error, OSError) else None) or str(error))
