"""Why another process cannot be read, from the fields of the kernel's status files."""

import os

import pytest

from aitop.sources.stacks.refusal import denied, explain

PLAIN = {"Uid": "1000\t1000\t1000\t1000", "CapEff": "0000000000000000", "CapPrm": "0000000000000000", "Seccomp": "0"}
ROOT_IN_A_BOX = PLAIN | {"Uid": "0\t0\t0\t0"}
CAPABLE = PLAIN | {"CapEff": "0000000000080002", "CapPrm": "0000000000080002"}
TRACER = {"CapEff": "0000000000080000", "CapPrm": "0000000000080000"}


@pytest.mark.parametrize(
    ("ours", "theirs", "yama", "reason", "remedy"),
    [
        (PLAIN, PLAIN | {"Uid": "4000000001 " * 4}, "0", "user 4000000001", "4000000001 or with sudo"),
        (PLAIN, ROOT_IN_A_BOX, "0", "belongs to user root", "run aitop as root or with sudo"),
        (ROOT_IN_A_BOX, PLAIN, None, "root lacks CAP_SYS_PTRACE", "--cap-add SYS_PTRACE"),
        (ROOT_IN_A_BOX | TRACER, PLAIN, None, "root lacks CAP_DAC_OVERRIDE", "--cap-add DAC_OVERRIDE"),
        (PLAIN | TRACER, ROOT_IN_A_BOX, None, "belongs to user root", "run aitop as root or with sudo"),
        (PLAIN, PLAIN, "1", "ptrace_scope is 1", "sysctl kernel.yama.ptrace_scope=0"),
        (PLAIN, PLAIN, "2", "only root", "sysctl"),
        (PLAIN, PLAIN, "3", "until a reboot", None),
        (PLAIN, PLAIN | {"CapPrm": "0000000000000400"}, "0", "capabilities that aitop lacks", "sudo"),
        (PLAIN | {"Seccomp": "2"}, PLAIN, None, "seccomp", "SYS_PTRACE"),
        (CAPABLE | {"Seccomp": "2"}, PLAIN | {"Uid": "5 5 5 5"}, "1", "seccomp", "SYS_PTRACE"),
        (PLAIN, PLAIN, None, "does not let aitop read", "sudo"),
        ({}, {}, None, "does not let aitop read", "sudo"),
    ],
)
def test_the_condition_that_failed_is_named(ours, theirs, yama, reason, remedy):
    error = denied(42, ours, theirs, yama)
    assert error.state == "denied"
    assert reason in error.reason
    assert error.remedy is None if remedy is None else remedy in error.remedy


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"closed": True}, "closed to all but root"),
        ({"boxed": True}, "outside of the user namespace"),
        ({"closed": True, "boxed": True}, "closed to all but root"),
    ],
)
def test_what_the_status_does_not_tell(more, reason):
    error = denied(42, PLAIN, PLAIN, "0", **more)
    assert reason in error.reason
    assert error.remedy


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
