"""No verb and nothing that it starts makes a socket, whatever its kind: the kernel is asked for each one.

What the watched run itself does is its own affair: it does not count.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from socket_watch import CALLS, NOT_POSSIBLE, SocketWatch
from terminal import OnTerminal
from waiting import until

from aitop.cli import VERBS

pytestmark = pytest.mark.e2e

AITOP = [sys.executable, "-m", "aitop"]
RECORDING = str(Path(__file__).parents[1] / "recordings" / "healthy.jsonl.gz")
RUN = str(Path(__file__).parents[1] / "robustness" / "rights_run.py")
# Connects to the address that the user gives it.
TO_AN_ADDRESS = {"fleet"}
# Those that need no run, with their arguments.
WITHOUT_RUN = {
    "explain": ["input-bound"],
    "config": [],
    "export": ["--print", "alerts"],
    "replay": [RECORDING, "--format", "json"],
    "compare": [RECORDING, RECORDING],
}
WITH_RUN = {
    "doctor": ["--pid", "{pid}"],
    "diagnose": ["--pid", "{pid}", "--for", "6s"],
    "record": ["--pid", "{pid}", "-o", "{folder}/kept.jsonl.gz", "--for", "4s"],
    "profile": ["--pid", "{pid}", "-o", "{folder}/trace.json"],
}
ON_TERMINAL = {"run": ["--", sys.executable, RUN], "demo": ["slow-loader"], "replay": [RECORDING]}
# Where the system has that service, the C library asks it for the names of users.
NAMES_OF_USERS = {"socket AF_UNIX", "connect /var/run/nscd/socket"}
# Of processes of a run that aitop has started.
RUNS_OWN = re.compile(r"by \S+ (?:-\S+ )*\S*(?:workloads|rights_run\.py)|multiprocessing")


@pytest.fixture
def watch():
    if not CALLS:
        pytest.skip("the calls of this processor are not known")
    watch = SocketWatch()
    yield watch
    watch.close()


def sockets(watch):
    """What was done with sockets, the run's own left out, once all that was started has ended."""
    watch.close()
    return [note for note in watch.notes if not RUNS_OWN.search(note)]


def test_every_verb_is_tried():
    assert set(VERBS) <= {*WITHOUT_RUN, *WITH_RUN, *ON_TERMINAL, *TO_AN_ADDRESS}


def test_sockets_of_children_are_noticed(watch):
    """Abstract ones, too."""
    code = (
        "import os, socket, subprocess, sys\n"
        "socket.socket(socket.AF_UNIX).bind('\\0aitop-test')\n"
        "subprocess.run([sys.executable, '-c', 'import socket; socket.socket().connect_ex((\"127.0.0.1\", 9))'])\n"
    )
    done = subprocess.run(watch.command([sys.executable, "-c", code]), check=False)
    if done.returncode == NOT_POSSIBLE:
        pytest.skip("this system lets nobody watch system calls so")
    notes = [note.partition(" by ")[0] for note in sockets(watch)]
    assert notes == [
        "socket AF_UNIX",
        "bind @aitop-test",
        "socket AF_INET",
        "connect AF_INET 00097f0000010000000000000000",
    ]


def quiet(watch, words):
    done = subprocess.run(watch.command([*AITOP, *words]), capture_output=True, text=True, check=False)
    if done.returncode == NOT_POSSIBLE:
        pytest.skip("this system lets nobody watch system calls so")
    assert sockets(watch) == []
    return done


@pytest.mark.parametrize("verb", [verb for verb in WITHOUT_RUN if verb in VERBS])
def test_a_verb_without_a_run(watch, verb):
    done = quiet(watch, [verb, *WITHOUT_RUN[verb]])
    assert done.returncode == 0 and done.stdout, done.stderr


def test_fleet_goes_to_the_address_that_was_given_and_nowhere_else(watch):
    words = [*AITOP, "fleet", "--prometheus", "http://127.0.0.1:9", "--once"]
    done = subprocess.run(watch.command(words), capture_output=True, text=True, check=False)
    if done.returncode == NOT_POSSIBLE:
        pytest.skip("this system lets nobody watch system calls so")
    asked = {note.partition(" by ")[0] for note in sockets(watch)}
    assert asked == {"socket AF_INET", "connect AF_INET 00097f0000010000000000000000"}, done.stderr


