"""Which of the kernel's conditions keeps aitop from looking into a process."""

from __future__ import annotations

import errno
import os
import resource
from typing import Any

import pytest
from confinement_maker import confinement
from msgspec.structs import replace

from aitop.commands.doctor import rights as doctors_rights
from aitop.commands.doctor.ptrace_trial import PtraceTrial
from aitop.sources.access import Confinement, condition, read_confinement
from aitop.sources.process_status import DAC_OVERRIDE, SYS_PTRACE, ProcStatus, parse_status
from aitop.sources.stacks.spy import MOST_MEMORY, Spy, explain

PLAIN = parse_status(42, "Uid:\t4141\t4141\t4141\t4141\n", 1)
ROOT = replace(PLAIN, uids=(0, 0, 0, 0))
STRANGER = replace(PLAIN, uids=(4242, 4242, 4242, 4242))
HALF = replace(PLAIN, uids=(4242, 4242, 4141, 4242))
BOUND = replace(PLAIN, permitted=1 << 10)


def user(number: int = 4141, capabilities: int = 0, **changes: Any) -> Confinement:
    return confinement(number, capabilities, **changes)


ALL = SYS_PTRACE | DAC_OVERRIDE
IN_DOCKER = {"container": "docker", "own_pids": True}


@pytest.mark.parametrize(
    ("ours", "theirs", "reason", "remedy"),
    [
        (user(), STRANGER, "belongs to user 4242, and aitop runs as 4141", "run aitop as 4242 or with sudo"),
        (user(), HALF, "belongs to user 4242", "run aitop as 4242"),
        (user(yama="1"), ROOT, "belongs to user root", "run aitop as root or with sudo"),
        (user(0), PLAIN, "root lacks CAP_SYS_PTRACE", "or start aitop from a root shell that holds CAP_SYS_PTRACE"),
        (user(0, **IN_DOCKER), PLAIN, "root lacks CAP_SYS_PTRACE", "or docker run --cap-add SYS_PTRACE"),
        (user(0, SYS_PTRACE, **IN_DOCKER), PLAIN, "root lacks CAP_DAC_OVERRIDE", "--cap-add DAC_OVERRIDE"),
        (user(4141, SYS_PTRACE), ROOT, "belongs to user root", "run aitop as root or with sudo"),
        (user(yama="1"), PLAIN, "only a process's ancestors", "sysctl kernel.yama.ptrace_scope=0"),
        (user(yama="2"), PLAIN, "only who has CAP_SYS_PTRACE", "sudo setpriv"),
        (user(4141, ALL, yama="3"), PLAIN, "until a reboot", "aitop run"),
        (user(), BOUND, "capabilities that aitop lacks", "sudo"),
        (user(0, **IN_DOCKER), replace(ROOT, permitted=1), "capabilities that aitop lacks", "--cap-add SYS_PTRACE"),
        (user(), replace(PLAIN, inner_pid=7), "in a container, where it is 7", "inside of that container"),
        (user(own_users=True), PLAIN, "outside of the user namespace", "outside of it"),
        (user(seccomp=True), PLAIN, "a seccomp filter", "outside of the sandbox"),
        (user(4141, ALL, seccomp=True, yama="1"), STRANGER, "a seccomp filter", "outside of the sandbox"),
        (user(profile="snap.x (enforce)"), PLAIN, "the security profile snap.x", "apparmor=unconfined"),
        (user(), PLAIN, "the system forbids it", "sudo"),
        (user(), None, "the system forbids it", "sudo"),
    ],
)
def test_the_condition_that_failed_is_named(
    ours: Confinement, theirs: ProcStatus | None, reason: str, remedy: str
) -> None:
    said, mended_by = condition(42, ours, theirs)
    assert reason in said and remedy in mended_by


@pytest.mark.parametrize("ours", [user(), user(own_users=True)])
def test_a_process_may_be_closed_by_itself(ours: Confinement) -> None:
    said, mended_by = condition(42, ours, PLAIN, closed=True)
    assert "closed to all but root" in said and "sudo" in mended_by


@pytest.mark.parametrize(
    ("ours", "tried"),
    [
        (user(yama="1"), PtraceTrial("EACCES", "EPERM")),
        (user(yama="2", **IN_DOCKER), PtraceTrial("EACCES", "EPERM")),
        (user(yama="3"), PtraceTrial("EACCES", "EPERM")),
        (user(0, profile="docker-default (enforce)"), PtraceTrial("EACCES", "EACCES")),
        (user(0, seccomp=True, container="kubernetes", own_pids=True), PtraceTrial("EPERM", "EPERM")),
    ],
)
def test_the_doctor_says_the_same_of_the_machine_as_of_a_process(ours: Confinement, tried: PtraceTrial) -> None:
    said, mended_by = condition(42, ours, replace(PLAIN, uids=(ours.uid,) * 4))
    (line, *_) = doctors_rights.checks(ours, tried)
    assert said.partition(": ")[2] == line.reason[: line.reason.rindex(": no ")]
    assert mended_by == line.remedy


def test_a_trial_that_cannot_be_made_names_what_does_not_start():
    here = read_confinement("/nonexistent", {})
    [said, *_] = doctors_rights.checks(here, PermissionError(errno.EACCES, "Permission denied", "/root/bin/python"))
    assert (said.state, said.reason) == ("does-not", "it cannot be tried: /root/bin/python: Permission denied")
    [said, *_] = doctors_rights.checks(here, FileNotFoundError(errno.ENOENT, "the path of Python is not known"))
    assert said.reason == "it cannot be tried: the path of Python is not known"


@pytest.mark.parametrize(
    ("complaint", "reason", "remedy"),
    [
        (
            "Unsupported version of Python: 3.99.0",
            "does not know this Python: Unsupported",
            "pip install --upgrade py-spy",
        ),
        ("Failed to find python version from target process", "Failed to find python version from", None),
    ],
)
def test_what_py_spy_complains_of_is_said(complaint, reason, remedy):
    error = explain(os.getpid(), complaint)
    assert (error.state, error.remedy) == ("failed", remedy) and reason in error.reason


def test_where_the_system_refuses_py_spy_its_advice_is_not_said():
    error = explain(os.getpid(), "Permission Denied: Try running again with elevated permissions")
    assert error.state == "denied" and "may not be looked into" in error.reason
    assert "Try running" not in error.reason and error.remedy


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
