"""An aitop that is killed as soon as the core of the hook is in, before it has loaded the rest: the hook leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from aitop.sources.ring.reader import find_ring

pytestmark = pytest.mark.e2e

# Steps of 30 ms, so that not everything is loaded at once; each line of input asks for what is left of the hook.
TARGET = """
import select, sys, time, torch
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
print("ready", flush=True)
while True:
    net(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.03)
    if select.select([sys.stdin], [], [], 0)[0]:
        if not sys.stdin.readline():
            break
        print([name for name in sys.modules if "aitop" in name], "__call__" in vars(type(net)), flush=True)
"""
KILLED = "import os, sys; from aitop.attach.entrance import install; install(int(sys.argv[1])); os.kill(os.getpid(), 9)"
PATIENCE_S = 20.0


def test_a_hook_whose_monitor_was_killed_leaves_by_itself():
    with subprocess.Popen(
        [sys.executable, "-c", TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as target:
        assert target.stdin is not None and target.stdout is not None
        assert target.stdout.readline() == "ready\n"
        monitor = subprocess.run([sys.executable, "-c", KILLED, str(target.pid)], check=False, timeout=PATIENCE_S)
        assert monitor.returncode == -signal.SIGKILL
        assert find_ring(target.pid), "it is in"
        until = time.monotonic() + PATIENCE_S
        while find_ring(target.pid) and time.monotonic() < until:
            time.sleep(0.05)
        target.stdin.write("\n")
        target.stdin.flush()
        assert target.stdout.readline() == "[] False\n"
        assert not [link for link in os.listdir(f"/proc/{target.pid}/fd") if "aitop" in _link(target.pid, link)]
        target.stdin.close()
    assert target.returncode == 0


def _link(pid: int, number: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except FileNotFoundError:
        return ""
