"""The terminal and the process end in order, whatever ends them: real processes on real pseudo-terminals."""

import ctypes
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
PROGRAM = f"""
import sys
sys.path[:0] = [{str(REPOSITORY / "tests/ui")!r}, {str(REPOSITORY)!r}]
import os
import sample_snapshots
from scripted_feeds import ScriptedFeed
from textual.events import Resize
from textual.geometry import Size
from aitop.ui import app, terminal
from aitop.ui.app import MonitorApp

# A machine with no core to spare may take longer than the few seconds that it gives itself to end in order.
terminal.GRACE_SECONDS = 0.5 if sys.argv[1] == "gone" else 50.0

if sys.argv[1].startswith("load"):
    app.MonitorApp.on_load = lambda self: os.kill(os.getpid(), int(sys.argv[1][4:]))

class Feed(ScriptedFeed):
    def start(self, publish):
        if sys.argv[1] == "fails":
            raise RuntimeError("the feed broke")
        super().start(publish)

    def stop(self):
        with open(sys.argv[2], "a") as file:
            file.write("stopped\\n")

told_old = Size(40, 10)

def tell_an_older_size(self, event):
    # After 24 rows of 97 columns, as where one resize interrupts the handler of another.
    with open(sys.argv[2], "a") as file:
        print(event.size.width, event.size.height, sep="x", file=file)
    if event.size == (97, 24) and not hasattr(self, "told"):
        self.told = self.post_message(Resize(told_old, told_old))

if sys.argv[1] == "old-size":
    app.MonitorApp.on_resize = tell_an_older_size

sys.exit(MonitorApp(Feed(42 if sys.argv[1] == "crashes" else sample_snapshots.input_bound())).show())
"""


