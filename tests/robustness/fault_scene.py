"""What a fault happens to: a training run that says how it is, the monitors on it, and what must hold afterwards."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from terminal import OnTerminal, tree_of

from aitop.errors import AitopError
from aitop.sources.replay import Recording
from aitop.sources.ring.reader import LEASE_SECONDS, find_ring

SCRIPT = Path(__file__).with_name("fault_target.py")
AITOP = [sys.executable, "-m", "aitop"]
FIRST_STEPS, PATIENCE = 8, 60.0
# A lease that is not renewed any more, a look at it, and a busy machine.
BACK_AS_IT_WAS = 2 * LEASE_SECONDS + 10.0
SPY_ENDS = 12.0
# Whoever shows more than this in one place shows a traceback of its own.
TRACEBACK = re.compile(r"Traceback \(most recent call last\)|╭─+ Traceback|Exception ignored")


class Target:
    """One run of fault_target.py, in a folder of its own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._folder = tempfile.TemporaryDirectory(prefix="faults-")
        self.folder = Path(self._folder.name)
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(self.folder), kind],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.answered = 0
        self.before: dict[str, object] = {}
        self.killed = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def ready(self) -> Target:
        """Wait for its first steps, and take down how it is."""
        self.goes_on(FIRST_STEPS)
        self.before = self.ask("report")["state"]
        return self

    def runs(self) -> list[list[str]]:
        """The losses since each start of the program."""
        path = self.folder / "losses"
        text = path.read_text() if path.exists() else ""
        return [part.split() for part in text[: text.rfind("\n") + 1].split("start\n")[1:]]

    def steps(self) -> int:
        """Steps made, counted over all starts."""
        return sum(len(run) for run in self.runs())

    def goes_on(self, more: int = 2) -> None:
        """Wait for so many more steps. Raises RuntimeError where they do not come."""
        wanted, deadline = self.steps() + more, time.monotonic() + PATIENCE
        while self.steps() < wanted:
            if self.process.poll() is not None:
                raise RuntimeError(f"the target ended with {self.process.returncode}: {self.log()}")
            if time.monotonic() > deadline:
                raise RuntimeError("the target makes no steps")
            time.sleep(0.02)

    def ask(self, word: str) -> dict[str, dict[str, object]]:
        """Ask it for something, and its answer."""
        self.ask_to(word)
        self.answered += 1
        deadline = time.monotonic() + PATIENCE
        while True:
            path = self.folder / "said"
            lines = path.read_text().splitlines(keepends=True) if path.exists() else []
            if len(lines) >= self.answered and lines[self.answered - 1].endswith("\n"):
                answer: dict[str, dict[str, object]] = json.loads(lines[self.answered - 1])
                return answer
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the target does not answer: {self.process.poll()} {self.log()}")
            time.sleep(0.02)

    def ask_to(self, word: str) -> None:
        """Ask it for something that it does not answer."""
        (self.folder / "asking").write_text(word)
        (self.folder / "asking").rename(self.folder / "ask")

    def log(self) -> str:
        return (self.folder / "log").read_text()[-1000:]

    def tree(self) -> list[psutil.Process]:
        return tree_of(self.pid)

    def harm(self) -> list[str]:
        """What is not as it was before any monitor came, once the last one has had time to be gone."""
        if self.killed:
            return []
        deadline = time.monotonic() + BACK_AS_IT_WAS
        while True:
            harm = self._harm_now()
            if not harm or time.monotonic() > deadline:
                return harm
            time.sleep(0.25)

    def _harm_now(self) -> list[str]:
        try:
            self.goes_on(1)
            now = self.ask("report")["state"]
        except RuntimeError as error:
            return [str(error)]
        harm = [f"{name}: {self.before[name]} → {now[name]}" for name in now if now[name] != self.before.get(name)]
        for process in self.tree():
            try:
                state = process.status()
            except psutil.Error:
                continue
            # Fresh workers of the kind that has them end all the time, and are collected.
            if state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP) or (
                state == psutil.STATUS_ZOMBIE and self.kind != "churn"
            ):
                harm.append(f"process {process.pid} is {state}")
        for folder in ("/tmp", "/dev/shm", "/var/tmp"):
            harm += [f"left behind: {path}" for path in Path(folder).glob(f".aitop-{self.pid}-*")]
        return harm + ([f"it said: {self.log()}"] if self.log() else [])

    def end(self) -> None:
        if self.process.poll() is None and not self.killed:
            self.ask_to("end")
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """The whole group, stopped or not."""
        self.killed = True
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(15)

    def clear(self) -> None:
        self._folder.cleanup()


