"""Numbers of processes that are not there."""

import subprocess

# The kernel gives no process a number this large.
NO_PROCESS = 2**22 + 5
# Not even the name of a folder in /proc on any kernel.
BEYOND_EVERY_PROCESS = 1 << 40


def ended_process() -> int:
    """The number of a process that has just ended."""
    with subprocess.Popen(["true"]) as child:
        child.wait()
    return child.pid
