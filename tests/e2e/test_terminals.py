"""The screen in a real terminal: it comes, it says what it must, and it leaves the terminal as it was."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from expected import BY_NAME
from waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.one_by_one,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]

AITOP = f"{shlex.quote(sys.executable)} -m aitop"


class Terminal:
    """A shell in a tmux window of a server of its own."""

    def __init__(self, folder: Path, columns: int, lines: int) -> None:
        self._tmux = ["tmux", "-f", "/dev/null", "-S", str(folder / "tmux")]
        size = ["-x", str(columns), "-y", str(lines)]
        shell = ["env", "-u", "TMUX", "PS1=$ ", "TERM=screen-256color", "sh"]
        self._do("new-session", "-d", *size, *shell)

    def _do(self, *arguments: str) -> str:
        return subprocess.run([*self._tmux, *arguments], check=True, capture_output=True, text=True).stdout

    def type(self, text: str) -> None:
        self._do("send-keys", text, "Enter")

    def press(self, *keys: str) -> None:
        self._do("send-keys", *keys)

    def text(self) -> str:
        return self._do("capture-pane", "-p")

    def wait_for(self, words: str | re.Pattern[str], seconds: float = 60.0) -> str:
        deadline = time.monotonic() + seconds
        pattern = re.compile(re.escape(words)) if isinstance(words, str) else words
        while not pattern.search(shown := self.text()):
            assert time.monotonic() < deadline, f"{words!r} did not come:\n{shown}"
            time.sleep(0.05)
        return shown

    def modes(self) -> str:
        """Whether the alternate screen, the mouse or a hidden cursor were left behind, and the line discipline."""
        flags = self._do(
            "display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag} #{pane_tty}"
        ).split()
        line = subprocess.run(["stty", "-g", "-F", flags[3]], check=True, capture_output=True, text=True).stdout
        return " ".join([*flags[:3], line.strip()])

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def open_terminal(columns: int, lines: int) -> Terminal:
        opened.append(Terminal(tmp_path, columns, lines))
        opened[-1].wait_for("$")
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


def test_a_terminal_of_20x5_shows_the_verdict_and_nothing_else(terminal, slow_loader):
    window = terminal(20, 5)
    before = window.modes()
    window.type(f"{AITOP} --pid {slow_loader.pid}; echo left $?")
    lines = "|".join(map(str, BY_NAME["slow-loader"].guilty_lines()))
    window.wait_for(re.compile(rf"(?s)INPUT-BOUND.*slow_loader\.py:({lines})\n"))
    window.press("q")
    window.wait_for("left 0")
    assert window.modes() == before
    assert slow_loader.alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_screen_in_order(terminal, slow_loader, number):
    window = terminal(80, 24)
    before = window.modes()
    window.type(f"{AITOP} --pid {slow_loader.pid}; echo left $?")
    window.wait_for("hook●")
    os.kill(child_of_shell(slow_loader.pid), number)
    window.wait_for(f"left {128 + number}")
    assert window.modes() == before
    assert slow_loader.alive()


def child_of_shell(watched: int) -> int:
    """The aitop that watches this process."""
    wanted = f"-m\0aitop\0--pid\0{watched}\0".encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes().endswith(wanted) and b"python" in entry.read_bytes():
                return int(entry.parent.name)
        except OSError:
            continue
    raise AssertionError("aitop is not running")


def test_the_verdict_comes_and_the_end_of_the_run_is_said(terminal, slow_loader):
    """The last one that needs the run: it ends it."""
    window = terminal(80, 24)
    before = window.modes()
    window.type(f"{AITOP} --pid {slow_loader.pid}; echo left $?")
    # Which one it is depends on the cores that the other tests leave to it; the one of 20x5 is asked for its name.
    window.wait_for("-BOUND")
    slow_loader.stop()
    window.wait_for("ended")
    window.press("q")
    window.wait_for("left 0")
    assert window.modes() == before


def test_run_on_a_screen_says_where_the_command_is_when_it_is_left_alone(terminal, slow_loader_script):
    window = terminal(120, 36)
    before = window.modes()
    command = [sys.executable, str(slow_loader_script)]
    window.type(f"{AITOP} run -- {shlex.join(command)}; echo left $?")
    window.wait_for("hook●", 60)
    # Its workers are forks of it.
    family = [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == command]
    pid = min(family, key=psutil.Process.create_time).pid
    log = Path(f"/proc/{pid}/fd/1").readlink()
    try:
        window.press("q")
        shown = window.wait_for("left 0")
        assert window.modes() == before
        flat = shown.replace("\n", "")
        assert int(flat.partition("goes on running as process ")[2].split(",")[0]) == pid
        assert f"kill {pid}" in flat
        os.kill(pid, 0)
        until(lambda: "step 1: loss" in log.read_text(), pause=0.05, why_not=log.read_text)
    finally:
        os.killpg(pid, signal.SIGKILL)
        log.unlink()


def test_run_on_a_screen_shows_the_end_of_the_output_and_leaves_with_its_code(terminal):
    window = terminal(120, 36)
    window.type(
        f"{AITOP} run -- {shlex.quote(sys.executable)} -c 'print(\"last words\"); raise SystemExit(7)'; echo left $?"
    )
    window.wait_for("ended", 60)
    window.press("q")
    shown = window.wait_for("left 7")
    assert "last words" in shown


def test_help_and_complaints_do_not_touch_the_terminal(terminal):
    window = terminal(80, 24)
    before = window.modes()
    window.type(f"{AITOP} --pid 4194303; echo left $?")
    assert "there is no process" in window.wait_for("left 3").replace("\n", "")
    assert window.modes() == before
