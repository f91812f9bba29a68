"""One line of the doctor's report."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["works", "does-not", "not-needed"]


class Check(msgspec.Struct, frozen=True):
    """What was looked at, how it is, why, and the command or action that mends it (only where something does not work).

    `not-needed`: it is not there, and nothing here would be better with it, as NVML on a machine without a GPU.
    """

    name: str
    state: State
    reason: str
    remedy: str | None = None


def works(name: str, reason: str) -> Check:
    """It is as it should be."""
    return Check(name, "works", reason)


def fault(name: str, reason: str, remedy: str | None = None) -> Check:
    """It does not work; with what would mend it."""
    return Check(name, "does-not", reason, remedy)


def not_needed(name: str, reason: str) -> Check:
    """It is not there and need not be."""
    return Check(name, "not-needed", reason)
