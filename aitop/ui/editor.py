"""Opens a line of code in the user's own editor, and takes the terminal back whatever the editor does to it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from textual.app import App, SuspendNotSupported

from aitop.model.host import ProcessId
from aitop.model.text import printable
from aitop.sources.foreign_file import belongs_to_other_user, readable_path
from aitop.ui.terminal import LEAVE, keyboard, settings_of
from aitop.ui.words import CodeLine, base_name, place

FALLBACKS = ("editor", "nano", "vim", "vi")
_CODE = ("code", "code-insiders", "code-oss", "codium", "vscodium", "cursor", "windsurf", "positron")
ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_CODE, ("-g", "{path}:{line}")),
    **dict.fromkeys(("subl", "sublime_text", "zed", "zeditor", "hx", "helix"), ("{path}:{line}",)),
    **dict.fromkeys(("pycharm", "charm", "idea", "kate"), ("--line", "{line}", "{path}")),
}
"""The arguments of editors that do not take a line as `+LINE FILE`."""
# Editors with a window of their own, which do not need the terminal.
_WINDOWED = ({*ARGUMENTS} | {"gedit", "gvim", "mousepad", "xed"}) - {"hx", "helix"}
EDITOR_HAS_TERMINAL = threading.Event()
"""Set while an editor has the terminal: of the Snapshots that come then, only the newest is kept, to be shown later."""


def editor_command(environment: Mapping[str, str]) -> list[str] | None:
    """The words of the user's editor command: $VISUAL, else $EDITOR, else one of FALLBACKS; None without an editor.

    Raises ValueError if the variable cannot be split into words.
    """
    chosen = environment.get("VISUAL", "").strip() or environment.get("EDITOR", "").strip()
    if chosen:
        return shlex.split(chosen)
    return next(([name] for name in FALLBACKS if shutil.which(name, path=environment.get("PATH"))), None)


def arguments(command: list[str], path: str, line: int) -> list[str]:
    """The command with the arguments that open the file at the line in this editor."""
    wanted = ARGUMENTS.get(os.path.basename(command[0]), ("+{line}", "{path}"))
    return [*command, *(word.format(path=path, line=max(1, line)) for word in wanted)]


def has_window(command: list[str]) -> bool:
    """Whether the editor opens a window of its own and needs no terminal."""
    return os.path.basename(command[0]) in _WINDOWED


def edit(app: App[Any], where: CodeLine, process: ProcessId | None) -> str:
    """Open a line of a process's code, and return a notice. Waits for the end of an editor that runs in the terminal.

    `process` is None if it has ended.
    """
    if process is not None and belongs_to_other_user(process):
        return f"process {process.pid} is another user's: an editor of yours is not opened on that user's files"
    path = readable_path(process, where.file)
    if path is None:
        return f"{printable(base_name(where.file))} cannot be read from here"
    try:
        command = editor_command(os.environ)
    except ValueError as error:
        return f"$VISUAL or $EDITOR cannot be understood: {error}"
    if command is None:
        return "no editor: set $EDITOR to yours"
    words = arguments(command, path, where.line)
    try:
        if has_window(command):
            silent = subprocess.DEVNULL
            subprocess.Popen(words, stdin=silent, stdout=silent, stderr=silent, start_new_session=True)
            return f"{place(where)} opened in {base_name(command[0])}"
        return _lend_terminal(app, words)
    except OSError as error:
        return f"{printable(command[0])} does not start: {error.strerror or error}"


def _lend_terminal(app: App[Any], words: list[str]) -> str:
    code: int | OSError
    try:
        with app.suspend(), _as_it_was():
            try:
                code = subprocess.run(words, check=False).returncode
            except OSError as error:
                # Do not raise within `suspend`: Textual takes the terminal back only if the block ends normally.
                code = error
    except SuspendNotSupported:
        return "this terminal cannot be lent to an editor"
    if isinstance(code, OSError):
        raise code
    name = base_name(words[0])
    return f"back from {name}" if code == 0 else f"{name} ended with {'signal' if code < 0 else 'code'} {abs(code)}"


@contextmanager
def _as_it_was() -> Iterator[None]:
    """A context for an editor in the terminal: restores terminal settings, foreground group and signal handlers."""
    terminal = keyboard()
    before = settings_of(terminal)
    # ^c and ^\ are meant for the editor, so ignore them here: with a handler, because the editor would inherit SIG_IGN.
    # ^z must stop us together with the editor.
    wanted: dict[int, Any] = dict.fromkeys((signal.SIGINT, signal.SIGQUIT), lambda *_: None)
    wanted[signal.SIGTSTP] = signal.SIG_DFL
    handlers = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    EDITOR_HAS_TERMINAL.set()
    try:
        yield
    finally:
        EDITOR_HAS_TERMINAL.clear()
        if before is not None:
            _take_back(terminal, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _take_back(terminal: int, settings: list[Any]) -> None:
    """Make us the foreground group again, and restore settings and screen, which a killed editor leaves as its own."""
    others = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(terminal, os.getpgrp())
        termios.tcsetattr(terminal, termios.TCSANOW, settings)
        os.write(terminal, LEAVE)
    except (OSError, termios.error):
        # The terminal is gone; Textual will notice.
        pass
    finally:
        signal.signal(signal.SIGTTOU, others)
