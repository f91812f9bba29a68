"""`aitop doctor` on real processes, with other rights, in a namespace of its own and on faked drivers."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from functools import partial

import pytest
from rights_settings import FILTERED

pytestmark = pytest.mark.e2e

SLEEP = "import time; print(flush=True); time.sleep(600)"
FRONT = """
from werkzeug import serving
server = serving.make_server("127.0.0.1", 0, lambda environ, start_response: [])
print(flush=True)
server.serve_forever()
"""
AS_NOBODY = "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534); " + SLEEP


@pytest.fixture
def doctor(aitop):
    return partial(aitop, "doctor")


def lines_of(done):
    assert done.stderr == ""
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_the_text_speaks_of_everything_and_the_process_is_as_before(start, doctor):
    target = start(SLEEP)
    done = doctor("--pid", target.pid)
    assert done.returncode == 1  # no framework in it
    names = "python ptrace user yama capability seccomp container memfd attach py-spy terminal nvml gpm mig"
    for name in (*names.split(), "process", "access", "framework", "stacks", "hook", "cgroup"):
        assert f"  {name} " in done.stdout
    assert "neither torch, JAX nor TensorFlow" in done.stdout
    assert done.stderr == ""
    assert target.poll() is None


def test_a_machine_without_a_gpu_and_a_terminal_is_well(doctor):
    done = doctor("--format", "json")
    lines = lines_of(done)
    if lines["ptrace"]["state"] != "works" or lines["nvml"]["state"] == "does-not":
        pytest.skip("something is at fault on this machine")
    assert lines["terminal"]["state"] == "not-needed"
    assert done.returncode == 0
    assert json.loads(done.stdout)["ok"] is True


@pytest.mark.parametrize(
    ("scenario", "nvml", "gpm", "mig"),
    [
        ("mig", "works", None, "works"),
        ("old-driver", "works", "not-needed", "not-needed"),
        ("include base-h200.txt\nreturn nvmlGpmSampleGet 4\n", "works", "does-not", "not-needed"),
    ],
)
def test_drivers(fake_nvml, doctor, scenario, nvml, gpm, mig):
    lines = lines_of(doctor("--format", "json", env=fake_nvml(scenario)))
    assert lines["nvml"]["state"] == nvml, lines["nvml"]
    assert gpm in (None, lines["gpm"]["state"]), lines["gpm"]
    assert lines["mig"]["state"] == mig, lines["mig"]


def test_a_process_that_is_not_there_is_a_fault(doctor):
    ended = subprocess.Popen(["true"])
    ended.wait()
    done = doctor("--pid", ended.pid, "--format", "json")
    assert done.returncode == 1
    assert lines_of(done)["process"]["state"] == "does-not"


def tied(*words):
    """The command that runs another without these rights; skips where it does not."""
    if os.geteuid() != 0 or shutil.which(words[0]) is None:
        pytest.skip("needs root")
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("not allowed here")
    return words


def test_root_without_the_capability_is_told_so(start, doctor):
    before = tied("setpriv", "--bounding-set=-sys_ptrace")
    theirs = start(AS_NOBODY)
    done = doctor("--pid", theirs.pid, "--format", "json", before=before)
    lines = lines_of(done)
    assert done.returncode == 1
    assert lines["ptrace"]["state"] == "works"  # root's own processes
    assert lines["capability"]["state"] == "not-needed"
    assert "lacks CAP_SYS_PTRACE" in lines["access"]["reason"]
    assert "SYS_PTRACE" in lines["access"]["remedy"]
    assert lines["hook"]["state"] == "does-not"


def test_in_namespaces_of_its_own(doctor):
    before = tied("unshare", "--pid", "--fork", "--mount-proc", "setpriv", "--bounding-set=-sys_ptrace,-sys_admin")
    lines = lines_of(doctor("--format", "json", before=before))
    assert "only the processes in it are seen" in lines["container"]["reason"]
    assert lines["ptrace"]["state"] == "works"


def test_a_web_server_needs_no_framework(start, doctor):
    pytest.importorskip("werkzeug")
    lines = lines_of(doctor("--pid", start(FRONT).pid, "--format", "json"))
    assert lines["framework"]["state"] == "not-needed"
    assert "the requests that werkzeug" in lines["framework"]["reason"]
    if lines["ptrace"]["state"] != "works":
        pytest.skip("processes may not be entered here")
    assert lines["hook"]["state"] == "works", lines["hook"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of the calls are those of x86-64")
def test_under_a_filter_that_refuses_ptrace(start, doctor):
    target = start(SLEEP)
    before = [sys.executable, *FILTERED[1:]]
    done = doctor("--pid", target.pid, "--format", "json", before=before)
    if done.returncode == 77:
        pytest.skip("filters are not allowed here")
    lines = lines_of(done)
    assert "seccomp filter forbids it" in lines["ptrace"]["reason"]
    assert lines["seccomp"]["state"] == "does-not"
    assert lines["stacks"]["state"] == "works"  # py-spy reads the memory's file