@dataclass
class Scene:
    """One time that a fault happens. `bad` is what the monitors did wrong; `shown` whether the screen said what it was,
    None where there is nothing that it could say; `not_shown` is what it showed where it did not.
    """

    target: Target
    dice: random.Random
    folder: Path
    bad: list[str] = field(default_factory=list)
    shown: bool | None = None
    not_shown: str = ""
    hooked: bool = False
    monitors: list[OnTerminal] = field(default_factory=list)
    seen: dict[int, float] = field(default_factory=dict)

    def watch(
        self,
        *options: str,
        env: dict[str, str] | None = None,
        before: Callable[[], None] = lambda: None,
        wrap: str = "",
    ) -> OnTerminal:
        """Start the screen on the target; `wrap` is a line of shell that ends by running "$@"."""
        command = [*AITOP, "--pid", str(self.target.pid), *options]
        return self.start(["sh", "-c", wrap, "sh", *command] if wrap else command, env, before)

    def start(
        self, command: list[str], env: dict[str, str] | None = None, before: Callable[[], None] = lambda: None
    ) -> OnTerminal:
        monitor = OnTerminal(command, env, before)
        self.monitors.append(monitor)
        return monitor

    def pause(self, least: float, most: float) -> None:
        """A random while; what the monitors start meanwhile is kept in mind."""
        until = time.monotonic() + self.dice.uniform(least, most)
        while True:
            self.look()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(0.2, left))

    def moment(self, monitor: OnTerminal) -> None:
        """A random moment: of the start, or of the time in which the hook is in."""
        if self.dice.random() < 0.4:
            self.pause(0.05, 2.5)
            return
        monitor.until("hook●", 20.0)
        self.pause(0.0, 2.5)

    def look(self) -> None:
        """Take down the processes of the monitors, by pid and start; and whether the hook is in."""
        for monitor in self.monitors:
            for process in monitor.tree():
                try:
                    self.seen[process.pid] = process.create_time()
                except psutil.Error:
                    continue
        self.hooked = self.hooked or find_ring(self.target.pid) is not None

    def shows(self, monitor: OnTerminal, pattern: str, seconds: float) -> bool:
        """Whether the screen says so in time; counts."""
        self.shown = monitor.until(pattern, seconds) is not None
        if not self.shown:
            self.not_shown = f"{pattern} is not on the screen after {seconds:g} s:\n{monitor.screen.text()}"
        return self.shown

    def expect(self, good: object, words: str) -> None:
        if not good:
            self.bad.append(words)

    def ends(
        self, monitor: OnTerminal, *codes: int, within: float = 25.0, restored: bool = True, quiet: bool = True
    ) -> None:
        """The monitor has to end by itself with one of these codes, and leave the terminal as it was."""
        code = monitor.wait(within)
        self.expect(code in codes, f"ended with {code}, not {codes}: {monitor.screen.left[-300:]!r}")
        if restored and code is not None:
            self.expect(not monitor.not_restored(), f"terminal: {monitor.not_restored()}")
        self.expect(
            not quiet or not TRACEBACK.search(monitor.raw.decode(errors="replace")),
            f"traceback: {bytes(monitor.raw[-900:])!r}",
        )

    def quits(self, monitor: OnTerminal, *codes: int) -> None:
        """The monitor has to take the key for leaving, and to leave the hook out of the target."""
        monitor.press(b"q")
        self.ends(monitor, *(codes or (0,)))

    def recovers(self, monitor: OnTerminal, seconds: float = 45.0, sources: str = "host●.* stacks●.* hook●") -> None:
        """The monitor has to show all that it showed before, and to go on drawing."""
        if monitor.ended():
            self.bad.append(f"ended with {monitor.code}: {monitor.screen.left[-300:]!r}")
            return
        if monitor.until(sources, seconds) is None:
            self.bad.append(f"not recovered in {seconds:g} s:\n{monitor.screen.text()}")
            return
        self.look()
        before, deadline = monitor.written, time.monotonic() + 60.0
        while monitor.written == before and time.monotonic() < deadline:
            time.sleep(0.1)
        self.expect(monitor.written > before, "the screen stands still")

    def readable(self, path: Path, *, whole: bool = False) -> int:
        """How many events a recording has; it has to be readable up to its last whole line."""
        try:
            recording = Recording(path)
            count = sum(1 for _ in recording.events())
        except AitopError as error:
            self.bad.append(f"recording: {error}")
            return 0
        self.expect(recording.skipped == 0, f"recording: {recording.skipped} damaged lines")
        if whole and not path.name.endswith(".gz"):
            self.expect(path.read_bytes().endswith(b"\n"), "recording: torn although it was closed")
        return count

    def clear(self) -> None:
        """End what still runs, and complain of what a monitor that is gone has left running."""
        self.look()
        for monitor in self.monitors:
            if not monitor.ended():
                if not self.bad:
                    self.bad.append("the monitor was left running")
                os.kill(monitor.pid, signal.SIGKILL)
                monitor.wait(10.0)
        deadline = time.monotonic() + SPY_ENDS
        left = self._left()
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            left = self._left()
        for process in left:
            self.bad.append(f"left running: {process}")
            os.kill(process.pid, signal.SIGKILL)
        for monitor in self.monitors:
            monitor.close()

    def _left(self) -> list[psutil.Process]:
        own = {monitor.pid for monitor in self.monitors}
        processes = []
        for pid, started in self.seen.items():
            try:
                process = psutil.Process(pid)
                if pid not in own and process.create_time() == started:
                    processes.append(process)
            except psutil.Error:
                continue
        return processes
