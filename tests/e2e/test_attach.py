"""The hook's way into live processes and out again: never harmful, never leaving anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attach_targets import STAND_IN, Victim, leftovers, unharmed
from interpreters import interpreters
from waiting import until

from aitop.attach.attempt import WAYS, Attempt, Limit
from aitop.attach.entrance import Attachment, deliver, install, remove, settled
from aitop.attach.inspection.elf import ElfImage
from aitop.attach.inspection.preflight import check_alive
from aitop.attach.inspection.process_memory import Memory, mappings
from aitop.attach.inspection.python_image import locate_python
from aitop.attach.payload.bundle import hook_sources
from aitop.attach.refusal import AttachRefused, WaitingForTarget
from aitop.attach.ways import TargetProcess
from aitop.attach.ways.signal_frame import SYS_POLL, Call, call_in_main_thread
from aitop.attach.ways.stopped_thread import StoppedThread, in_own_thread
from aitop.sources import procfs

pytestmark = [pytest.mark.e2e, pytest.mark.early]

Start = Callable[..., subprocess.Popen[str]]
END_SECONDS = 60.0


def put_in(pid: int, timeout: float = 60.0) -> Attachment:
    return deliver(pid, "install", STAND_IN, timeout=timeout, torch=False)


def take_out(pid: int, timeout: float = 60.0) -> Attachment:
    return deliver(pid, "remove", (), timeout=timeout, torch=False)


@pytest.mark.parametrize(
    ("kind", "cycles"),
    [
        ("busy", 15),
        ("lock", 10),
        ("queue", 10),
        ("sleep", 8),
        ("select", 8),
        ("allocating", 10),
        ("native-allocating", 10),
        ("importing", 10),
        ("timers", 15),
        ("forking", 10),
        ("vector", 20),
    ],
)
def test_in_and_out_again_and_again(start_victim: Callable[..., Victim], kind: str, cycles: int) -> None:
    victim = start_victim(kind)
    for _ in range(cycles):
        assert put_in(victim.pid).answer == "installed"
        assert take_out(victim.pid).answer == "removed"
    unharmed(victim)


@pytest.mark.parametrize(("kind", "same"), [("opening", True), ("leaking", False)])
def test_only_what_stays_open_counts_as_left(start_victim: Callable[..., Victim], kind: str, same: bool) -> None:
    """Of the targets by themselves: nothing is put in."""
    for _ in range(3):
        victim = start_victim(kind)
        assert victim.goes_on()
        _, out, _ = victim.end()
        assert out.splitlines()[-1].startswith(f"bad 0 same {same}"), out


def test_a_second_install_finds_the_first(start_victim: Callable[..., Victim]) -> None:
    victim = start_victim("busy")
    assert [put_in(victim.pid).answer for _ in range(2)] == ["installed", "already"]
    assert [take_out(victim.pid).answer for _ in range(2)] == ["removed", "absent"]
    unharmed(victim)


TORN = (
    ("hook.__init__", "from .store import STATE, NOT_WRITTEN_YET\ndef install(way, load=None): return 'installed'\n"),
    STAND_IN[1],
)


def test_a_hook_whose_files_do_not_fit_each_other_leaves_nothing(start_victim: Callable[..., Victim]) -> None:
    victim = start_victim("busy")
    done = deliver(victim.pid, "install", TORN, timeout=60, torch=False)
    assert done.answer.startswith("error: ImportError: cannot import name 'NOT_WRITTEN_YET'")
    assert refusal_of(lambda: settled(victim.pid, done)).state == "failed"
    assert take_out(victim.pid).answer == "absent"
    unharmed(victim)


def test_losses_are_the_same_bit_for_bit(start_victim: Callable[..., Victim]) -> None:
    touched = start_victim("training")
    cycles = 0
    while cycles < 10 or touched.ticks() < 60:
        put_in(touched.pid)
        take_out(touched.pid)
        cycles += 1
    results = [touched.end()]
    plain = start_victim("training", env={**os.environ, "STEPS": str(results[0][1].count("0x"))})
    results.append(plain.finish(timeout=60))
    losses = [out.splitlines()[0] for _, out, _ in results]
    assert losses[0].startswith("losses") and losses[0] == losses[1]
    assert [code for code, _, _ in results] == [0, 0]
    assert "bad 0 same True" in results[0][1]
    assert leftovers(touched.pid) == []


KILLED_IN_FLIGHT = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[2])
from attach_targets import STAND_IN
from aitop.attach.entrance import deliver
pid = int(sys.argv[1])
for _ in range(25):
    child = os.fork()
    if not child:
        while True:
            for action in ('install', 'remove'):
                deliver(pid, action, STAND_IN, timeout=5, torch=False)
    time.sleep(random.uniform(0.001, 0.03)); os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
"""


