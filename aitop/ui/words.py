"""Texts and number formats that several panes share. Pure."""

from __future__ import annotations

from typing import Protocol

from rich.style import Style

from aitop.model.source import SourceState, SourceStatus
from aitop.model.text import printable
from aitop.model.units import NOT_SUPPORTED, NOT_YET, percent
from aitop.model.verdict import Verdict
from aitop.ui.theme.palette import DIM, FAINT, SEVERITY_LABELS, STATE_DENIED, STATE_FAILED, STATE_OK, STATE_STALE, TEXT
from aitop.ui.widgets.line import Line, hanging, wrapped

SOURCE_STATES: dict[SourceState, tuple[str, Style, str]] = {
    "ok": ("●", STATE_OK, "works"),
    "absent": ("○", DIM, "not there"),
    "denied": ("⊘", STATE_DENIED, "not permitted"),
    "stale": ("◐", STATE_STALE, "nothing new"),
    "failed": ("✗", STATE_FAILED, "broken"),
}


PROCESS_STATES = {"R": "run", "S": "sleep", "D": "disk", "T": "stop", "t": "trace", "Z": "zombie", "I": "idle"}
"""Words of at most six cells by the letter that /proc has for the state of a process."""


def waits_for_target(status: SourceStatus | None) -> bool:
    """Whether the hook has been requested but can enter only when the target runs Python code again."""
    return status is not None and status.code == "waiting-for-target"


def state_mark(status: SourceStatus | None) -> tuple[str, Style]:
    """The glyph and style of a source's state; `…` before its first state and while the hook waits to enter."""
    if status is None:
        return NOT_YET, FAINT
    return (NOT_YET, STATE_STALE) if waits_for_target(status) else SOURCE_STATES[status.state][:2]


def state_line(name: str, status: SourceStatus | None) -> Line:
    """A source in words: its state, the reason, and the remedy."""
    glyph, style = state_mark(status)
    line = Line(f"{glyph} ", style).add(name, TEXT)
    if status is None:
        return line.add(": starting", DIM)
    if waits_for_target(status):
        return line.add(one_line(status.reason or "").removeprefix(name), DIM)
    line.add(f" {status.state}", style)
    if status.reason:
        line.add(f": {one_line(status.reason)}", DIM)
    if status.remedy:
        line.add(f"  → {one_line(status.remedy)}", TEXT)
    return line


def state_lines(name: str, status: SourceStatus | None, width: int) -> list[Line]:
    """A source in words, broken into lines of `width` cells: the remedy stands at the end."""
    line = state_line(name, status)
    if line.width <= width:
        return [line]
    glyph, style = state_mark(status)
    return hanging(Line(f"{glyph} ", style), line.text.removeprefix(f"{glyph} "), width, DIM)


def needs_hook(text: str, status: SourceStatus | None, width: int) -> list[Line]:
    """`text`, which says what needs the hook, and the state of the hook unless that is ok; wrapped to `width`."""
    texts = [text] if status is None or status.state == "ok" else [text, state_line("hook", status).text]
    return [line for text in texts for line in wrapped(text, width, DIM)]


def label(verdict: Verdict) -> tuple[str, Style]:
    """The verdict's id as a label, and its style by severity."""
    return f" {verdict.id.upper()} ", SEVERITY_LABELS[verdict.severity]


def confidence_dots(confidence: float) -> Line:
    """A confidence (0..1) as five dots."""
    full = max(0, min(5, round(confidence * 5)))
    return Line("●" * full, TEXT).add("○" * (5 - full), FAINT)


def confidence_words(confidence: float) -> str:
    """A confidence (0..1) in words and in percent."""
    words = ((0.85, "very sure"), (0.65, "fairly sure"), (0.4, "likely"), (0.0, "a first guess"))
    return f"{next(word for least, word in words if confidence >= least)} ({percent(confidence)})"


class CodeLine(Protocol):
    """Anything with a file and a line: a frame, a hot line, a line that a verdict names."""

    @property
    def file(self) -> str:
        """The path of the file."""

    @property
    def line(self) -> int:
        """The number of the line, from 1."""


def place(at: CodeLine) -> str:
    """The short name of a line of code: decode.py:41."""
    return f"{base_name(at.file)}:{at.line}"


def base_name(path: str) -> str:
    """The last part of a path."""
    return printable(path.rstrip("/").rsplit("/", 1)[-1])


def one_line(text: str) -> str:
    """Text on one line: runs of white space, line breaks included, become one space."""
    return " ".join(printable(text).split())


def short_command(command: str) -> str:
    """A command line without the directories of its program and its scripts (*.py)."""
    program, *words = one_line(command).split(" ")
    return " ".join([base_name(program), *(base_name(word) if word.endswith(".py") else word for word in words)])


def significant(value: float | None, width: int = 4) -> str:
    """A number with three significant digits, right-aligned: 4.20, 42.0, 420, 12.3K."""
    if value is None:
        return NOT_SUPPORTED.rjust(width)
    for unit in ("", "K", "M", "G"):
        if abs(value) < 999.5 or unit == "G":
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:.{digits}f}{unit}".rjust(width)
        value /= 1000
    return ""


def tight_percent(share: float) -> str:
    """A share (0..1) in its shortest form: 64%."""
    return f"{share * 100:.0f}%"


def share_text(share: float | None) -> str:
    """A share (0..1) in four cells: " 64%", or a dash for None."""
    return NOT_SUPPORTED.rjust(4) if share is None else f"{share * 100:3.0f}%"
