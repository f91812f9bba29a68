"""Which processes can be watched, and why others cannot."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import msgspec
import pytest
from process_trees import SLEEP
from waiting import until

from aitop.errors import NoTargetError, NotPermittedError
from aitop.sources import procfs
from aitop.sources.access import read_confinement
from aitop.sources.host.target import look, still_there

pytestmark = pytest.mark.e2e


def state(pid: int) -> str | None:
    stat = procfs.stat(pid)
    return None if stat is None else stat.state


def test_a_target(start, script, tmp_path):
    path = script(SLEEP)
    process = start([sys.executable, "-u", "train.py", "--lr", "1"], cwd=tmp_path)
    target = look(process.pid)
    assert target.command == f"{sys.executable} -u train.py --lr 1"
    assert target.script == path
    assert target.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert still_there(target) is None
    process.kill()
    process.wait()
    assert still_there(target) == f"process {process.pid} has ended"


def test_a_module_and_code_as_target(start, script, tmp_path):
    package = tmp_path / "training"
    package.mkdir()
    (package / "__main__.py").write_text(SLEEP)
    module = start([sys.executable, "-m", "training"], cwd=tmp_path)
    assert look(module.pid).script == str(package / "__main__.py")
    assert look(start(SLEEP).pid).script is None


def test_a_shell_around_a_python_is_a_target(start, script):
    path = script(SLEEP)
    process = start(["sh", "-c", f"'{sys.executable}' '{path}'; true"])
    target = look(process.pid)
    assert (target.pid, target.script) == (process.pid, path)


def test_a_pid_that_changed_hands(start):
    target = look(start(SLEEP).pid)
    earlier = msgspec.structs.replace(target, started=target.started - 100)
    assert "now belongs to another process" in still_there(earlier)


def refusal(pid: int) -> str:
    with pytest.raises(NoTargetError) as caught:
        look(pid)
    return str(caught.value)


def test_what_cannot_be_watched(start):
    assert "no process with pid 999999999" in refusal(999999999)
    assert "no process with pid 0" in refusal(0) and "no process with pid -5" in refusal(-5)
    assert "aitop itself" in refusal(os.getpid())
    sleeper = start(["sleep", "60"], wait=False)
    until(lambda: os.readlink(f"/proc/{sleeper.pid}/exe").endswith(("sleep", "coreutils", "busybox")))
    assert f"process {sleeper.pid} (sleep) is not a Python process" in refusal(sleeper.pid)


def test_a_zombie(start):
    process = start(SLEEP)
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: state(process.pid) == "Z")
    assert "zombie" in refusal(process.pid)


def test_a_stopped_process_says_how_to_continue_and_stays_stopped(start):
    process = start(SLEEP)
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: state(process.pid) == "T")
    assert f"kill -CONT {process.pid}" in refusal(process.pid)
    assert state(process.pid) == "T"
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: state(process.pid) == "S")
    assert look(process.pid).pid == process.pid


def test_a_thread_names_its_process(start):
    process = start(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    thread = next(int(task) for task in os.listdir(f"/proc/{process.pid}/task") if int(task) != process.pid)
    assert f"use --pid {process.pid}" in refusal(thread)


def test_a_thread_of_the_kernel():
    if not os.path.exists("/proc/2/stat") or _readable("/proc/2/exe"):
        pytest.skip("no kernel threads visible here")
    assert "thread of the kernel" in refusal(2)


def _readable(link: str) -> bool:
    try:
        return bool(os.readlink(link))
    except OSError:
        return False


def test_another_users_process(start, monkeypatch):
    process = start(SLEEP)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    ours = msgspec.structs.replace(read_confinement(), uid=12345, capabilities=0)
    monkeypatch.setattr("aitop.sources.access.read_confinement", lambda: ours)
    monkeypatch.setattr("aitop.sources.procfs.environ", lambda pid: None)
    with pytest.raises(NotPermittedError, match="aitop runs as 12345: run aitop as "):
        look(process.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process_for_real(start):
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv")
    process = start(SLEEP)
    code = (
        f"from aitop.sources.host.target import look\ntry: look({process.pid})\n"
        "except Exception as e: print(type(e).__name__, e)"
    )
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    if "Permission denied" in done.stderr or "No module" in done.stderr:
        pytest.skip("another user cannot run this interpreter")
    assert done.stdout.startswith("NotPermittedError"), done.stdout + done.stderr
