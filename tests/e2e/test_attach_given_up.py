"""An attach that is given up when only a part of the hook has come leaves nothing of it in the target."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aitop.attach.attempt import WAYS, Attempt, Limit
from aitop.attach.watchdog import WATCHDOG

pytestmark = pytest.mark.e2e

# Without garbage collections nothing that was forgotten goes away by itself.
TARGET = """
import gc, select, sys
gc.disable()
print("ready", flush=True)
while True:
    while not select.select([sys.stdin], [], [], 0.005)[0]:
        sum(range(200))
    if not sys.stdin.readline():
        break
    print([type(one).__name__ for one in gc.callbacks], [name for name in sys.modules if "aitop" in name], flush=True)
"""
# A monitor that has brought one part in is killed: by itself, because nobody else knows the moment.
KILLED = """
import os, signal, sys, time
from aitop.attach.attempt import Attempt, Limit
from aitop.attach.attempt import WAYS
attempt = Attempt(int(sys.argv[1]), "install", eval(sys.stdin.read()), WAYS, torch=False)
attempt.open(time.monotonic() + 5)
parts = len(attempt._blocks)
attempt.wait(Limit(time.monotonic() + 20, lambda: len(attempt._blocks) < parts and os.killpg(0, signal.SIGKILL)))
"""
PATIENCE_S = 20.0
PART = "numbers = (" + ", ".join(str(1_000_000 + number) for number in range(20_000)) + ")\n"
HOOK = (
    (
        "hook.__init__",
        "from . import first, second\ndef install(way): return 'installed'\ndef remove(): return 'removed'\n",
    ),
    ("hook.first", PART),
    ("hook.second", PART),
)


@contextmanager
def target() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def state(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The callbacks of the garbage collector that the target has, and those modules that are ours."""
    process.stdin.write("\n")
    process.stdin.flush()
    callbacks, _, modules = process.stdout.readline().strip().partition("] [")
    return callbacks + "]", "[" + modules


@pytest.mark.parametrize("given_up", [True, False])
def test_parts_that_came_are_taken_back(given_up):
    with target() as process:
        attempt = Attempt(process.pid, "install", HOOK, WAYS, torch=False)
        attempt.open(time.monotonic() + 5)
        parts = len(attempt._blocks)
        assert parts >= 3

        def enough() -> bool:
            return given_up and len(attempt._blocks) < parts

        done = attempt.wait(Limit(time.monotonic() + PATIENCE_S, enough))
        assert (done is None) == given_up
        attempt.close()
        callbacks, modules = state(process)
        assert callbacks == "[]"
        assert ("_aitop_hook" in modules) is not given_up


def test_parts_of_a_monitor_that_was_killed_are_taken_back():
    with target() as process:
        monitor = subprocess.run(
            [sys.executable, "-c", KILLED, str(process.pid)],
            input=repr(HOOK),
            text=True,
            start_new_session=True,
            timeout=PATIENCE_S,
        )
        assert monitor.returncode == -signal.SIGKILL
        until = time.monotonic() + PATIENCE_S
        while (now := state(process)) != ("[]", "[]") and time.monotonic() < until:
            time.sleep(0.05)
        assert now == ("[]", "[]")


def test_nothing_stands_by_any_more_when_the_hook_is_in():
    with target() as process:
        attempt = Attempt(process.pid, "install", HOOK, WAYS, torch=False)
        attempt.open(time.monotonic() + 5)
        beside = WATCHDOG._child.pid
        assert attempt.wait(Limit(time.monotonic() + PATIENCE_S)) is not None
        assert Path(f"/proc/{beside}").exists()
        attempt.close()
        assert not Path(f"/proc/{beside}").exists()
        assert WATCHDOG._child is None
