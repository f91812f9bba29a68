"""Tells what a signal handler of the program raises in the midst of the hook from the hook's own errors."""

from __future__ import annotations

import signal
import sys


def raise_if_of_program() -> None:
    """Raise the error that is being handled, if a signal handler of the program has raised it."""
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(getattr(each, "__func__", each), "__code__", None) for each in handlers}
    error = sys.exc_info()[1]
    at = error.__traceback__ if error is not None else None
    while error is not None and at is not None:
        if at.tb_frame.f_code in codes:
            raise error
        at = at.tb_next
