"""What the kernel lets one process do to another of the same user here, tried out instead of concluded.

A child of ours tries it on us: it is no ancestor of ours, as aitop is none of a user's run. Nobody is stopped, and
when the child ends everything is as before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from dataclasses import dataclass

from aitop.attach import trial_child

SECONDS = 10.0


@dataclass(frozen=True)
class Trial:
    """The names of the errors (EPERM, ENOSYS …) with which each try failed, None where it worked.

    `open` is the right to open another process's memory, `read` the system call that reads it (py-spy
    does without), `trace` ptrace itself (the hook's way in).
    """

    open: str | None
    read: str | None
    trace: str | None


def attempt() -> Trial:
    """Try all three. Raises OSError where no child can be started, or it gave no answer."""
    if not sys.executable:
        raise FileNotFoundError(errno.ENOENT, "the path of Python is not known")
    place = ctypes.create_string_buffer(8)
    command = [sys.executable, "-I", "-S", trial_child.__file__, str(os.getpid()), str(ctypes.addressof(place))]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
        return Trial(*(_name(int(word)) for word in done.stdout.split()))
    except (subprocess.TimeoutExpired, ValueError, TypeError) as error:
        raise OSError(errno.EIO, "the trial gave no answer") from error


def _name(number: int) -> str | None:
    return errno.errorcode.get(number, str(number)) if number else None
