"""Why the stacks of a process cannot be read: what py-spy says, and what the kernel's files do."""

import os
import resource

import pytest

from aitop.sources.stacks.spy import MOST_MEMORY, Spy, explain


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
