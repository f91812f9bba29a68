"""Why the stacks of a process cannot be read: what py-spy says, and what the kernel's files do."""

import os

from aitop.model.tracing import Rights
from aitop.sources.stacks import refusal
from aitop.sources.stacks.refusal import explain


def test_a_status_is_read_for_its_rights(monkeypatch):
    status = {"Uid": "1000\t1001\t1002\t1001", "CapEff": "2", "CapPrm": "3", "Seccomp": "2", "NSpid": "42\t7"}
    monkeypatch.setattr(refusal.procfs, "status", lambda pid: status if pid == 42 else {"Uid": "x", "CapEff": "?"})
    assert refusal._rights(42) == Rights(1001, "1001", frozenset((1000, 1001, 1002)), 2, 3, True, 7)
    assert refusal._rights(43) == Rights(None)


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
