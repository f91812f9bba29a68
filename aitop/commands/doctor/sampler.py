"""py-spy: whether it is there, and whether it can read the Python of a process."""

from __future__ import annotations

import errno
import subprocess

from aitop.commands.doctor.check import Check, fault, works
from aitop.sources.source import SourceError
from aitop.sources.stacks.dump import take_dump
from aitop.sources.stacks.spy import find_py_spy

SECONDS = 10.0
LIMITS_REACHED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)
REINSTALL = "pip install --force-reinstall py-spy"


def installed() -> Check:
    """Whether it is there, and runs."""
    try:
        program = find_py_spy()
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except SourceError as error:
        return fault("py-spy", error.reason, error.remedy)
    except OSError as error:
        mend = "see descriptors and threads" if error.errno in LIMITS_REACHED else REINSTALL
        return fault("py-spy", f"it does not start: {error.strerror or error}", mend)
    except subprocess.TimeoutExpired as error:
        return fault("py-spy", f"it does not start: {error}", REINSTALL)
    if done.returncode != 0:
        return fault("py-spy", f"{program} leaves with code {done.returncode}", REINSTALL)
    version = done.stdout.decode("utf-8", "replace").split()[-1:] or ["of unknown version"]
    return works("py-spy", f"{version[0]} at {program}")


def stacks(pid: int, python: str | None) -> Check:
    """Whether it reads the stacks of process `pid`: asked for one look, which stops nothing."""
    name = f"Python {python}" if python else "its Python"
    try:
        dump = take_dump([pid], script=None)
    except SourceError as error:
        return fault("stacks", error.reason, error.remedy)
    processes = len({thread.pid for thread in dump.threads})
    words = f"{name} can be read: {len(dump.threads)} threads of {processes} processes seen"
    return works("stacks", words + (f"; {len(dump.refused)} processes gave nothing" if dump.refused else ""))
