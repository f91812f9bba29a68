"""The other Pythons at hand, for tests that attach to one of each version.

AITOP_TEST_PYTHONS, paths of interpreters separated by colons, comes first; then what pyenv has installed, then
`python3.X` on the PATH. A Debian tree that was unpacked in a folder serves as well: name a script that starts its
interpreter (through the tree's own ld-linux, with PYTHONHOME set to the tree's /usr).
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ASK = "import sys; print('%d.%d' % sys.version_info[:2], 'libpython' in open('/proc/self/maps').read())"


@functools.cache
def interpreters() -> dict[str, str]:
    """Version → path of an interpreter of that version, our own among them; and version + "-static", "-shared"."""
    named = [path for path in os.environ.get("AITOP_TEST_PYTHONS", "").split(":") if path]
    pyenv = sorted(map(str, Path.home().glob(".pyenv/versions/3.1[0-9].*/bin/python3")))
    on_path = [path for version in VERSIONS if (path := shutil.which(f"python{version}"))]
    found: dict[str, str] = {}
    paths = (*named, sys.executable, *pyenv, *on_path, "/usr/bin/python3")
    with ThreadPoolExecutor() as side_by_side:
        answers = list(side_by_side.map(_ask, paths))
    for path, told in zip(paths, answers, strict=True):
        if told:
            version, shared = told
            found.setdefault(version, path)
            found.setdefault(f"{version}-{'shared' if shared == 'True' else 'static'}", path)
    return found


def _ask(path: str) -> list[str]:
    try:
        told = subprocess.run([path, "-c", ASK], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return told.stdout.split() if told.returncode == 0 else []
