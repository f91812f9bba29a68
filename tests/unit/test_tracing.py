"""Which of the kernel's conditions keeps aitop from looking into a process."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from aitop.commands.doctor import rights as doctors_rights
from aitop.commands.doctor.rights import read_confinement
from aitop.model.tracing import DAC_OVERRIDE, SYS_PTRACE, Rights, why_denied

PLAIN = Rights(1000, "me", frozenset((1000,)), inner_pid=42)
ROOT = replace(PLAIN, user=0, name="root", users=frozenset((0,)))
STRANGER = replace(PLAIN, user=5, name="eve", users=frozenset((5,)))
HALF = replace(PLAIN, users=frozenset((5, 1000)), name="eve")
BOUND = replace(PLAIN, permitted=1 << 10)
UNKNOWN = Rights(None)


def capable(rights: Rights, capabilities: int = SYS_PTRACE | DAC_OVERRIDE) -> Rights:
    return replace(rights, capabilities=capabilities, permitted=capabilities)


@pytest.mark.parametrize(
    ("ours", "theirs", "yama", "reason", "remedy"),
    [
        (PLAIN, STRANGER, 0, "belongs to user eve, and aitop runs as me", "run aitop as eve or with sudo"),
        (PLAIN, HALF, 0, "belongs to user eve", "run aitop as eve"),
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
        (replace(PLAIN, filtered=True), PLAIN, 0, "a seccomp filter", "SYS_PTRACE"),
        (replace(capable(PLAIN), filtered=True), STRANGER, 1, "a seccomp filter", "SYS_PTRACE"),
        (PLAIN, PLAIN, 0, "a security module", "sudo"),
        (UNKNOWN, UNKNOWN, 0, "a security module", "sudo"),
    ],
)
def test_the_condition_that_failed_is_named(ours: Rights, theirs: Rights, yama: int, reason: str, remedy: str) -> None:
    denial = why_denied(42, ours, theirs, yama)
    assert reason in denial.reason and remedy in (denial.remedy or "")


@pytest.mark.parametrize(
    ("closed", "boxed", "reason"),
    [
        (True, False, "closed to all but root"),
        (False, True, "outside of the user namespace"),
        (True, True, "closed to all but root"),
    ],
)
def test_what_the_status_does_not_tell(closed: bool, boxed: bool, reason: str) -> None:
    denial = why_denied(42, PLAIN, PLAIN, 0, closed=closed, boxed=boxed)
    assert reason in denial.reason and denial.remedy


def test_a_trial_that_cannot_be_made_names_what_does_not_start():
    here = read_confinement("/nonexistent", {})
    [said, *_] = doctors_rights.checks(here, PermissionError(errno.EACCES, "Permission denied", "/root/bin/python"))
    assert (said.state, said.reason) == ("does-not", "it cannot be tried: /root/bin/python: Permission denied")
    [said, *_] = doctors_rights.checks(here, FileNotFoundError(errno.ENOENT, "the path of Python is not known"))
    assert said.reason == "it cannot be tried: the path of Python is not known"