class ProgramOnTerminal:
    """The screen in a process of its own, on a pseudo-terminal."""

    def __init__(self, mode, notes):
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (30, 100)) if hasattr(termios, "tcsetwinsize") else None
        self.before = termios.tcgetattr(self.slave)
        self.output = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, mode, str(notes)],
            stdin=self.slave, stdout=self.slave, stderr=self.slave,
            start_new_session=True, env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
        )  # fmt: skip

    def read(self, seconds=0.05):
        while select.select([self.master], [], [], seconds)[0]:
            self.output += os.read(self.master, 65536)

    def wait_for(self, text):
        deadline = time.monotonic() + 60
        while text not in self.output:
            assert time.monotonic() < deadline, self.output[-2000:]
            self.read()

    def wait_for_state(self, letter):
        """Wait until the program is in this state, as /proc has it."""
        deadline = time.monotonic() + 60
        while Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != letter:
            assert time.monotonic() < deadline
            self.read()

    def wait_until_full(self):
        """Wait until the terminal, which nobody reads, takes no more of what the program writes."""
        deadline = time.monotonic() + 60
        while select.select([], [self.slave], [], 0)[1]:
            assert time.monotonic() < deadline, "the program writes no more"
            time.sleep(0.02)

    def end(self):
        """The exit code, once the program has ended; what it writes is read, as a terminal does."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "the program hangs"
            self.read()
        self.read()
        return self.process.returncode


@pytest.fixture
def show(tmp_path):
    """`show(mode)` starts the screen with a feed that works or fails; leftovers are killed."""
    started = []

    def begin(mode="works"):
        terminal = ProgramOnTerminal(mode, tmp_path / "notes")
        started.append(terminal)
        return terminal

    yield begin
    for terminal in started:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()
        os.close(terminal.slave)


@pytest.mark.parametrize(
    ("way", "code"), [(signal.SIGTERM, 143), (b"q", 0), (b"\x03", 130)], ids=["SIGTERM", "q", "ctrl-c"]
)
def test_the_terminal_is_given_back(show, tmp_path, way, code):
    terminal = show()
    terminal.wait_for(b"INPUT-BOUND")
    assert termios.tcgetattr(terminal.slave)[3] != terminal.before[3]
    if isinstance(way, bytes):
        os.write(terminal.master, way)
    else:
        terminal.process.send_signal(way)
    assert terminal.end() == code
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert terminal.output.rindex(b"\x1b[?1049l") > terminal.output.rindex(b"\x1b[?1049h")
    assert terminal.output.rindex(b"\x1b[?25h") > terminal.output.rindex(b"\x1b[?25l")
    assert terminal.output.rindex(b"\x1b[2J") > terminal.output.rindex(b"INPUT-BOUND")
    assert (tmp_path / "notes").read_text() == "stopped\n"
    os.close(terminal.master)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_a_signal_while_the_screen_starts_is_not_lost(show, tmp_path, number):
    terminal = show(f"load{number.value}")
    assert terminal.end() == 128 + number, terminal.output
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert (tmp_path / "notes").read_text() == "stopped\n"
    os.close(terminal.master)


def test_a_feed_that_fails_ends_it_and_its_error_is_seen(show, tmp_path):
    terminal = show("fails")
    assert terminal.end() == 1
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert b"the feed broke" in terminal.output[terminal.output.rindex(b"\x1b[?1049l") :]
    assert (tmp_path / "notes").read_text() == "stopped\n"
    os.close(terminal.master)


def test_a_fault_of_our_own_gives_the_terminal_back_first(show, tmp_path):
    terminal = show("crashes")
    assert terminal.end() == 1
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert b"AttributeError" in terminal.output[terminal.output.rindex(b"\x1b[?1049l") :]
    assert (tmp_path / "notes").read_text() == "stopped\n"
    os.close(terminal.master)


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_again(show):
    terminal = show()
    terminal.wait_for(b"INPUT-BOUND")
    os.write(terminal.master, b"\x1a")
    terminal.wait_for_state("T")
    terminal.read()
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert terminal.output.rindex(b"\x1b[?1049l") > terminal.output.rindex(b"\x1b[?1049h")
    terminal.output = b""
    terminal.process.send_signal(signal.SIGCONT)
    terminal.wait_for(b"INPUT-BOUND")
    assert b"\x1b[?1049h" in terminal.output
    assert termios.tcgetattr(terminal.slave)[3] != terminal.before[3]
    os.write(terminal.master, b"q")
    assert terminal.end() == 0
    assert termios.tcgetattr(terminal.slave) == terminal.before
    os.close(terminal.master)


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped from outside", "only told to go on"])
def test_going_on_without_having_given_the_terminal_away_takes_it_only_once(show, stopped):
    terminal = show()
    terminal.wait_for(b"INPUT-BOUND")
    threads = len(list(Path(f"/proc/{terminal.process.pid}/task").iterdir()))
    if stopped:
        terminal.process.send_signal(signal.SIGSTOP)
        terminal.wait_for_state("T")
        # A shell sets the terminal as it likes it.
        termios.tcsetattr(terminal.slave, termios.TCSANOW, terminal.before)
    terminal.output = b""
    terminal.process.send_signal(signal.SIGCONT)
    terminal.wait_for(b"INPUT-BOUND")
    assert b"\x1b[?1049h" not in terminal.output
    assert len(list(Path(f"/proc/{terminal.process.pid}/task").iterdir())) <= threads
    os.write(terminal.master, b"q")
    assert terminal.end() == 0
    assert termios.tcgetattr(terminal.slave) == terminal.before
    os.close(terminal.master)


def test_a_signal_that_another_thread_takes_is_handled_at_once(show):
    terminal = show()
    terminal.wait_for(b"INPUT-BOUND")
    terminal.wait_for_state("S")
    pid = terminal.process.pid
    other = next(int(task.name) for task in Path(f"/proc/{pid}/task").iterdir() if int(task.name) != pid)
    terminal.output = b""
    assert ctypes.CDLL(None).tgkill(pid, other, int(signal.SIGCONT)) == 0
    terminal.wait_for(b"INPUT-BOUND")
    assert ctypes.CDLL(None).tgkill(pid, other, int(signal.SIGTERM)) == 0
    assert terminal.end() == 143
    os.close(terminal.master)


def test_a_storm_of_sizes_ends_with_the_last_one(show):
    terminal = show()
    terminal.wait_for(b"INPUT-BOUND")
    for columns in (*range(20, 140, 4), 97):
        if columns == 97:
            terminal.read()
            terminal.output = b""
        fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.read(0.0)
    terminal.wait_for(b"\x1b[24;")
    os.write(terminal.master, b"q")
    assert terminal.end() == 0
    os.close(terminal.master)


def test_an_older_size_that_comes_last_does_not_stay(show, tmp_path):
    terminal = show("old-size")
    terminal.wait_for(b"INPUT-BOUND")
    fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 97, 0, 0))
    terminal.process.send_signal(signal.SIGWINCH)
    deadline = time.monotonic() + 60
    while (tmp_path / "notes").read_text().split()[-3:] != ["97x24", "40x10", "97x24"]:
        assert time.monotonic() < deadline, (tmp_path / "notes").read_text()
        terminal.read()
    os.write(terminal.master, b"q")
    assert terminal.end() == 0
    os.close(terminal.master)


def test_a_terminal_that_takes_no_more_output_does_not_keep_it_alive(show, tmp_path):
    terminal = show("gone")
    terminal.wait_for(b"INPUT-BOUND")
    os.write(terminal.master, b"?\x1b" * 400)
    terminal.wait_until_full()
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.process.wait(timeout=60) == 143
    assert "stopped" in (tmp_path / "notes").read_text()
    os.close(terminal.master)


def test_a_terminal_that_goes_away_ends_it(show, tmp_path):
    terminal = show("gone")
    terminal.wait_for(b"INPUT-BOUND")
    os.close(terminal.master)
    terminal.process.send_signal(signal.SIGHUP)
    terminal.process.send_signal(signal.SIGCONT)
    assert terminal.process.wait(timeout=60) == 129
    assert "stopped" in (tmp_path / "notes").read_text()
