"""The terminal: its size, whether it accepts output, and taking it exactly once and always giving it back."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Any

from textual.driver import Driver

from aitop.ui.changed_cells import ChangedCells

GRACE_SECONDS = 3.0
LEAVE = (
    b"\x1b[<u\x1b[?2004l\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1004l\x1b[?7h\x1b[?1049l\x1b[?25h"
)
"""Turns keyboard protocol, paste, resize, mouse and focus reports off, wrapping on, alternate screen off, cursor on."""


def forget_exported_size() -> None:
    """Remove COLUMNS and LINES from the environment if the terminal knows its size: a shell may export old values."""
    try:
        size = os.get_terminal_size(sys.__stdout__.fileno()) if sys.__stdout__ else None
    except (OSError, ValueError):
        return
    if size is not None and size.columns and size.lines:
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)


def output_is_blocked() -> bool:
    """Whether the terminal accepts no output now, because of a slow link or because somebody has stopped it."""
    try:
        out = sys.__stderr__.fileno() if sys.__stderr__ is not None else -1
        return os.isatty(out) and not select.select([], [out], [], 0)[1]
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def signals_as_input() -> Iterator[int]:
    """A file descriptor that becomes readable after each signal, so that an event loop that watches it wakes up.

    The kernel may deliver a signal to any thread, but Python runs handlers in the main thread, which would sleep on.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


class LastResort:
    """Ends the process if it is still there GRACE_SECONDS after it was asked to end, for instance on a lost terminal.

    `clean_up` is called first; it must return in bounded time. Call `disarm` when the screen has ended by itself.
    """

    def __init__(self, clean_up: Callable[[], None]) -> None:
        self._clean_up = clean_up
        self._timer: threading.Timer | None = None
        self._settings = settings_of(keyboard())

    def arm(self, exit_code: int) -> None:
        """Start the countdown of GRACE_SECONDS; a second call changes nothing."""
        if self._timer is None:
            self._timer = threading.Timer(GRACE_SECONDS, self._end, (exit_code,))
            self._timer.daemon = True
            self._timer.start()

    def disarm(self) -> None:
        """Stop the countdown: the screen has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, exit_code: int) -> None:
        try:
            self._clean_up()
        finally:
            self._restore()
            os._exit(exit_code)

    def _restore(self) -> None:
        """Restore the terminal, as far as it still accepts anything."""
        try:
            if self._settings is not None:
                termios.tcsetattr(keyboard(), termios.TCSANOW, self._settings)
            if sys.__stderr__ is not None:
                out = sys.__stderr__.fileno()
                if select.select([], [out], [], 0)[1]:
                    os.write(out, LEAVE)
        except (OSError, ValueError, termios.error):
            # The terminal is gone: there is nothing to give back.
            pass


def keyboard() -> int:
    """The file descriptor of standard input, -1 if there is none."""
    try:
        return sys.__stdin__.fileno() if sys.__stdin__ is not None else -1
    except ValueError:
        return -1


def settings_of(terminal: int) -> list[Any] | None:
    """The termios settings of a file descriptor, None if it is not a terminal."""
    try:
        return termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        return None


def _in_background(terminal: int) -> bool:
    """Whether we are a background job of the shell: changing the terminal's settings would then stop us."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False  # no job control


def writing_changes_only(driver: type[Driver], cells: ChangedCells) -> type[Driver]:
    """A subclass of `driver` that takes the terminal only once and writes only the cells that change."""

    class ChangesOnly(driver):  # type: ignore[misc, valid-type]
        """Takes the terminal only once, writes only cells that change, and clears the screen at the end."""

        _drawing = False

        def write(self, data: str) -> None:
            changes = cells.changes(data)
            if changes:
                super().write(changes)

        def start_application_mode(self) -> None:
            """Take the terminal, unless we have it already.

            Textual calls this on every SIGCONT, even if we were not suspended by ^z. Taking the terminal twice would
            read keys twice and restore the wrong settings at the end.
            """
            cells.forget()
            if self._drawing:
                self._draw_again()
                return
            self._drawing = True
            super().start_application_mode()
            self._as_drawn = settings_of(getattr(self, "fileno", -1))

        def stop_application_mode(self) -> None:
            if self._drawing:
                # A terminal without an alternate screen (GNU screen by default) would keep our last frame.
                super().write("\x1b[H\x1b[2J")
            self._drawing = False
            super().stop_application_mode()

        def _draw_again(self) -> None:
            """Restore settings and redraw: another program may have used the terminal while we were stopped."""
            if self._as_drawn is not None and not _in_background(self.fileno):
                with contextlib.suppress(OSError, termios.error):
                    # If the terminal is gone, the next write reports it.
                    termios.tcsetattr(self.fileno, termios.TCSANOW, self._as_drawn)
            self.send_message(self.SignalResume())

    return ChangesOnly
