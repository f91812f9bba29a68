"""Starting a training script as a user would, watching what it prints, and ending it with all its children."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from aitop.sources import procfs

from expected import BY_NAME, SCENARIO_DIR

STEP = re.compile(r"^(?:step|token|request) (\d+)[: ]", re.MULTILINE)
STOP_SECONDS = 3.0


class Training:
    """A training process in a process group of its own; its output goes to a file."""

    def __init__(self, script, *args, log, python=sys.executable):
        self.script, default_args = resolve(script)
        self.log = Path(log)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [python, str(self.script), *default_args, *map(str, args)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.process.pid

    def output(self):
        """What the script has printed so far."""
        return self.log.read_text(errors="replace")

    def steps(self):
        """The last step (token, request) that the script told of, 0 before the first."""
        told = STEP.findall(self.output())
        return int(told[-1]) if told else 0

    def wait_steps(self, count=1, timeout=120.0):
        """Wait until the script has told of `count` steps."""
        self._wait_until(lambda: self.steps() >= count, f"{count} steps", timeout)
        return self

    def wait_losses(self, file, count, timeout=120.0):
        """Wait until the script has written `count` losses to the file that it was told to."""
        self._wait_until(lambda: Path(file).read_text().count("\n") >= count, f"{count} losses", timeout)

    def _wait_until(self, come, what, timeout):
        deadline = time.monotonic() + timeout
        while not come():
            if self.process.poll() is not None:
                raise AssertionError(f"{self.script.name} ended with {self.process.returncode}:\n{self.output()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.script.name}: no {what} in {timeout} s:\n{self.output()}")
            time.sleep(0.05)

    def wait(self, timeout=120.0):
        """Wait for the script's own end; its exit status."""
        return self.process.wait(timeout)

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        """End the whole process group: politely, then for good."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + STOP_SECONDS
            while group_alive(self.pid) and time.monotonic() < deadline:
                time.sleep(0.02)
        self.process.wait(60.0)


def group_alive(group):
    """Whether any process of the group runs. Zombies do not count: whoever has to wait for them may take its time."""
    for pid in procfs.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == group and (stat := procfs.stat(pid)) is not None and stat.state not in "ZX":
                return True
    return False


def resolve(script):
    """Path and arguments of a script given by path, or by its name in the table."""
    if script in BY_NAME:
        return BY_NAME[script].script, BY_NAME[script].args
    path = Path(script)
    return (path if path.exists() else SCENARIO_DIR / path), ()
