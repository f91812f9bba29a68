"""What every source offers to the engine, and how it says that it cannot."""

from __future__ import annotations

import errno

from aitop.errors import own_error
from aitop.model.event import Sample
from aitop.model.source import SourceName, SourceState, StatusCode


class SourceError(Exception):
    """A source cannot give anything now. The engine shows the state and the words, and goes on with the others.

    `transient`: the cause will pass, and asking again soon costs nothing. `code` as in SourceStatus.
    """

    def __init__(
        self,
        state: SourceState,
        reason: str,
        remedy: str | None = None,
        *,
        transient: bool = False,
        code: StatusCode | None = None,
    ) -> None:
        super().__init__(reason)
        self.state: SourceState = state
        self.reason = reason
        self.remedy = remedy
        self.transient = transient
        self.code: StatusCode | None = code


def unexpected(error: Exception) -> SourceError:
    """The SourceError for an error that a source did not foresee."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        reason = "aitop has as many files open as it may"
        return SourceError("failed", reason, "start it from a shell after: ulimit -n 4096", transient=True)
    return SourceError("failed", own_error(error))


class Source:
    """One source. All calls come from one thread of its own, never from the screen's; any of them may be slow.

    `interval` is the number of seconds from one read's start to the next one's; 0 reads back to back.
    `patience` is how long a read may take before its data count as stale.
    """

    name: SourceName
    interval = 1.0
    patience = 3.0

    @property
    def note(self) -> str | None:
        """What the user should know although the source works; None where there is nothing."""
        return None

    def open(self) -> None:
        """Called before the first read and after a failure. Raises SourceError where the source cannot work."""

    def read(self) -> list[Sample]:
        """Return the samples since the last call, often one, perhaps none. Raises SourceError."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what is held."""

    def finish(self) -> None:
        """End a read early that is under way; it still returns what it has so far. Any thread may call."""

    def interrupt(self) -> None:
        """Give up a read that is under way: nobody wants its samples any more. Any thread may call."""
