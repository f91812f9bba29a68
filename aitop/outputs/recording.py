"""Writes a recording: a header, then one event a line, so that a torn file loses at most its last line."""

from __future__ import annotations

import contextlib
import gzip
import os
import stat
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from aitop import __version__
from aitop.errors import WrongUsageError
from aitop.model.event import RECORDING_VERSION, Event, Header
from aitop.model.snapshot import Target, Tick
from aitop.output_file import open_output


class RecordingWriter:
    """One recording being written. Opening may raise a WrongUsageError; writing never raises. Any thread may call.

    A file whose name ends in .gz is compressed. After every tick, all that was written can be read. What comes after
    `close` is not written. `failed` says in words why the recording stopped (a full disk, say), None while it has not.
    """

    def __init__(self, path: Path, target: Target, *, new: bool = False) -> None:
        self.path = path
        self.failed: str | None = None
        self._size: int | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._raw = _open_empty(path, new=new)
        compressed = path.name.endswith(".gz")
        self._out = cast("BinaryIO", gzip.GzipFile(fileobj=self._raw, mode="wb", mtime=0)) if compressed else self._raw
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._append(Header(aitop_recording=RECORDING_VERSION, aitop=__version__, target=target, created=created))
        self._flush()

    def write(self, event: Event) -> None:
        """Add one event; a tick also flushes everything so far to the file."""
        with self._lock:
            if self._closed:
                return
            self._append(event)
            if isinstance(event, Tick):
                self._flush()

    @property
    def written(self) -> int | None:
        """Bytes in the file so far; None for a pipe."""
        try:
            self._size = self._raw.tell()
        except (OSError, ValueError):
            # Closed or not seekable: the last known size still holds.
            pass
        return self._size

    def close(self) -> None:
        """End the recording; may be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._flush()
            self._size = self.written
            for file in (self._out, self._raw):
                try:
                    file.close()
                except (OSError, ValueError) as error:
                    if self.failed is None:
                        self._fail(error)

    def _flush(self) -> None:
        """Hand what was written to the operating system."""
        if self.failed is None:
            try:
                self._out.flush()
                self._raw.flush()
            except (OSError, ValueError) as error:
                self._fail(error)

    def _append(self, record: Event | Header) -> None:
        if self.failed is None:
            try:
                self._out.write(self._encoder.encode(record) + b"\n")
            except (OSError, ValueError) as error:
                self._fail(error)

    def _fail(self, error: OSError | ValueError) -> None:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        self.failed = f"the recording {self.path} has stopped: {reason}"


def _open_empty(path: Path, *, new: bool) -> BinaryIO:
    """Open for writing. A file with content is never overwritten; an empty one, a pipe or a device may be written to.
    With `new`, nothing may exist there.

    Only the owner may read the file, as it has command lines and lines of source in it.
    """
    try:
        descriptor = open_output(path, 0o600, new=new)
    except OSError as error:
        raise WrongUsageError(f"cannot record to {path}: {error.strerror or error}") from None
    try:
        _check_empty(path, os.fstat(descriptor))
    except WrongUsageError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "wb")


def check_empty(path: Path) -> None:
    """Raise WrongUsageError if there is something in a file that is to be recorded to; nothing is opened or made."""
    with contextlib.suppress(OSError):
        _check_empty(path, os.stat(path))


def _check_empty(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode) and status.st_size > 0:
        raise WrongUsageError(f"{path} exists already: remove it or choose another name for the recording")
