"""Folders that a process left in shared memory because it was killed while it wrote a profile."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time

from aitop.protocol.burst import FOLDER_PREFIX

FOLDER = "/dev/shm"  # noqa: S108 - nothing is made there
# The pid, and what makes the name unique.
NAME = re.compile(rf"{FOLDER_PREFIX}([1-9][0-9]{{0,9}})-\w+")
# A profile takes less to be written. A pid may be of another pid namespace, and its process there be at it still.
OLD_SECONDS = 300.0


def remove_leftovers(folder: str = FOLDER) -> list[str]:
    """Remove this user's such folders whose process is gone. Returns their paths; does not raise."""
    removed = []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        match = NAME.fullmatch(name)
        if match and not os.path.exists(f"/proc/{match[1]}") and _is_old_and_ours(f"{folder}/{name}"):
            shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
            removed.append(f"{folder}/{name}")
    return removed


def _is_old_and_ours(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    old = time.time() - status.st_mtime > OLD_SECONDS
    return old and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
