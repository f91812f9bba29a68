"""The terminal is taken once and given back once, however often the process is stopped and continued."""

from __future__ import annotations

import contextlib
import os
import termios
from functools import lru_cache
from typing import Any

from textual.driver import Driver


def _attributes(driver: Any) -> list[Any] | None:
    """The settings of the driver's terminal, None where it has none."""
    try:
        return termios.tcgetattr(driver.fileno)
    except (AttributeError, OSError, ValueError, termios.error):
        return None


def _in_background(terminal: int) -> bool:
    """Whether another job of the shell has the terminal: changing its settings would stop us."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False  # no job control


@lru_cache(maxsize=4)
def taken_once(driver: type[Driver]) -> type[Driver]:
    """The same driver, taking the terminal only once."""

    class TakenOnce(driver):  # type: ignore[misc, valid-type]
        """Takes the terminal only once, and leaves no picture on it."""

        _drawing = False

        def start_application_mode(self) -> None:
            """Take the terminal. Textual calls this on every SIGCONT, also on one that follows no suspension of ours:
            taking the terminal twice would read keys twice, and restore the wrong settings at the end.
            """
            if self._drawing:
                self._draw_again()
                return
            self._drawing = True
            super().start_application_mode()
            self._as_drawn = _attributes(self)

        def stop_application_mode(self) -> None:
            """Give the terminal back."""
            if self._drawing:
                # A terminal without a second screen (GNU screen by default) would keep our picture.
                super().write("\x1b[H\x1b[2J")
            self._drawing = False
            super().stop_application_mode()

        def _draw_again(self) -> None:
            """Restore settings and picture: somebody may have used the terminal while we were stopped from outside."""
            if self._as_drawn is not None and not _in_background(self.fileno):
                with contextlib.suppress(OSError, termios.error):
                    # If the terminal is gone, the next write says so.
                    termios.tcsetattr(self.fileno, termios.TCSANOW, self._as_drawn)
            self.send_message(self.SignalResume())

    return TakenOnce
