"""Errors that end the program with one sentence and a documented exit code."""

from __future__ import annotations

# The exit code after Ctrl-C.
INTERRUPTED = 130


class AitopError(Exception):
    """Something the user has to know: printed as one sentence on stderr, without a traceback.

    The sentence is `reason`, and after a colon `remedy`, which says what to do, where that is known.
    """

    exit_code = 1

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason if remedy is None else f"{reason}: {remedy}")
        self.reason = reason
        self.remedy = remedy


class OwnFailureError(AitopError):
    """aitop itself could not go on watching."""


class WrongUsageError(AitopError):
    """The command line does not make sense."""

    exit_code = 2


class NoTargetError(AitopError):
    """There is no such process, it is not one we can watch, or it ended before anything could be said."""

    exit_code = 3


class NotPermittedError(AitopError):
    """The system does not let this user look into that process."""

    exit_code = 4


class NotEnoughEvidenceError(AitopError):
    """The time given was too short to say anything."""

    exit_code = 5


class UnreadableRecordingError(AitopError):
    """The recording is missing, of another version, or not a recording."""

    exit_code = 6
