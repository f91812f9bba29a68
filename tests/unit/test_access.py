"""Which of the kernel's conditions keeps aitop from looking into a process."""

from __future__ import annotations

import errno
import os
import resource

import pytest
from msgspec.structs import replace

from aitop.commands.doctor import rights as doctors_rights
from aitop.commands.doctor.rights import read_confinement
from aitop.sources.access import condition
from aitop.sources.process_status import DAC_OVERRIDE, SYS_PTRACE, ProcStatus, parse_status
from aitop.sources.stacks.spy import MOST_MEMORY, Spy, explain

PLAIN = parse_status(42, "Uid:\t4141\t4141\t4141\t4141\n", 1)
ROOT = replace(PLAIN, uids=(0, 0, 0, 0))
STRANGER = replace(PLAIN, uids=(4242, 4242, 4242, 4242))
HALF = replace(PLAIN, uids=(4242, 4242, 4141, 4242))
BOUND = replace(PLAIN, permitted=1 << 10)


def capable(status: ProcStatus, capabilities: int = SYS_PTRACE | DAC_OVERRIDE) -> ProcStatus:
    return replace(status, capabilities=capabilities, permitted=capabilities)


@pytest.mark.parametrize(
    ("ours", "theirs", "yama", "reason", "remedy"),
    [
        (PLAIN, STRANGER, 0, "belongs to user 4242, and aitop runs as 4141", "run aitop as 4242 or with sudo"),
        (PLAIN, HALF, 0, "belongs to user 4242", "run aitop as 4242"),
        (PLAIN, ROOT, 1, "belongs to user root", "run aitop as root or with sudo"),
        (ROOT, PLAIN, 0, "root lacks CAP_SYS_PTRACE", "--cap-add SYS_PTRACE"),
        (capable(ROOT, SYS_PTRACE), PLAIN, 0, "root lacks CAP_DAC_OVERRIDE", "--cap-add DAC_OVERRIDE"),
        (capable(PLAIN, SYS_PTRACE), ROOT, 0, "belongs to user root", "run aitop as root or with sudo"),
        (PLAIN, PLAIN, 1, "only parents", "sysctl kernel.yama.ptrace_scope=0"),
        (PLAIN, PLAIN, 2, "only root", "run aitop with sudo"),
        (capable(PLAIN), PLAIN, 3, "until a reboot", "aitop run"),
        (PLAIN, BOUND, 0, "capabilities that aitop lacks", "sudo"),
        (ROOT, replace(ROOT, permitted=1), 0, "capabilities that aitop lacks", "--cap-add SYS_PTRACE"),
        (PLAIN, replace(PLAIN, inner_pid=7), 0, "in a container, where it is 7", "inside of that container"),
        (replace(PLAIN, seccomp=2), PLAIN, 0, "a seccomp filter", "SYS_PTRACE"),
        (replace(capable(PLAIN), seccomp=2), STRANGER, 1, "a seccomp filter", "SYS_PTRACE"),
        (PLAIN, PLAIN, 0, "a security module", "sudo"),
        (PLAIN, None, 0, "a security module", "sudo"),
    ],
)
def test_the_condition_that_failed_is_named(
    ours: ProcStatus, theirs: ProcStatus | None, yama: int, reason: str, remedy: str
) -> None:
    said, mended_by = condition(42, ours, theirs, yama)
    assert reason in said and remedy in mended_by


@pytest.mark.parametrize(
    ("closed", "boxed", "reason"),
    [
        (True, False, "closed to all but root"),
        (False, True, "outside of the user namespace"),
        (True, True, "closed to all but root"),
    ],
)
def test_what_the_status_does_not_tell(closed: bool, boxed: bool, reason: str) -> None:
    said, mended_by = condition(42, PLAIN, PLAIN, 0, closed=closed, boxed=boxed)
    assert reason in said and mended_by


def test_a_trial_that_cannot_be_made_names_what_does_not_start():
    here = read_confinement("/nonexistent", {})
    [said, *_] = doctors_rights.checks(here, PermissionError(errno.EACCES, "Permission denied", "/root/bin/python"))
    assert (said.state, said.reason) == ("does-not", "it cannot be tried: /root/bin/python: Permission denied")
    [said, *_] = doctors_rights.checks(here, FileNotFoundError(errno.ENOENT, "the path of Python is not known"))
    assert said.reason == "it cannot be tried: the path of Python is not known"


def test_a_python_that_py_spy_does_not_know_asks_for_a_newer_one():
    error = explain(os.getpid(), "Unsupported version of Python: 3.99.0")
    assert error.state == "failed"
    assert "3.99.0" in error.reason
    assert "upgrade py-spy" in (error.remedy or "")


def test_other_complaints_are_passed_on():
    error = explain(os.getpid(), "Failed to find python version from target process")
    assert error.state == "failed"
    assert "Failed to find python version" in error.reason


def test_a_refusal_by_the_system_is_not_blamed_on_py_spy():
    error = explain(os.getpid(), "Permission Denied: Try running again with elevated permissions")
    assert error.state == "denied"
    assert "Try running" not in error.reason


def test_what_a_process_lays_out_for_py_spy_cannot_fill_the_memory(tmp_path):
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        pytest.skip("this session's memory is bounded already")
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nsleep 60\n")
    program.chmod(0o755)
    spy = Spy(str(program), os.getpid(), 1, 20)
    try:
        assert resource.prlimit(spy._child.pid, resource.RLIMIT_AS) == (MOST_MEMORY, MOST_MEMORY)
    finally:
        spy.stop()
