"""A process may end between any two looks at it: each of them is taken away in turn, and nothing raises.

From one call of the operating system on, every file of the process in /proc is gone, as the kernel has it: names are
not found, and what is open already cannot be read (ESRCH).
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import subprocess
import sys

import pytest

from aitop.attach.entrance import survey
from aitop.attach.inspection.process import interpreter_of
from aitop.sources import procfs
from aitop.sources.access import why_denied
from aitop.sources.exchange.flight_recorder import flight_record
from aitop.sources.foreign_file import readable_path
from aitop.sources.host.discovery import candidates
from aitop.sources.host.source import HostSource
from aitop.sources.process_status import read_status
from aitop.sources.ring.reader import HookRing, find_ring
from aitop.sources.servers.recognition import Recogniser
from aitop.sources.source import SourceError
from aitop.sources.stacks.choice import Chooser
from aitop.sources.stacks.dump import RunsOn
from aitop.sources.stacks.kernel_waits import KernelWaits
from aitop.sources.stacks.spy import explain
from aitop.sources.stacks.window import CodeOfProcesses

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
child.wait()
"""


class Vanishing:
    """Counts the calls that touch the files of a process; from number `after` on they fail. None: they never do."""

    def __init__(self, pid, monkeypatch):
        self.place = f"/proc/{pid}"
        self.calls, self.after = 0, None
        self._handles = set()
        for owner, name in ((os, "open"), (os, "listdir"), (os, "readlink"), (os, "stat"), (builtins, "open")):
            monkeypatch.setattr(owner, name, self._by_name(getattr(owner, name)))
        for name in ("read", "pread"):
            monkeypatch.setattr(os, name, self._by_handle(getattr(os, name)))
        for name in ("kill", "sched_getaffinity"):
            monkeypatch.setattr(os, name, self._by_pid(getattr(os, name)))

    def reset(self, after):
        self.calls, self.after = 0, after
        self._handles.clear()

    def _gone(self):
        self.calls += 1
        return self.after is not None and self.calls > self.after

    def _by_name(self, call):
        def watched(path=".", *rest, **options):
            ours = isinstance(path, (str, os.PathLike)) and f"{os.fspath(path)}/".startswith(f"{self.place}/")
            if ours and self._gone():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            result = call(path, *rest, **options)
            if ours and call.__name__ == "open" and isinstance(result, int):
                self._handles.add(result)
            elif isinstance(result, int):
                self._handles.discard(result)
            return result

        return watched

    def _by_handle(self, call):
        def watched(handle, *rest):
            if handle in self._handles and self._gone():
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
            return call(handle, *rest)

        return watched

    def _by_pid(self, call):
        def watched(pid, *rest):
            if self.place == f"/proc/{pid}" and self.after is not None and self.calls >= self.after:
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
            return call(pid, *rest)

        return watched


@pytest.fixture(scope="module")
def family():
    """The pids of a Python process and of its child."""
    parent = subprocess.Popen([sys.executable, "-S", "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    yield parent.pid, child
    os.kill(child, 9)
    parent.wait()


def host(parent, child):
    source = HostSource([parent])
    source.open()
    for _ in range(3):
        source.read()


def host_of_two(parent, child):
    source = HostSource([parent, child], recognise=Recogniser().look)
    source.open()
    source.read()


def kernel(parent, child):
    waits = KernelWaits()
    waits.begin([parent, child])
    waits.look()
    waits.look()
    waits.end()
    waits.states({parent: {}, child: {}})


def code(parent, child):
    codes = CodeOfProcesses()
    codes.of(child).around(os.__file__, 3)
    codes.of(child).place(os.__file__, 3)


def named_file(parent, child):
    readable_path(procfs.process_id(child), os.__file__)


def ring(parent, child):
    with contextlib.suppress(SourceError):
        HookRing(child)
    find_ring(child)


LOOKS = {
    "host": host,
    "host of two": host_of_two,
    "kernel": kernel,
    "chooser": lambda parent, child: [Chooser([parent]).next(most) for most in (1, 8)],
    "everyone": lambda parent, child: Chooser([parent]).everyone(),
    "code": code,
    "status": lambda parent, child: read_status(child),
    "denied": lambda parent, child: why_denied(child),
    "explain": lambda parent, child: explain(child, "no such process"),
    "runs on": lambda parent, child: RunsOn(child).hindrance(killed=False),
    "survey": lambda parent, child: survey(child),
    "interpreter": lambda parent, child: (status := read_status(child)) and interpreter_of(status),
    "file": named_file,
    "ring": ring,
    "flight": lambda parent, child: flight_record(child, 0),
}


OF_THE_PARENT = ("host", "host of two", "kernel", "chooser", "everyone")
"""Those of LOOKS that look at the parent too."""


@pytest.mark.parametrize(
    ("name", "who"), [*((name, "parent") for name in OF_THE_PARENT), *((name, "child") for name in LOOKS)]
)
def test_a_process_vanishes_at_any_moment(name, who, family, monkeypatch):
    vanishing = Vanishing(family[who == "child"], monkeypatch)
    LOOKS[name](*family)
    assert vanishing.calls, "it looks at this process"
    for after in range(vanishing.calls):
        vanishing.reset(after)
        try:
            LOOKS[name](*family)
        except SourceError as error:
            assert error.reason
        except Exception as error:
            raise AssertionError(f"it vanished after {after} calls") from error


def test_a_list_of_runs_is_made_while_one_vanishes(family, monkeypatch):
    monkeypatch.setattr("aitop.sources.host.discovery.CPU_WINDOW", 0.0)
    child = family[1]
    vanishing = Vanishing(child, monkeypatch)

    def is_listed():
        return child in [candidate.pid for candidate in candidates({child: ((0,), 1 << 30)})]

    assert is_listed() and vanishing.calls
    listed = []
    for after in range(vanishing.calls):
        vanishing.reset(after)
        listed.append(is_listed())
    assert not listed[0], "nothing was read of it"
    assert listed == sorted(listed), "once enough was read of it, it is listed"
