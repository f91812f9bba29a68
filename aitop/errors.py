"""Errors that end the program with one sentence and a documented exit code."""

from __future__ import annotations

import os

# The exit code after Ctrl-C.
INTERRUPTED = 130


def own_error(error: Exception) -> str:
    """What went wrong in our own code, and where: "ZeroDivisionError: division by zero, engine/core.py:70"."""
    package, place = os.path.dirname(__file__), ""
    called = error.__traceback__
    while called is not None:
        file = called.tb_frame.f_code.co_filename
        if file.startswith(package):
            place = f", {os.path.relpath(file, package)}:{called.tb_lineno}"
        called = called.tb_next
    return f"{type(error).__name__}: {error}{place}"


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
