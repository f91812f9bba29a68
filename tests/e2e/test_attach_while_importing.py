"""An import under way in the main thread is the one moment at which Python up to 3.11 cannot bear another import."""

from __future__ import annotations

import subprocess
import sys

import pytest
from waiting import line_of

from aitop.attach.entrance import deliver

pytestmark = pytest.mark.e2e

CYCLES = 10
HOOK = (
    (
        "hook.__init__",
        "from . import inner\ndef install(way, load=None): return 'installed'\ndef remove(): return 'removed'\n",
    ),
)
INNER = (("hook.inner", "x = 1\n"),)
# A module that says that it is still being initialised makes each import of it take its lock.
IMPORTING = """
import sys, colorsys
colorsys.__spec__._initializing = True
print("up", flush=True)
while sys.stdin.readable():
    import colorsys
    sum(range(200))
"""


def test_a_main_thread_that_imports_is_not_harmed():
    target = subprocess.Popen(
        [sys.executable, "-c", IMPORTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        line_of(target)
        for _ in range(CYCLES):
            installed = deliver(target.pid, "install", HOOK + INNER, timeout=20, torch=False)
            assert (installed.answer, target.poll()) == ("installed", None)
            assert deliver(target.pid, "remove", (), timeout=20).answer == "removed"
        assert target.poll() is None
    finally:
        target.kill()
        _, complaint = target.communicate()
    assert complaint == b""
