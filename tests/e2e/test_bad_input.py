"""What a user can get wrong, or a machine can lack: one sentence, the right exit code, everything as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.one_by_one]

AITOP = [sys.executable, "-m", "aitop"]
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
BUSY = "print('up', flush=True)\nwhile True: sum(range(1000))"


@pytest.fixture
def diagnosed(aitop):
    """`diagnosed(pid, *flags, seconds="1s")` is the command, ended."""
    return lambda pid, *flags, seconds="1s", **how: aitop(
        "diagnose", "--pid", pid, "--for", seconds, *flags, timeout=120, **how
    )


def diagnosing(pid, *more):
    """A diagnosis that goes on until something ends it."""
    command = [*AITOP, "diagnose", "--pid", str(pid), "--for", "5m", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(watching, true):
    deadline = time.monotonic() + 60
    while not true():
        assert watching.poll() is None, watching.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


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
    deadline = time.monotonic() + 60
    while state(zombie.pid) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
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
    said = json.loads(done.stdout)
    assert said["sources"]["host"] == {"state": "ok"}
    for name in ("stacks", "hook"):
        assert said["sources"][name]["state"] == "denied"
        assert said["sources"][name]["reason"]
        assert said["sources"][name]["remedy"]
    assert said["sources"]["gpu"]["state"] == "absent"
    assert "NVIDIA" in said["sources"]["gpu"]["reason"]
    roles = [process["role"] for process in said["target"]["processes"]]
    assert roles.count("loader-worker") == 2
    assert slow_loader.alive()


def test_without_py_spy_it_goes_on_with_the_hook(slow_loader):
    hidden = (
        "import shutil, sys\nfrom aitop.sources.stacks import spy\n"
        "spy.sys = type('NoPython', (), {'executable': '/nowhere/python'})\nspy.shutil.which = lambda name: None\n"
        "from aitop.cli import run\nsys.exit(run(sys.argv[1:]))\n"
    )
    command = [
        sys.executable,
        "-c",
        hidden,
        "diagnose",
        "--pid",
        str(slow_loader.pid),
        "--for",
        "5s",
        "--format",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    sources = json.loads(done.stdout)["sources"]
    assert sources["stacks"] == {"state": "absent", "reason": "py-spy is not installed", "remedy": "pip install py-spy"}
    assert sources["hook"]["state"] == "ok"


def test_a_process_that_ends_while_it_is_watched(start):
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
def test_an_interrupted_diagnosis_leaves_no_hook(slow_loader, number):
    watching = diagnosing(slow_loader.pid)
    wait_until(watching, lambda: hooked(slow_loader.pid))
    watching.send_signal(number)
    out, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (128 + number, "")
    # After Ctrl-C there is a report, if enough was seen.
    assert out == "" or number == signal.SIGINT
    assert not hooked(slow_loader.pid)
    assert slow_loader.alive()


def test_a_training_run_that_ends_while_it_is_watched_is_still_reported(slow_loader):
    """The last one that needs the run: it ends it."""
    watching = diagnosing(slow_loader.pid, "--format", "json")
    wait_until(watching, lambda: hooked(slow_loader.pid))
    slow_loader.wait_steps(slow_loader.steps() + 50)
    slow_loader.stop()
    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 0, err
    said = json.loads(out)
    assert said["target"]["ended"]
    assert said["verdicts"][0]["id"] == "input-bound"


def hooked(pid):
    """Whether the ring of the hook is in the process."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "aitop" in os.readlink(link):
                return True
        except OSError:
            continue
    return False


LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def run_as(pid):
    """A busy Python that gets that very pid; None where others were quicker too often."""
    for _ in range(50):
        LAST_PID.write_text(str(pid - 1))
        child = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.DEVNULL, start_new_session=True)
        if child.pid == pid:
            return child
        child.kill()
        child.wait()
    return None


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="the next pid cannot be chosen here")
def test_a_pid_that_another_process_got_is_not_watched_on(start):
    first = start(BUSY)
    watching = diagnosing(first.pid, "--no-stacks", "--no-hook")
    wait_until(watching, lambda: len(os.listdir(f"/proc/{watching.pid}/task")) > 1)
    first.kill()
    first.wait()
    second = run_as(first.pid)
    try:
        _, complaint = watching.communicate(timeout=60)
        if second is None:
            pytest.skip("another process got the pid each time")
        assert second.poll() is None, "the stranger is left alone"
    finally:
        if second is not None:
            second.kill()
            second.wait()
    assert watching.returncode == 3
    assert str(first.pid) in complaint and complaint.count("\n") == 1
