"""What a user can get wrong, or a machine can lack: one sentence, the right exit code, everything as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from waiting import line_of, until

from aitop.sources import procfs
from aitop.sources.ring.reader import find_ring
from aitop.sources.stacks import spy

pytestmark = [pytest.mark.e2e, pytest.mark.one_by_one]

AITOP = [sys.executable, "-m", "aitop"]
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
# It computes, but not so much that others get no core.
BUSY = "import time; print('up', flush=True)\nwhile True: sum(range(9999)); time.sleep(0.001)"


@pytest.fixture
def diagnosed(aitop):
    """`diagnosed(pid, *flags, seconds="1s")` is the command, ended."""
    return lambda pid, *flags, seconds="1s", **how: aitop(
        "diagnose", "--pid", pid, "--for", seconds, *flags, timeout=120, **how
    )


@pytest.fixture
def diagnosing(start):
    """`diagnosing(pid, *flags)` is a diagnosis that goes on until something ends it, at the latest the test."""

    def run(pid, *flags):
        command = [*AITOP, "diagnose", "--pid", str(pid), "--for", "5m", *flags]
        return start(command, wait=False, stderr=subprocess.PIPE)

    return run


def wait_until(watching, condition):
    """Until the condition holds, while it is watched."""

    def holds():
        assert watching.poll() is None, watching.stderr.read()
        return condition()

    until(holds, pause=0.05)


def state(pid):
    return procfs.stat(pid).state


def one_sentence(done, code, *words):
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("aitop: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def a_pid_of_nobody():
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


@pytest.mark.parametrize("verb", ["diagnose", "record"])
def test_no_such_process(verb, tmp_path, aitop):
    arguments = ["-o", str(tmp_path / "out")] if verb == "record" else []
    done = aitop(verb, "--pid", a_pid_of_nobody(), *arguments)
    one_sentence(done, 3, "there is no process", "run aitop without arguments")
    assert list(tmp_path.iterdir()) == []


def test_not_a_python_process(start, diagnosed):
    sleep = start(["/bin/sh", "-c", "echo up; exec sleep 600"])
    one_sentence(diagnosed(sleep.pid), 3, f"process {sleep.pid} (sleep) is not a Python process")
    assert sleep.poll() is None


def test_python_without_torch_is_watched_as_far_as_it_goes(start, diagnosed):
    busy = start(BUSY)
    done = diagnosed(busy.pid, "--format", "json", seconds="2s")
    assert done.returncode in (0, 5), done.stderr
    hook = json.loads(done.stdout)["sources"]["hook"]
    assert hook["state"] != "ok"
    assert "torch" in hook["reason"]
    assert busy.poll() is None


def test_a_zombie(diagnosed):
    zombie = subprocess.Popen(["true"])
    until(lambda: state(zombie.pid) == "Z")
    one_sentence(diagnosed(zombie.pid), 3, "has ended", "zombie")
    zombie.wait()


def test_a_stopped_process_is_reported_and_stays_stopped(start, diagnosed):
    sleeper = start(SLEEPER)
    os.kill(sleeper.pid, signal.SIGSTOP)
    done = diagnosed(sleeper.pid, "--fail-on", "stalled", "--format", "json")
    assert done.returncode == 1, done.stderr
    first = json.loads(done.stdout)["verdicts"][0]
    assert (first["id"], first["subtype"], first["processes"]) == ("hang", "stopped", [sleeper.pid])
    assert first["title"] == f"process {sleeper.pid} is stopped by a signal or a debugger"
    assert first["evidence"] == [f"process {sleeper.pid}: [T]"] or "do_signal_stop" in first["evidence"][0]
    assert first["fixes"][0]["text"] == f"let it go on: kill -CONT {sleeper.pid}"
    assert state(sleeper.pid) == "T"


def needs_root():
    if os.geteuid() != 0:
        pytest.skip("only root can become another user or give up a capability")


NOBODY = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}


def can_run(command):
    try:
        return subprocess.run(command, capture_output=True, check=False, **NOBODY).returncode == 0
    except OSError:
        return False


def test_another_users_process(start, diagnosed):
    needs_root()
    if not can_run([*AITOP, "--version"]):
        pytest.skip("another user cannot run aitop from this folder")
    sleeper = start(SLEEPER)
    one_sentence(diagnosed(sleeper.pid, **NOBODY), 4, "belongs to user root", "run aitop as root or with sudo")
    assert sleeper.poll() is None


def test_another_users_process_for_a_root_that_may_not_ptrace(start, diagnosed):
    needs_root()
    python = "/usr/bin/python3"
    if shutil.which("setpriv") is None or not can_run([python, "--version"]):
        pytest.skip("needs setpriv and a Python that another user can run")
    sleeper = start([python, "-c", SLEEPER], **NOBODY)
    without_rights = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
    done = diagnosed(sleeper.pid, before=without_rights)
    one_sentence(done, 4, f"process {sleeper.pid} belongs to", "run aitop as")
    assert sleeper.poll() is None


@pytest.fixture
def no_nvml(tmp_path):
    """An environment in which NVML cannot be loaded, whatever the machine has."""
    folder = tmp_path / "no-nvml"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").write_bytes(b"")
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def test_without_ptrace_and_nvml_it_goes_on_with_what_is_left(slow_loader, no_nvml, diagnosed):
    needs_root()
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    tied = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
    done = diagnosed(slow_loader.pid, "--format", "json", seconds="3s", before=tied, env=no_nvml)
    assert done.returncode in (0, 5), done.stderr
    report = json.loads(done.stdout)
    assert report["sources"]["host"] == {"state": "ok"}
    for name in ("stacks", "hook"):
        assert report["sources"][name]["state"] == "denied"
        assert report["sources"][name]["reason"]
        assert report["sources"][name]["remedy"]
    assert report["sources"]["gpu"]["state"] == "absent"
    assert "NVIDIA" in report["sources"]["gpu"]["reason"]
    roles = [process["role"] for process in report["target"]["processes"]]
    assert roles.count("loader-worker") == 2
    assert slow_loader.alive()


def test_without_py_spy_it_goes_on_with_the_hook(slow_loader, watched, monkeypatch):
    monkeypatch.setattr(spy, "sys", SimpleNamespace(executable="/nowhere/python"))
    monkeypatch.setattr(spy.shutil, "which", lambda name: None)
    missing = {"state": "absent", "reason": "py-spy is not installed", "remedy": "pip install py-spy"}

    def check(report):
        assert report["sources"]["stacks"] == missing
        assert report["sources"]["hook"]["state"] == "ok"
        assert report["step"]["count"] > 0 and report["verdicts"]

    watched(slow_loader.pid, check)


def test_a_process_that_ends_while_it_is_watched(start, diagnosing):
    sleeper = start(SLEEPER)
    watching = diagnosing(sleeper.pid, "--no-gpu", "--no-stacks", "--no-hook")
    wait_until(watching, lambda: len(os.listdir(f"/proc/{watching.pid}/task")) > 1)
    sleeper.kill()
    sleeper.wait()
    out, err = watching.communicate(timeout=60)
    one_sentence(
        subprocess.CompletedProcess((), watching.returncode, out, err),
        *(3, f"process {sleeper.pid} has ended", "before anything could be said"),
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_diagnosis_leaves_no_hook(slow_loader, diagnosing, number):
    watching = diagnosing(slow_loader.pid)
    wait_until(watching, lambda: find_ring(slow_loader.pid))
    watching.send_signal(number)
    out, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (128 + number, "")
    # After Ctrl-C there is a report, if enough was seen.
    assert out == "" or number == signal.SIGINT
    assert find_ring(slow_loader.pid) is None
    assert slow_loader.alive()


def test_a_training_run_that_ends_while_it_is_watched_is_still_reported(slow_loader, diagnosing):
    """The last one that needs the run: it ends it."""
    watching = diagnosing(slow_loader.pid, "--format", "json")
    wait_until(watching, lambda: find_ring(slow_loader.pid))
    slow_loader.wait_steps(slow_loader.steps() + 50)
    slow_loader.stop()
    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 0, err
    report = json.loads(out)
    assert report["target"]["ended"]
    assert report["verdicts"][0]["id"] == "input-bound"


# The call clone3, by which one may say which pid a child gets.
RUN_AS = """
import ctypes, os, signal, sys
wanted = ctypes.c_int(int(sys.argv[1]))
# flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup
words = (ctypes.c_uint64 * 11)(0, 0, 0, 0, int(signal.SIGCHLD), 0, 0, 0, ctypes.addressof(wanted), 1, 0)
libc = ctypes.PyDLL(None, use_errno=True)
child = libc.syscall(435, ctypes.byref(words), ctypes.c_size_t(ctypes.sizeof(words)))
if child == 0:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[2]])
print("failed", ctypes.get_errno(), flush=True) if child < 0 else os.waitpid(child, 0)
"""


def may_choose_pids():
    """Whether a process may be started with a pid of our choice."""
    if os.uname().machine != "x86_64":
        return False
    unused = a_pid_of_nobody()
    done = subprocess.run([sys.executable, "-c", RUN_AS, str(unused), ""], capture_output=True, text=True, check=False)
    return done.returncode == 0 and "failed" not in done.stdout


def test_a_pid_that_another_process_got_is_not_watched_on(start, diagnosing):
    if not may_choose_pids():
        pytest.skip("the pid of a process cannot be chosen here")
    first = start(BUSY)
    watching = diagnosing(first.pid, "--no-stacks", "--no-hook")
    wait_until(watching, lambda: len(os.listdir(f"/proc/{watching.pid}/task")) > 1)
    first.kill()
    first.wait()
    second = start([sys.executable, "-c", RUN_AS, str(first.pid), BUSY], wait=False)
    if line_of(second) != "up\n":
        pytest.skip("another process got the pid")
    _, complaint = watching.communicate(timeout=60)
    assert state(first.pid) in "RS" and second.poll() is None, "the stranger is left alone"
    assert watching.returncode == 3
    assert str(first.pid) in complaint and complaint.count("\n") == 1
