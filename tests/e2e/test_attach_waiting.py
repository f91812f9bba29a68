"""A request that waits in a process which is inside one long call: it stays, it gets in late, or it is withdrawn."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aitop.attach.entrance import install
from aitop.attach.ways.signal_frame import SYS_POLL
from aitop.engine import hook_requests
from aitop.engine.hook_requests import HookRequests
from aitop.sources.ring.reader import HookRing, find_ring
from aitop.sources.source import SourceError

pytestmark = pytest.mark.e2e

PATIENCE = 60.0

# Holds the GIL in poll(2) until it gets a byte, then trains until it gets another one; and the same again.
IN_A_LONG_CALL = """
import ctypes, struct, sys, torch
torch.set_num_threads(1)
net = torch.nn.Linear(4, 4); opt = torch.optim.SGD(net.parameters(), 0.1)
poll = ctypes.PyDLL(None).poll
fds = ctypes.create_string_buffer(struct.pack('<ihh', 0, 1, 0))
for turn in range(3):
    print('ready', flush=True)
    poll(fds, 1, -1); sys.stdin.read(1)
    print('back', flush=True)
    while not poll(fds, 1, 0):
        net(torch.ones(2, 4)).sum().backward(); opt.step()
    sys.stdin.read(1)
    print([name for name in sys.modules if 'aitop' in name], flush=True)
"""


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", IN_A_LONG_CALL], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def says(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None and process.stdout.readline() == f"{line}\n"
    if line == "ready":  # from its word to the call there are some microseconds to go
        comes(lambda: Path(f"/proc/{process.pid}/syscall").read_text().startswith(f"{SYS_POLL} "))


def comes(true: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def say(process: subprocess.Popen[str], character: str) -> None:
    assert process.stdin is not None
    process.stdin.write(character)
    process.stdin.flush()


def waits(process: subprocess.Popen[str], on_the_way: HookRequests) -> None:
    with pytest.raises(SourceError, match="hook waiting for the target") as refusal:
        on_the_way.bring_in(process.pid)
    assert refusal.value.state == "absent" and refusal.value.transient
    assert refusal.value.code == "waiting-for-target"


def gets_in(process: subprocess.Popen[str], on_the_way: HookRequests) -> bool:
    """Whether it is in; on a full machine the target may not have had its turn yet."""
    try:
        on_the_way.bring_in(process.pid)
    except SourceError as refusal:
        assert refusal.transient, refusal
        return False
    return True


def requests(pid: int) -> list[int]:
    """Our requests that are under way, by inode; none of them has a file."""
    assert not list(Path("/tmp").glob(f".aitop-{pid}-*"))
    open_now = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    return [path.stat().st_ino for path in open_now if "aitop-request" in os.readlink(path)]


def test_it_stays_queued_and_gets_in_late_or_is_given_up_and_never_gets_in(
    target: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_requests, "FIRST_WAIT_SECONDS", 1.0)
    says(target, "ready")
    gets_in_as_soon_as_the_target_is_back(target)
    says(target, "ready")
    what_is_given_up_never_gets_in(target)
    says(target, "ready")
    what_a_killed_monitor_had_queued_never_gets_in(target)
    target.wait(PATIENCE)
    assert target.returncode == 0


def gets_in_as_soon_as_the_target_is_back(target: subprocess.Popen[str]) -> None:
    on_the_way = HookRequests()
    waits(target, on_the_way)
    (request,) = requests(target.pid)
    waits(target, on_the_way)
    assert requests(target.pid) == [request], "the request that is queued is the only one"
    say(target, "x")
    says(target, "back")
    comes(lambda: gets_in(target, on_the_way))
    assert requests(target.pid) == []
    ring = HookRing(target.pid)
    ring.renew()
    assert install(target.pid).answer == "already"
    ring.release()
    ring.close()
    on_the_way.give_up()
    comes(lambda: find_ring(target.pid) is None)
    say(target, "x")
    says(target, "[]")


def what_is_given_up_never_gets_in(target: subprocess.Popen[str]) -> None:
    on_the_way = HookRequests()
    waits(target, on_the_way)
    on_the_way.withdraw(target.pid)
    assert requests(target.pid) == [], "nobody wants it there any more"
    on_the_way.give_up()
    assert requests(target.pid) == []
    with pytest.raises(SourceError, match="detached on request"):
        on_the_way.bring_in(target.pid)
    say(target, "x")
    says(target, "back")
    say(target, "x")
    says(target, "[]")


MONITOR = """
import sys, time
from aitop.attach.entrance import begin
from aitop.attach.attempt import Limit
attempt = begin(int(sys.argv[1]))
until = time.monotonic() + float(sys.argv[2])
while not (attempt._pending and attempt._pending.entered) and time.monotonic() < until:
    attempt.wait(Limit(time.monotonic() + 0.1))
print(len(attempt._pending.entered), flush=True)
time.sleep(60)
"""


def what_a_killed_monitor_had_queued_never_gets_in(target: subprocess.Popen[str]) -> None:
    command = [sys.executable, "-c", MONITOR, str(target.pid), str(PATIENCE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as monitor:
        assert monitor.stdout is not None and int(monitor.stdout.readline()) > 0, "it is in, and waits there"
        monitor.kill()
    assert not list(Path("/tmp").glob(f".aitop-{target.pid}-*"))
    say(target, "x")
    says(target, "back")
    time.sleep(0.3)
    say(target, "x")
    says(target, "[]")