@pytest.mark.slow
def test_the_list_of_runs_to_choose_from(watch, slow_loader):
    slow_loader.wait_steps(2)
    with OnTerminal(watch.command(AITOP)) as screen:
        # Where pytest has loaded torch, the list has pytest instead, as it started that run.
        assert screen.until(" torch ", 60.0), screen.screen.text()
        screen.press(b"q")
        assert screen.wait(20.0) is not None
    assert {note.partition(" by ")[0] for note in sockets(watch)} <= NAMES_OF_USERS


@pytest.mark.slow
def test_an_exporter_into_a_file(watch, slow_loader, start, tmp_path):
    slow_loader.wait_steps(2)
    file = tmp_path / "jobs.prom"
    words = ["export", "--pid", str(slow_loader.pid), "--textfile", str(file), "--every", "2s"]
    exporter = start(watch.command([*AITOP, *words]), wait=False, stderr=subprocess.PIPE)

    def written():
        return exporter.poll() is not None or (file.exists() and "aitop_verdict_share" in file.read_text())

    until(written, pause=0.2)
    if exporter.poll() is not None:
        assert exporter.returncode == NOT_POSSIBLE, exporter.stderr.read()
        pytest.skip("this system lets nobody watch system calls so")
    exporter.send_signal(signal.SIGINT)
    exporter.wait(30.0)
    assert {note.partition(" by ")[0] for note in sockets(watch)} <= NAMES_OF_USERS


@pytest.mark.slow
@pytest.mark.parametrize("verb", WITH_RUN)
def test_a_verb_with_a_run(watch, verb, slow_loader, tmp_path):
    slow_loader.wait_steps(2)
    words = [word.format(pid=slow_loader.pid, folder=tmp_path) for word in WITH_RUN[verb]]
    done = quiet(watch, [verb, *words])
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_screen_and_its_children(watch, slow_loader):
    """Stacks, the hook, a profile, all stacks at once, native frames."""
    slow_loader.wait_steps(2)
    with OnTerminal(watch.command([*AITOP, "--pid", str(slow_loader.pid)])) as screen:
        if screen.until("host●.* stacks●.* hook●", 60.0) is None and screen.code == NOT_POSSIBLE:
            pytest.skip("this system lets nobody watch system calls so")
        assert screen.until("host●.* stacks●.* hook●", 1.0), screen.screen.text()
        back = r"(?s)\A(?!.*esc back).*hook●"
        for keys, shown in (
            (b"S", "Stacks"), (b"\x1b", back), (b"h", "read at "), (b"n", "below Python, "),
            (b"\x1b", back), (b"\r", "Evidence"), (b"\x1b", back), (b"p", "Profile of"), (b"\x1b", back),
        ):  # fmt: skip
            screen.press(keys)
            assert screen.until(shown, 60.0), (keys, screen.screen.text())
        screen.press(b"d")
        assert screen.until("hook○", 20.0), screen.screen.text()
        screen.press(b"q")
        assert screen.wait(20.0) == 0
    assert sockets(watch) == []


@pytest.fixture
def ended_runs():
    """Ends the runs that the test has left: `aitop run` leaves them to go on."""
    before = set(psutil.pids())
    yield
    for process in psutil.process_iter(["cmdline"]):
        if process.pid not in before and RUN in (process.info["cmdline"] or ()):
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ON_TERMINAL)
def test_the_screen_of_a_run_that_aitop_starts_or_replays(watch, ended_runs, verb):
    with OnTerminal(watch.command([*AITOP, verb, *ON_TERMINAL[verb]])) as screen:
        assert screen.until("host●.* stacks●.* hook●", 60.0), screen.screen.text()
        screen.press(b"q")
        assert screen.wait(30.0) is not None
    assert sockets(watch) == []
