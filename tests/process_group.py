"""A process with all that it starts, ended with a block."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

END_SECONDS = 15.0


@contextmanager
def process_group(*command: str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a command in a session of its own. At the end of the block its whole group is asked to end, and killed."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(END_SECONDS)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