@pytest.mark.parametrize("kind", ["busy", "allocating"])
def test_an_injector_killed_in_flight_does_no_harm(start_victim: Callable[..., Victim], kind: str) -> None:
    victim = start_victim(kind)
    tests = str(Path(__file__).parents[1])
    subprocess.run([sys.executable, "-c", KILLED_IN_FLIGHT, str(victim.pid), tests], check=True, timeout=60)
    assert victim.goes_on()
    # Whatever the last one left in it, the next one gets through and cleans up.
    put_in(victim.pid)
    assert take_out(victim.pid).answer == "removed"
    unharmed(victim)


def computes(pid: int) -> None:
    """Wait until it has computed for 30 ms more: from its word to the loop there are some microseconds to go."""
    enough = procfs.stat(pid).user + 3
    until(lambda: procfs.stat(pid).user >= enough)


def ends_the_loop(over: Path) -> None:
    """Written in place: the process has the file in its memory."""
    with over.open("r+b") as file:
        file.write(b"x")


LONG_CALL = """
import itertools, mmap, sys
file = open(sys.argv[1], 'rb')
over = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
print('ready', flush=True)
any(map(over.__getitem__, itertools.repeat(0)))
print([m for m in sys.modules if 'aitop' in m])
"""


def test_a_long_call_is_waited_for_and_the_request_withdrawn(start: Start, tmp_path: Path) -> None:
    """A call that computes in C, until a byte of a file is no longer zero."""
    over = tmp_path / "over"
    over.write_bytes(b"\0")
    process = start([sys.executable, "-c", LONG_CALL, str(over)])
    computes(process.pid)
    with pytest.raises(AttachRefused, match="hook waiting for the target") as refusal:
        put_in(process.pid, timeout=0.3)
    assert isinstance(refusal.value, WaitingForTarget)
    assert leftovers(process.pid) == []
    ends_the_loop(over)
    assert process.communicate(timeout=END_SECONDS)[0] == "[]\n"
    assert process.returncode == 0


@pytest.mark.parametrize("kind", ["longsleep", "longselect", "epoll"])
def test_a_sleeping_main_thread_is_entered_without_waking_the_program(
    start_victim: Callable[..., Victim], kind: str
) -> None:
    victim = start_victim(kind)
    ways = set()
    for _ in range(20):  # it may just have turned round when one came
        ways.add(put_in(victim.pid).way)
        assert take_out(victim.pid).answer == "removed"
        if "sleeping-call" in ways:
            break
    # From 3.14 on the line that a signal frame has queued is run without that.
    assert "sleeping-call" in ways or (sys.version_info >= (3, 14) and ways == {"signal-frame"})
    unharmed(victim)


HOLDS_THE_GIL = """
import ctypes, os, struct, sys
poll = ctypes.PyDLL(None).poll
r, w = os.pipe(); fds = ctypes.create_string_buffer(struct.pack('<ihh', 0, 1, 0))
print('ready', flush=True)
poll(fds, 1, -1)
print([m for m in sys.modules if 'aitop' in m])
"""


def polls(pid: int) -> None:
    """Wait until it is in poll(2): from its word to the call there is some way to go."""
    until(lambda: Path(f"/proc/{pid}/syscall").read_text().startswith(f"{SYS_POLL} "))


