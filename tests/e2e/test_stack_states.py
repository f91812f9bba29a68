"""What the kernel and the interpreter's lock say of the threads of a real process that does known things."""

import os
import random
import shutil
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aitop.model.stacks import StackWindow
from aitop.sources.stacks.kernel_waits import KernelWaits
from aitop.sources.stacks.source import StackSource

pytestmark = pytest.mark.e2e

# The main thread sleeps for half of the time, and for the other half it runs Python.
PARTS = """
    import hashlib, os, socket, subprocess, threading, time

    # Long enough that the lock is seldom asked for in between.
    data = bytes(64 << 20)
    local, _local = socket.socketpair()
    server = socket.create_server(("127.0.0.1", 0))
    remote = socket.create_connection(server.getsockname())

    def hashes():
        while True:
            hashlib.sha256(data)

    def asks_a_neighbour():
        local.recv(1)

    def asks_the_network():
        remote.recv(1)

    def waits_for_an_event():
        threading.Event().wait()

    def waits_for_a_child():
        subprocess.run(["sleep", "300"])

    def spins(end):
        while time.perf_counter() < end:
            pass

    names = (hashes, asks_a_neighbour, asks_the_network, waits_for_an_event, waits_for_a_child)
    for run in names:
        threading.Thread(target=run, name=run.__name__, daemon=True).start()
    print("ready", flush=True)
    while True:
        time.sleep(0.03)
        spins(time.perf_counter() + 0.03)
"""

SAVES = """
    import os, sys

    with open(sys.argv[1], "wb") as file:
        print("ready", flush=True)
        while True:
            file.seek(0)
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
"""

# What torch's backward on a GPU does: the main thread waits while a thread of the library's works, which has called
# into Python once and has no frame there.
LIBRARY = """
    #include <pthread.h>
    #include <time.h>
    int PyGILState_Ensure(void);
    void *PyEval_SaveThread(void);
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    static int asked;

    static void *works(void *nothing)
    {
        PyGILState_Ensure();
        PyEval_SaveThread();
        for (;;) {
            pthread_mutex_lock(&lock);
            while (!asked)
                pthread_cond_wait(&changed, &lock);
            pthread_mutex_unlock(&lock);
            for (clock_t end = clock() + CLOCKS_PER_SEC / 20; clock() < end;)
                ;
            pthread_mutex_lock(&lock);
            asked = 0;
            pthread_cond_broadcast(&changed);
            pthread_mutex_unlock(&lock);
        }
        return nothing;
    }

    void begin(void)
    {
        pthread_t thread;
        pthread_create(&thread, 0, works, 0);
    }

    void backward(void)
    {
        pthread_mutex_lock(&lock);
        asked = 1;
        pthread_cond_broadcast(&changed);
        while (asked)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    }
"""
USES_IT = """
    import ctypes, sys

    library = ctypes.CDLL(sys.argv[1] + ".so")
    library.begin()
    print("ready", flush=True)
    while True:
        library.backward()
"""


@dataclass
class Totals:
    """By thread, what windows have said of it."""

    asked: Counter[str] = field(default_factory=Counter)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    # By kind of look: how many, by thread, and by the innermost function.
    looks: Counter[str] = field(default_factory=Counter)
    threads: Counter[tuple[str, str]] = field(default_factory=Counter)
    functions: Counter[tuple[str, str]] = field(default_factory=Counter)

    def share(self, thread: str, what: str) -> float:
        return self.seen[thread, what] / self.asked[thread]

    def on(self, kind: str, thread: str) -> float:
        return self.threads[kind, thread] / self.looks[kind]


