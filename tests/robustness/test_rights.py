"""What the doctor says of stacks and hook is what then happens, with more and with fewer rights.

Every setting there is, and the whole program in it: rights.py.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from attach_targets import torch_stand_in
from rights_settings import FILTERED, without

pytestmark = pytest.mark.e2e

TESTS = str(Path(__file__).parents[1])
LOOP = "import time\nprint(flush=True)\nwhile True: time.sleep(0.01)"
CLOSE = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
# What the doctor says, then the thing itself.
ASK_AND_DO = """
import json, sys
network = []
def watch(event, arguments):
    # The lock among monitors is a name in the kernel (AF_UNIX, abstract).
    ours = (event, *map(str, arguments[1:2])) == ("socket.__new__", "1") or "aitop-attach" in str(arguments[-1:])
    if event.startswith("socket.") and not ours:
        network.append(event)
sys.addaudithook(watch)
sys.path.insert(0, sys.argv[2])
from attach_targets import STAND_IN
from aitop.attach.refusal import AttachRefused
from aitop.attach.entrance import deliver
from aitop.commands.doctor import examine
from aitop.sources.source import SourceError
from aitop.sources.stacks.dump import take_dump
pid = int(sys.argv[1])
said = {check.name: check.state for check in examine(pid)}
found = {}
try:
    found["stacks"] = bool(take_dump([pid], script=None).threads)
except SourceError as error:
    found["stacks"] = False
try:
    found["hook"] = deliver(pid, "install", STAND_IN, timeout=5).answer == "installed"
    deliver(pid, "remove", STAND_IN, timeout=5)
except AttachRefused:
    found["hook"] = False
print(json.dumps([{name: said.get(name) == "works" for name in found}, found, network]))
"""
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}


@pytest.fixture
def run():
    """`run(python, code)` starts what passes for a program with torch."""
    started = []
    folder = tempfile.TemporaryDirectory()
    Path(folder.name).chmod(0o755)

    def start(python, code, **more):
        command = [python, "-c", torch_stand_in(Path(folder.name), code)]
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/", **more)
        except PermissionError as error:
            pytest.skip(f"no such run here: {error}")
        started.append(process)
        if not process.stdout.readline():
            errors = process.communicate()[1].decode()
            # What another user may not read or run.
            if "Permission" not in errors:
                pytest.fail(f"the run did not start: {errors[-500:]}")
            pytest.skip(f"no such run here: {errors[-200:]}")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    folder.cleanup()


def said_and_found(process, before=(), names=("stacks", "hook")):
    """What the doctor said of stacks and hook, and what was so."""
    command = [*before, sys.executable, "-c", ASK_AND_DO, str(process.pid), TESTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert process.poll() is None
    said, found, network = json.loads(done.stdout)
    assert {name: said[name] for name in names} == {name: found[name] for name in names}
    assert network == []
    return found


def command_with(*before):
    """The words of that command, to put before another; skips where such rights cannot be had."""
    if (
        shutil.which(before[0]) is None
        or subprocess.run([*before, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("not allowed here")
    return before


def test_a_process_that_is_closed(run):
    found = said_and_found(run(sys.executable, CLOSE + LOOP))
    if os.geteuid() != 0:
        assert found == {"stacks": False, "hook": False}


def test_no_file_may_be_made(run):
    # One look at the stacks comes through a pipe; the windows that are shown do not.
    found = said_and_found(run(sys.executable, LOOP), command_with("prlimit", "--fsize=0:0"), names=("hook",))
    assert not found["hook"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter is for x86-64")
def test_a_filter_that_refuses_ptrace(run):
    before = command_with(sys.executable, *FILTERED[1:])
    found = said_and_found(run(sys.executable, LOOP), before)
    assert not found["hook"] or sys.version_info >= (3, 14)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be without a capability that it had")
@pytest.mark.parametrize(
    ("missing", "found"),
    [
        ((), {"stacks": True, "hook": True}),
        (("chown",), {"stacks": True, "hook": False}),
        # py-spy could read it still; aitop, which may not read the rest, refuses the process.
        (("dac_override", "dac_read_search"), {"hook": False}),
    ],
)
def test_root_on_a_users_process(run, missing, found):
    python = "/usr/bin/python3"
    if not os.path.exists(python):
        pytest.skip("needs a Python that other users can run")
    before = command_with(*without(*missing)) if missing else ()
    done = said_and_found(run(python, LOOP, **NOBODY), before, names=tuple(found))
    assert {name: done[name] for name in found} == found
