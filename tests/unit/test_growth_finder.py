"""The user's files are read once each, and never by the thread that ticks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

from aitop.engine import growth
from aitop.engine.growth import GrowthFinder
from aitop.model.stacks import Frame, StackCount, StackWindow
from aitop.sources.code import growth as reading
from aitop.sources.code import syntax


def window(file):
    frames = (Frame("main", str(file), 3, True), Frame("get", "/lib/queue.py", 1))
    stacks = (StackCount(pid=os.getpid(), thread="MainThread", main=True, frames=(0, 1), count=5),)
    return StackWindow(time=1.0, seconds=1.0, rate=20.0, frames=frames, stacks=stacks)


def test_a_file_is_read_once(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("seen = []\nfor step in range(9):\n    seen.append(step)\n")
    told, came = [], threading.Event()

    def emit(event):
        told.append(event)
        came.set()

    finder = GrowthFinder(os.getpid(), emit)
    finder.consider(window(file))
    assert came.wait(10)
    assert [(site.line, site.text) for site in told[0].sites] == [(3, "seen.append(step)")]
    finder.consider(window(file))
    assert len(told) == 1


def test_each_file_is_read_as_the_process_that_runs_it(tmp_path, monkeypatch):
    """And as the first one, which lives on, where that sees the same."""
    came, asked = threading.Event(), []

    class Code:
        def of(self, pid):
            return SimpleNamespace(pid=1 if pid in (1, 2) else pid, text=lambda file: asked.append((pid, file)))

    monkeypatch.setattr(growth, "CodeOfProcesses", Code)
    finder = GrowthFinder(1, lambda event: came.set())
    seen = window(tmp_path / "a.py")
    frames = (*seen.frames, Frame("step", str(tmp_path / "b.py"), 3, True))
    stacks = [(2, (0, 1)), (3, (0, 2))]
    counted = tuple(StackCount(pid=pid, thread="MainThread", main=True, frames=at, count=1) for pid, at in stacks)
    finder.consider(StackWindow(time=1.0, seconds=1.0, rate=20.0, frames=frames, stacks=counted))
    assert came.wait(10)
    assert asked == [(2, frames[0].file), (3, frames[2].file)]
    assert finder._files == {frames[0].file: 1, frames[2].file: 3}


def test_a_hanging_file_system_holds_nothing_up(tmp_path, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(growth, "growth_sites", lambda texts: released.wait(10) and ())
    told = []
    finder = GrowthFinder(os.getpid(), told.append)
    for number in range(3):
        finder.consider(window(tmp_path / f"{number}.py"))
    assert told == []
    released.set()


def test_what_python_thinks_of_the_users_code_is_not_told():
    """It would be written into the screen."""
    code = r"""
from aitop.sources.code.growth import growth_sites
code = "xs = ['\\d']\nfor step in range(9):\n    xs.append(1if step else 2)\n    loss.backward()\n"
assert growth_sites({"x.py": code})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_would_overflow_the_parsers_stack_is_not_read(monkeypatch):
    loop = "seen = []\nfor step in range(9):\n    seen.append(step)\n"
    monkeypatch.setattr(syntax, "LIMITS_DEPTH", False)
    for one in ("+1", ".b", "()", "[0]", "**a"):
        assert reading.growth_sites({"x.py": f"{loop}x = a{one * 2 * syntax.DEEPEST}\n"}) == ()
    flat = f"x = [{'1.5, -2, ' * syntax.DEEPEST}]\n".replace("-", "") + "y = a.b + c(1)\n" * syntax.DEEPEST
    assert len(reading.growth_sites({"x.py": loop + flat})) == 1