def totals_of(windows: list[StackWindow]) -> Totals:
    totals = Totals()
    for window in windows:
        for state in window.states:
            assert state.running + sum(state.waits.values()) == state.asked
            assert state.main == (state.thread == "MainThread")
            totals.asked[state.thread] += state.asked
            totals.seen[state.thread, "running"] += state.running
            for kind, count in state.waits.items():
                totals.seen[state.thread, kind] += count
        for look in window.looks:
            totals.looks[look.kind] += look.asked
            for stack in look.stacks:
                totals.threads[look.kind, stack.thread] += stack.count
                totals.functions[look.kind, window.frames[stack.frames[-1]].function] += stack.count
    return totals


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest, start: Callable[..., subprocess.Popen[str]]) -> int:
    """The pid of a process that runs the code and has printed something."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(request.param))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return start([sys.executable, str(path), str(tmp_path / "saved")], env=environment).pid


def windows_of(pid: int, number: int) -> list[StackWindow]:
    source = StackSource([pid], script=None)
    source.open()
    windows: list[StackWindow] = []
    # As whoever asks a source does: after its pause, which is longer where py-spy had to pay more for a window.
    deadline = time.monotonic() + 40.0
    while len(windows) < number and time.monotonic() < deadline:
        windows += [sample for sample in source.read() if isinstance(sample, StackWindow)]
        time.sleep(source.interval)
    assert len(windows) == number
    return windows


@pytest.mark.parametrize("script", [PARTS], indirect=True)
def test_threads_wait_and_run_for_the_parts_of_the_time_that_they_do(script: int) -> None:
    windows = windows_of(script, 3)
    totals = totals_of(windows)
    assert min(totals.asked.values()) >= 15
    assert totals.share("asks_a_neighbour", "queue") > 0.9
    assert totals.share("asks_the_network", "network") > 0.9
    assert totals.share("waits_for_an_event", "lock") > 0.9
    assert totals.share("waits_for_a_child", "child") > 0.9
    assert totals.share("hashes", "running") > 0.8
    assert 0.2 < totals.share("MainThread", "sleep") < 0.85
    assert 0.2 < totals.share("MainThread", "running") < 0.85
    # Of the interpreter's lock and of the cores both are asked in each of the first windows.
    assert all([look.kind for look in window.looks] == ["gil", "cpu"] for window in windows)
    assert 0.2 < totals.on("gil", "MainThread") < 0.85
    assert totals.on("gil", "hashes") < 0.2
    assert totals.on("cpu", "hashes") > 0.8
    assert 0.2 < totals.on("cpu", "MainThread") < 0.85
    assert {kind for kind, function in totals.functions if function == "spins"} == {"gil", "cpu"}
    waiting = {"asks_a_neighbour", "asks_the_network", "waits_for_an_event", "waits_for_a_child"}
    # One that has just been woken may be met once.
    assert not {(kind, thread) for kind in ("gil", "cpu") for thread in waiting if totals.on(kind, thread) > 0.1}


@pytest.fixture
def library(tmp_path: Path) -> None:
    """The compiled library, where `script` looks for it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "library.c").write_text(LIBRARY)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-pthread", str(tmp_path / "library.c"), "-o", str(tmp_path / "saved.so")],
        check=True,
    )


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="py-spy has no ids of the kernel's: which thread ran is not known"
)
@pytest.mark.parametrize("script", [USES_IT], indirect=True)
def test_a_wait_for_a_library_thread_that_once_called_into_python_is_its_work(library: None, script: int) -> None:
    totals = totals_of(windows_of(script, 3))
    assert totals.share("MainThread", "native") > 0.8
    assert totals.share("MainThread", "lock") < 0.1


@pytest.mark.parametrize("script", [SAVES], indirect=True)
def test_a_process_that_saves_waits_for_the_disk(script: int) -> None:
    waits = KernelWaits()
    before, began = seconds_on_or_for_a_core(script), time.monotonic()
    waits.begin([script])
    # A wait for a fast disk is short: only many looks tell how much of the time it takes.
    while time.monotonic() - began < 2.0:
        waits.look()
        time.sleep(random.uniform(0.001, 0.005))
    off_core = 1.0 - (seconds_on_or_for_a_core(script) - before) / (time.monotonic() - began)
    waits.end()
    (state,) = waits.states({script: {}})
    assert state.asked > 50
    assert sum(count for kind, count in state.waits.items() if kind != "disk") < 0.05 * state.asked
    # How many looks meet a wait says little: one that ends meanwhile counts as running, and where no core is free we
    # come to look when the thread has gone to sleep.
    assert state.waits.get("disk", 0) > 0 or off_core < 0.1
    # So how long it waits is what the kernel counts. Its looks say only in what.
    assert state.counted == pytest.approx(1.0 - off_core, abs=0.1)


def seconds_on_or_for_a_core(pid: int) -> float:
    """As the kernel counts them for the main thread, of which a busy machine makes one wait for a core."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return (int(ran) + int(waited)) / 1e9
