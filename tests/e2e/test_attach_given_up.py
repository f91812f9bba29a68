"""An attach that is given up when only a part of the hook has come leaves nothing of it in the target."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from aitop.attach.attempt import Attempt, Limit
from aitop.attach.ways import WAYS

pytestmark = pytest.mark.e2e

TARGET = """
import gc, select, sys
gc.disable()
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.005)[0]:
    sum(range(200))
print([type(one).__name__ for one in gc.callbacks], [name for name in sys.modules if "aitop" in name])
"""
PART = "numbers = (" + ", ".join(str(1_000_000 + number) for number in range(20_000)) + ")\n"
HOOK = (
    ("__init__", "from . import first, second\ndef install(way): return 'installed'\ndef remove(): return 'removed'\n"),
    ("first", PART),
    ("second", PART),
)


@pytest.mark.parametrize("given_up", [True, False])
def test_parts_that_came_are_taken_back(given_up):
    target = subprocess.Popen([sys.executable, "-c", TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert target.stdout.readline() == "ready\n"
        attempt = Attempt(target.pid, "install", HOOK, WAYS, torch=False)
        attempt.open(time.monotonic() + 5)
        parts = len(attempt._parcels)
        assert parts >= 3

        def enough() -> bool:
            return given_up and len(attempt._parcels) < parts

        done = attempt.wait(Limit(time.monotonic() + 20, enough))
        assert (done is None) == given_up
        attempt.close()
        out, _ = target.communicate("\n", timeout=20)
        callbacks, modules = out.split("] [")
        assert callbacks == "["
        assert ("_aitop_hook" in modules) is not given_up
    finally:
        target.kill()
        target.communicate()
