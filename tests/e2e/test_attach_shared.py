"""Two monitors on one process share its hook; the last one out takes it along."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from aitop.sources.ring.reader import find_ring

pytestmark = pytest.mark.e2e

TARGET = """
import time, torch
torch.set_num_threads(1)
net = torch.nn.Linear(4, 4); opt = torch.optim.SGD(net.parameters(), 0.1)
print('ready', flush=True)
until = time.monotonic() + 300
while time.monotonic() < until:
    net(torch.ones(2, 4)).sum().backward(); opt.step(); time.sleep(0.002)
"""
PATIENCE = 60.0
MONITOR = f"""
PATIENCE = {PATIENCE}
import sys, time
from aitop.engine.hook_requests import HookRequests, take_out
from aitop.sources.ring.source import HookSource
from aitop.sources.source import SourceError
pid, on_the_way = int(sys.argv[1]), HookRequests()
source = HookSource(lambda: [pid], on_the_way.bring_in, on_the_way.withdraw)
until, steps = time.monotonic() + PATIENCE, 0
while not steps and time.monotonic() < until:
    try: steps = sum(len(sample.steps) for sample in source.read())
    except SourceError: pass  # on a full machine the target may not have had its turn yet
    time.sleep(0.05)
print('reads', flush=True)
sys.stdin.readline()
on_the_way.give_up(); source.close(); take_out([pid])
"""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, *arguments: object) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code, *map(str, arguments)]
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None and process.stdout.readline() == f"{word}\n"


def leaves_within(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while find_ring(pid) is not None and time.monotonic() < until:
        time.sleep(0.02)
    return find_ring(pid) is None


def test_the_last_one_out_takes_the_hook_along(start: Callable[..., subprocess.Popen[str]]) -> None:
    target = start(TARGET)
    said(target, "ready")
    first = start(MONITOR, target.pid)
    said(first, "reads")
    ring = find_ring(target.pid)
    second = start(MONITOR, target.pid)
    said(second, "reads")
    assert find_ring(target.pid) == ring, "the second one uses the hook of the first"
    first.communicate("\n")
    assert first.returncode == 0
    assert not leaves_within(target.pid, 0.7), "the second one still needs it"
    second.communicate("\n")
    assert leaves_within(target.pid, PATIENCE)
    assert target.poll() is None
