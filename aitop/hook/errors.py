"""Tells what a signal handler of the program raises in the midst of the hook from the hook's own errors."""

from __future__ import annotations

import signal
import sys
from types import CodeType
from typing import Any


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
