"""What /proc says of a process, as one struct."""

from __future__ import annotations

import os

from aitop.sources.process_status import SYS_PTRACE, own_status, parse_status

STATUS = """Name:\tpython (x) y
State:\tS (sleeping)
Tgid:\t42
PPid:\t7
TracerPid:\t99
Uid:\t1000\t1001\t1002\t1000
Gid:\t5\t6\t7\t8
NSpid:\t42\t3
CapEff:\t0000000000080000
Seccomp:\t2
x86_Thread_features:\tshstk wrss
"""


def test_a_status_is_read() -> None:
    status = parse_status(42, STATUS, started=5)
    assert (status.leader, status.parent, status.tracer, status.state, status.inner_pid) == (42, 7, 99, "S", 3)
    assert status.uids == (1000, 1001, 1002, 1000) and status.shadow_stack and status.capabilities & SYS_PTRACE
    assert status.seccomp == 2 and status.name == "python (x) y"
    older = parse_status(42, "Name:\tx\nState:\tR (running)\nTgid:\t42\n", started=5)
    assert (older.inner_pid, older.tracer, older.shadow_stack, older.capabilities) == (42, 0, False, 0)
    assert own_status().leader == own_status().pid == os.getpid() and own_status().state in "RS"
