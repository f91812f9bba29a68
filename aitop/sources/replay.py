"""Reads a recording. The file may be torn, foreign or hostile: what cannot be read is skipped and counted.

A line whose types are right and whose values are impossible is a damaged line as well.
"""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from aitop.errors import UnreadableRecordingError
from aitop.model.event import RECORDING_VERSION, Event, Header
from aitop.model.host import HostSample
from aitop.model.serving import Histogram, ServerSample
from aitop.model.snapshot import GrowthSites, Tick
from aitop.model.stacks import Frame, StackDump, StackWindow
from aitop.model.text import printable

LONGEST_LINE = 16 * 1024 * 1024
# Seconds of uptime, beyond that of any machine.
LATEST = 1e10
LARGEST = 1e22
# aitop writes no longer source lines and names. Rules search them in time that grows with the square of their length.
LONGEST_TEXT = 4096
# A quick test for numbers above LARGEST: with every digit replaced by 0, a line with such a number contains one of
# these. As texts may contain them as well, such a line is then checked value by value. Shorter runs of digits would not
# do: they occur in many fractions.
_DIGITS_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBERS = (b"0" * 22, b"0e0")
_TICK = b'{"type":"tick"'
_GZIP_MAGIC = b"\x1f\x8b"
_NOT_READABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_STREAM_ENDS = (OSError, EOFError, zlib.error)


class RecordedEvents(Iterator[Event]):
    """The events of a recording, in the order written. `skipped` counts damaged lines, `lines` all lines read after
    the header.

    A last line without its end shows that the writer was killed: it is left out and not counted as damaged.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.skipped = 0
        self.lines = 0
        self._stream = stream
        self._decoder = msgspec.json.Decoder(Event)

    def __next__(self) -> Event:
        while True:
            line = self._line()
            if line == b"":
                self.close()
                raise StopIteration
            if line is None:
                self.skipped += 1
            elif not line.isspace():
                event = self._event(line)
                if event is not None:
                    return event

    def skip(self, lines: int) -> None:
        """Skip this number of lines without reading them."""
        for _ in range(lines):
            if self._line() == b"":
                return

    def ticks(self) -> Iterator[Tick]:
        """The remaining ticks. Other lines are not decoded, and damaged ones are not counted."""
        skipped = self.skipped
        while (line := self._line()) != b"":
            if line is not None and line.startswith(_TICK):
                event = self._event(line)
                if isinstance(event, Tick):
                    yield event
        self.skipped = skipped
        self.close()

    def _line(self) -> bytes | None:
        self.lines += 1
        return _next_line(self._stream)

    def _event(self, line: bytes) -> Event | None:
        """The event of a line; None for a damaged one, which is counted unless its end is missing."""
        try:
            event: Event = self._decoder.decode(line)
        except _NOT_READABLE:
            self.skipped += line.endswith(b"\n")
            return None
        if _is_sound(event, line):
            return event
        self.skipped += 1
        return None

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._stream.close()


class Recording:
    """A recording that is read from its start as often as wanted. Raises UnreadableRecordingError when made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.header, self._newest = read_recording(path)
        self._newest.close()
        self._skipped = 0

    def events(self) -> RecordedEvents:
        """The events from the first one on."""
        self._skipped = self.skipped
        self._newest = read_recording(self._path)[1]
        return self._newest

    @property
    def skipped(self) -> int:
        """The number of damaged lines: the most that one pass through the file has met."""
        return max(self._skipped, self._newest.skipped)


def read_recording(path: Path) -> tuple[Header, RecordedEvents]:
    """Open a recording, plain or gzip (told from its content). Raises UnreadableRecordingError in one sentence."""
    stream = _open(path)
    try:
        header = _header(path, stream)
    except BaseException:
        stream.close()
        raise
    return header, RecordedEvents(stream)


