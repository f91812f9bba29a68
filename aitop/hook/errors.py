"""Distinguishes exceptions that the program's signal handlers raise while hook code runs from the hook's own errors.

The latter are counted, because code that fails again and again must stop.
"""

from __future__ import annotations

import signal
import sys
import time
from types import CodeType
from typing import Any

MOST_ERRORS, WITHIN_NS = 3, 60_000_000_000


class Errors:
    """Counts errors of the hook's own. `number` of them happened in the minute that began with the first."""

    def __init__(self) -> None:
        self.number = 0
        self._until = 0

    def too_many(self) -> bool:
        """Count one, in the `except` clause that catches it. Returns whether there are MOST_ERRORS in a minute now."""
        raise_if_of_program()
        now = time.monotonic_ns()
        if now > self._until:
            self.number, self._until = 0, now + WITHIN_NS
        self.number += 1
        return self.number >= MOST_ERRORS


def raise_if_of_program() -> None:
    """Raise the error that is being handled, if a signal handler of the program has raised it."""
    error = sys.exc_info()[1]
    try:
        if error is not None and _comes_from(error, _codes_of_handlers()):
            raise error
    finally:
        # The error refers to this frame. If the frame referred to it, both, and all tensors in the frames below, would
        # stay until the next garbage collection.
        del error


def _comes_from(error: BaseException, codes: set[CodeType]) -> bool:
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        at = at.tb_next
    return False


def _codes_of_handlers() -> set[CodeType]:
    """Return the code of every signal handler: functions, methods, partials, and objects that can be called."""
    codes: set[CodeType] = set()
    for handler in map(signal.getsignal, signal.valid_signals()):
        forms: tuple[Any, ...] = (
            handler,
            getattr(handler, "__func__", None),
            getattr(handler, "func", None),
            type(handler).__dict__.get("__call__"),
        )
        codes.update(code for form in forms if isinstance(code := getattr(form, "__code__", None), CodeType))
    return codes