@pytest.mark.parametrize("python", sorted({path for name, path in interpreters().items() if "-" not in name}))
def test_a_thread_that_sleeps_with_the_gil_is_left_alone(start: Start, python: str) -> None:
    process = start([python, "-c", HOLDS_THE_GIL], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    polls(process.pid)
    refused = refusal_of(lambda: put_in(process.pid, timeout=1.0))
    assert refused.reason == f"hook waiting for the target: process {process.pid} is inside one long call"
    assert process.communicate("x", timeout=END_SECONDS) == ("[]\n", "")
    assert process.returncode == 0


def test_a_request_that_nobody_waits_for_any_more_is_withdrawn(start: Start) -> None:
    process = start([sys.executable, "-c", HOLDS_THE_GIL], stdin=subprocess.PIPE)
    polls(process.pid)
    began = time.monotonic()
    attempt = Attempt(process.pid, "install", STAND_IN, WAYS, began + 60, torch=False)
    assert attempt.wait(Limit(began + 60, lambda: time.monotonic() - began > 0.7)) is None
    assert "hook waiting for the target" in str(attempt.why_not())
    assert attempt.close() is None
    assert time.monotonic() - began < 60, "it waited for the time to run out"
    assert leftovers(process.pid) == []
    assert process.communicate("x", timeout=END_SECONDS)[0] == "[]\n"
    assert process.returncode == 0


ERRNO = """
import ctypes, mmap, signal, sys
where = ctypes.CDLL(None).__errno_location; where.restype = ctypes.c_void_p
errno = ctypes.c_int.from_address(where())
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, 60})
errno.value = 4242
file = open(sys.argv[1], "r+b")
over = mmap.mmap(file.fileno(), 1)
print('ready', flush=True)
errno.value = 4242
while not over[0]: pass
print(errno.value, sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
"""


def test_errno_and_the_signal_mask_are_as_they_were(start: Start, tmp_path: Path) -> None:
    over = tmp_path / "over"
    over.write_bytes(b"\0")
    process = start([sys.executable, "-c", ERRNO, str(over)])
    computes(process.pid)
    with Memory(process.pid) as memory:
        target = TargetProcess(check_alive(process.pid), memory, locate_python(process.pid, memory))
        base = next(m.start for m in mappings(process.pid) if m.path.endswith("/libc.so.6"))
        close = ElfImage(memory.read, base).symbols(("close",))["close"].address
        # A call that fails, and says so in errno.
        calls = [Call(close, (2**31 - 1,))]
        for _ in range(20):
            in_own_thread(lambda: call_in_main_thread(target, calls, lambda thread, _: thread.state(), b"\0"))
    ends_the_loop(over)
    assert process.communicate(timeout=END_SECONDS)[0] == f"4242 {[int(signal.SIGUSR2), 60]}\n"
    assert process.returncode == 0


def refusal_of(act: Callable[[], object]) -> AttachRefused:
    with pytest.raises(AttachRefused) as refusal:
        act()
    return refusal.value


def test_a_process_without_torch_is_refused(start_victim: Callable[..., Victim]) -> None:
    victim = start_victim("busy")
    refused = refusal_of(lambda: install(victim.pid))
    assert refused.state == "absent" and refused.reason == f"process {victim.pid} has not loaded torch"
    assert refused.transient
    # Nor does the hook stay where it is taken for a server.
    assert deliver(victim.pid, "install", hook_sources(), timeout=5, torch=False).answer == "no-torch"
    assert remove(victim.pid) == "absent"
    unharmed(victim)


def test_a_stopped_process_is_refused(start_victim: Callable[..., Victim]) -> None:
    victim = start_victim("busy")
    os.kill(victim.pid, signal.SIGSTOP)
    until(lambda: procfs.stat(victim.pid).state == "T")
    refused = refusal_of(lambda: install(victim.pid))
    assert refused.reason == f"process {victim.pid} is stopped"
    assert refused.remedy == f"kill -CONT {victim.pid}"
    os.kill(victim.pid, signal.SIGCONT)
    unharmed(victim)


def test_a_zombie_and_a_dead_process_are_refused() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert refusal_of(lambda: install(process.pid)).reason == f"process {process.pid} has ended and is a zombie"
    process.wait()
    assert refusal_of(lambda: install(process.pid)).reason == f"there is no process {process.pid}"


def test_what_is_not_python_is_refused() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            refused = refusal_of(lambda: install(process.pid))
            assert refused.reason == f"process {process.pid} is not a Python process"
        finally:
            process.kill()


def test_a_traced_process_is_refused_by_name(start_victim: Callable[..., Victim]) -> None:
    victim = start_victim("busy")

    def inside() -> AttachRefused:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("a thread")
        with StoppedThread(victim.pid, lambda: True):
            return refusal_of(lambda: install(victim.pid))

    refused = in_own_thread(inside)
    ours = f"{Path('/proc/self/comm').read_text().strip()} ({os.getpid()})"
    assert (refused.state, refused.reason) == ("denied", f"process {victim.pid} is already being traced by {ours}")
    unharmed(victim)


@pytest.mark.parametrize("how", ["variable", "option"])
def test_the_owner_can_switch_it_off(start: Start, how: str) -> None:
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    option = ["-X", "disable-remote-debug"] if how == "option" else []
    environment = {**os.environ, **({"PYTHON_DISABLE_REMOTE_DEBUG": "1"} if how == "variable" else {})}
    process = start([sys.executable, *option, "-c", code], env=environment, stdin=subprocess.PIPE)
    refused = refusal_of(lambda: install(process.pid))
    assert refused.state == "denied" and "switched remote debugging off" in refused.reason
    process.communicate(timeout=END_SECONDS)
    assert process.returncode == 0


AS_NOBODY = """
import os, sys
from aitop.attach.entrance import install
from aitop.attach.refusal import AttachRefused
from aitop.attach.payload.bundle import hook_sources
hook_sources()  # nobody cannot read our files
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try: install(int(sys.argv[1]))
except AttachRefused as refused: print(refused.state, '|', refused.reason, '|', refused.remedy)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_users_process_is_refused(start_victim: Callable[..., Victim]) -> None:
    victim = start_victim("busy")
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(victim.pid)], capture_output=True, text=True, timeout=30
    )
    assert done.stderr == ""
    assert done.stdout.strip() == (
        f"denied | process {victim.pid} belongs to user root, and aitop runs as nobody | run aitop as root or with sudo"
    )
    unharmed(victim)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_ends_the_program_is_never_swallowed(start: Start, number: signal.Signals) -> None:
    """Ctrl-C, or a SIGTERM for which the program exits, arrives in the user's own code though our line runs."""
    hook = (
        (
            "hook.__init__",
            "import _thread\n"
            f"def install(way, load=None):\n    _thread.interrupt_main({int(number)})\n"
            "    for _ in range(9): len(())\n    return 'x'\n",
        ),
    )
    code = """if True:
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        try:
            print(1, flush=True)
            while True: sum(range(100))
        except (KeyboardInterrupt, SystemExit): print('mine')
    """
    process = start(code)
    done = deliver(process.pid, "install", hook, timeout=60, torch=False)
    assert done.answer == "error: interrupted"
    assert process.communicate(timeout=END_SECONDS)[0] == "mine\n"
    assert process.returncode == 0


def test_what_killed_injectors_left_for_dead_targets_is_swept(start_victim: Callable[..., Victim]) -> None:
    old, fresh = (Path(f"/tmp/.aitop-{2**22}-{which}{os.getpid():011x}") for which in "ab")
    users = Path(f"/tmp/.aitop-notes-{os.getpid()}")
    for path in (old, fresh, users):
        path.write_bytes(b"")
    for path in (old, users):
        os.utime(path, (time.time() - 120, time.time() - 120))
    try:
        assert put_in(start_victim("busy").pid).answer == "installed"
        assert not old.exists() and fresh.exists() and users.exists()
    finally:
        for path in (old, fresh, users):
            path.unlink(missing_ok=True)