def _open(path: Path) -> BinaryIO:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableRecordingError(f"{path} is not a file, so it is no recording")
        with path.open("rb") as raw:
            compressed = raw.read(2) == _GZIP_MAGIC
        return cast("BinaryIO", gzip.open(path)) if compressed else path.open("rb")
    except OSError as error:
        raise UnreadableRecordingError(f"cannot read the recording {path}: {error.strerror or error}") from None
    except ValueError:  # a null byte in the name
        raise UnreadableRecordingError(f"cannot read the recording {path!s:.200}: no such file") from None


def _header(path: Path, stream: BinaryIO) -> Header:
    line = _next_line(stream)
    if line == b"":
        raise UnreadableRecordingError(f"the recording {path} is empty")
    try:
        version = msgspec.json.decode(line or b"", type=dict[str, msgspec.Raw]).get("aitop_recording")
    except _NOT_READABLE:
        version = None
    if line is None or version is None:
        raise UnreadableRecordingError(f"{path} is not an aitop recording")
    if bytes(version) != str(RECORDING_VERSION).encode():
        words = bytes(version)[:20].decode("ascii", "replace")
        raise UnreadableRecordingError(
            f"{path} is a recording of version {words}; this aitop reads version {RECORDING_VERSION}"
        )
    try:
        return msgspec.json.decode(line, type=Header)
    except _NOT_READABLE as error:
        why = printable(str(error))
        raise UnreadableRecordingError(f"the first line of the recording {path} is damaged: {why}") from None


def _next_line(stream: BinaryIO) -> bytes | None:
    """The next line with its end, None for one longer than any event, and empty where the recording ends."""
    try:
        line = stream.readline(LONGEST_LINE)
        if len(line) < LONGEST_LINE or line.endswith(b"\n"):
            return line
        while len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            line = stream.readline(LONGEST_LINE)
        return None
    except (*_STREAM_ENDS, ValueError):  # gzip cut off in the middle, a failing disk, closed: the recording ends here
        return b""


def _is_sound(event: Event, line: bytes) -> bool:
    """Return whether the values of `event`, read from the text `line`, are possible where their types do not tell."""
    if not 0 <= event.time < LATEST:
        return False
    if isinstance(event, StackWindow) and not _sampled(event):
        return False
    if isinstance(event, StackDump) and not _in_range([stack.frames for stack in event.threads], len(event.frames)):
        return False
    if isinstance(event, (StackWindow, StackDump)) and len(line) > LONGEST_TEXT and not _short(event.frames):
        return False
    if isinstance(event, HostSample) and len({one.pid for one in event.processes}) < len(event.processes):
        return False
    if isinstance(event, ServerSample) and not all(map(_is_ascending, event.histograms.values())):
        return False
    if isinstance(event, GrowthSites) and any(len(site.text) > LONGEST_TEXT for site in event.sites):
        return False
    alike = line.translate(_DIGITS_ALIKE, b"+")
    return not any(long in alike for long in _LONG_NUMBERS) or _bounded(msgspec.to_builtins(event))


def _sampled(window: StackWindow) -> bool:
    stacks = [*window.stacks, *(stack for look in window.looks for stack in look.stacks)]
    return _in_range([stack.frames for stack in stacks], len(window.frames))


def _is_ascending(histogram: Histogram) -> bool:
    """Whether each bucket has a bound above the one before, and a count."""
    bounds = histogram.bounds
    return len(bounds) == len(histogram.counts) and list(bounds) == sorted(set(bounds))


def _short(frames: Sequence[Frame]) -> bool:
    texts = (text for frame in frames for text in (frame.function, frame.file, frame.text, frame.guard))
    return all(text is None or len(text) <= LONGEST_TEXT for text in texts)


def _in_range(stacks: list[tuple[int, ...]], frames: int) -> bool:
    return all(0 <= index < frames for stack in stacks for index in stack)


def _bounded(value: Any) -> bool:
    """Return whether no number in it is larger than anything that is measured."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, (list, tuple)):
            todo += item
        elif isinstance(item, (int, float)) and not -LARGEST < item < LARGEST:
            return False
    return True
