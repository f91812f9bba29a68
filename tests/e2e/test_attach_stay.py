"""How long the hook, or a request for it, is in a torch process: it waits, monitors share it, and it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import line_of, until

from aitop.attach.entrance import install
from aitop.attach.ways.signal_frame import SYS_POLL
from aitop.engine import hook_requests
from aitop.engine.hook_requests import HookRequests
from aitop.sources.ring.reader import HookRing, find_ring
from aitop.sources.source import SourceError

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).parent / "programs" / "steered.py"
PATIENCE = 60.0
NOTHING_OF_OURS = "[] False"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def target() -> Iterator[subprocess.Popen[str]]:
    """One process for all tests, which leave nothing in it. It must end well."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, str(PROGRAM)], stdin=pipe, stdout=pipe, text=True)
    try:
        expect(process, "ready")
        yield process
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def expect(process: subprocess.Popen[str], line: str) -> None:
    """The next line of the process must be this one."""
    assert line_of(process) == f"{line}\n"


def send(process: subprocess.Popen[str], letter: str) -> None:
    assert process.stdin is not None
    process.stdin.write(letter)
    process.stdin.flush()


def put_to_sleep(target: subprocess.Popen[str]) -> None:
    """Have it hold the GIL in poll(2). From its word to the call there are some microseconds to go."""
    send(target, "h")
    expect(target, "holds")
    until(lambda: Path(f"/proc/{target.pid}/syscall").read_text().startswith(f"{SYS_POLL} "))


def wake(target: subprocess.Popen[str]) -> None:
    send(target, "x")
    expect(target, "back")


def check_nothing_is_left(target: subprocess.Popen[str]) -> None:
    assert find_ring(target.pid) is None
    send(target, "n")
    expect(target, NOTHING_OF_OURS)


def check_refused(target: subprocess.Popen[str], requests: HookRequests) -> None:
    with pytest.raises(SourceError, match="hook waiting for the target") as refusal:
        requests.bring_in(target.pid)
    assert refusal.value.state == "absent" and refusal.value.transient
    assert refusal.value.code == "waiting-for-target"


def is_in(target: subprocess.Popen[str], requests: HookRequests) -> bool:
    """Whether the hook is in; on a full machine the target may not have had its turn yet."""
    try:
        requests.bring_in(target.pid)
    except SourceError as refusal:
        assert refusal.transient, refusal
        return False
    return True


def queued(pid: int) -> list[int]:
    """Our requests that are under way, by inode; none of them has a file."""
    assert not list(Path("/tmp").glob(f".aitop-{pid}-*"))
    open_now = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    return [path.stat().st_ino for path in open_now if "aitop-request" in os.readlink(path)]


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is long enough to see that a request waits."""
    monkeypatch.setattr(hook_requests, "FIRST_WAIT_SECONDS", 1.0)


@pytest.mark.usefixtures("short_wait")
def test_a_request_gets_in_as_soon_as_the_target_is_back(target: subprocess.Popen[str]) -> None:
    put_to_sleep(target)
    requests = HookRequests()
    check_refused(target, requests)
    (request,) = queued(target.pid)
    check_refused(target, requests)
    assert queued(target.pid) == [request], "the request that is queued is the only one"
    wake(target)
    until(lambda: is_in(target, requests))
    assert queued(target.pid) == []
    ring = HookRing(target.pid)
    ring.renew()
    assert install(target.pid).answer == "already"
    ring.release()
    ring.close()
    requests.give_up()
    until(lambda: find_ring(target.pid) is None)
    check_nothing_is_left(target)


@pytest.mark.usefixtures("short_wait")
def test_a_request_that_is_given_up_never_gets_in(target: subprocess.Popen[str]) -> None:
    put_to_sleep(target)
    requests = HookRequests()
    check_refused(target, requests)
    requests.withdraw(target.pid)
    assert queued(target.pid) == [], "nobody wants it there any more"
    requests.give_up()
    assert queued(target.pid) == []
    with pytest.raises(SourceError, match="detached on request"):
        requests.bring_in(target.pid)
    wake(target)
    check_nothing_is_left(target)


QUEUES_A_REQUEST = """
import sys, time
from aitop.attach.entrance import begin
from aitop.attach.attempt import Limit
attempt = begin(int(sys.argv[1]))
until = time.monotonic() + float(sys.argv[2])
while not (attempt._pending and attempt._pending.entered) and time.monotonic() < until:
    attempt.wait(Limit(time.monotonic() + 0.1))
print(len(attempt._pending.entered), flush=True)
time.sleep(600)
"""


def test_what_a_killed_monitor_had_queued_never_gets_in(target: subprocess.Popen[str], start: Start) -> None:
    put_to_sleep(target)
    monitor = start([sys.executable, "-c", QUEUES_A_REQUEST, str(target.pid), str(PATIENCE)], wait=False)
    assert int(line_of(monitor, 2 * PATIENCE)) > 0, "it is in, and waits there"
    monitor.kill()
    monitor.wait()
    assert not list(Path("/tmp").glob(f".aitop-{target.pid}-*"))
    wake(target)
    time.sleep(0.3)
    check_nothing_is_left(target)


READS = f"""
import sys, time
from aitop.engine.hook_requests import HookRequests, take_out
from aitop.sources.ring.source import HookSource
from aitop.sources.source import SourceError
pid, requests = int(sys.argv[1]), HookRequests()
source = HookSource(lambda: [pid], requests.bring_in, requests.withdraw)
until, steps = time.monotonic() + {PATIENCE}, 0
while not steps and time.monotonic() < until:
    try: steps = sum(len(sample.steps) for sample in source.read())
    except SourceError: pass  # on a full machine the target may not have had its turn yet
    time.sleep(0.05)
print('reads' if steps else 'sees nothing', flush=True)
sys.stdin.readline()
requests.give_up(); source.close(); take_out([pid])
"""


def test_the_last_monitor_out_takes_the_hook_along(target: subprocess.Popen[str], start: Start) -> None:
    def reading() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", READS, str(target.pid)]
        monitor = start(command, wait=False, stdin=subprocess.PIPE)
        assert line_of(monitor, 2 * PATIENCE) == "reads\n"
        return monitor

    first = reading()
    ring = find_ring(target.pid)
    second = reading()
    assert find_ring(target.pid) == ring, "the second one uses the hook of the first"
    first.communicate("\n", timeout=PATIENCE)
    assert first.returncode == 0
    for _ in range(70):
        assert find_ring(target.pid) == ring, "the second one still needs it"
        time.sleep(0.01)
    second.communicate("\n", timeout=PATIENCE)
    until(lambda: find_ring(target.pid) is None)
    check_nothing_is_left(target)


IS_KILLED = (
    "import os, sys; from aitop.attach.entrance import install; install(int(sys.argv[1])); os.kill(os.getpid(), 9)"
)


def test_a_hook_whose_monitor_was_killed_leaves_by_itself(target: subprocess.Popen[str]) -> None:
    """Killed as soon as the core of the hook is in, before the target has loaded the rest."""
    monitor = subprocess.run([sys.executable, "-c", IS_KILLED, str(target.pid)], check=False, timeout=PATIENCE)
    assert monitor.returncode == -signal.SIGKILL
    assert find_ring(target.pid), "it is in"
    until(lambda: find_ring(target.pid) is None, pause=0.05)
    check_nothing_is_left(target)
