"""Bytecode for a target whose Python is not ours, made by its own interpreter beside it, not in it.

Compiling takes tens of milliseconds, for which a target that had to do it itself would stand still.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import os
import re
import subprocess

from aitop.attach.proc_status import ProcStatus, same_process

# Whoever quits meanwhile waits for it.
SECONDS = 2.0
# Programs that embed Python are not started for that.
INTERPRETER = re.compile(r"python(3(\.\d+t?)?)?")


def interpreter_of(status: ProcStatus) -> str | None:
    """The program that the target runs, where it may be started by us.

    It must be a plain interpreter, the very file that runs, seen at the same place as the target sees it, and
    belong to a process of our own user: root does not run what a user may have made.
    """
    try:
        program = os.readlink(f"/proc/{status.pid}/exe")
        same_file = os.path.samestat(os.stat(program), os.stat(f"/proc/{status.pid}/exe"))
        same_place = os.readlink(f"/proc/{status.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return None
    # Only now: what was read belongs to the process whose user is known, not to one that has its pid since.
    ours = {*status.uids} == {os.geteuid()} and same_process(status)
    plain = INTERPRETER.fullmatch(os.path.basename(program)) is not None
    return program if same_file and same_place and ours and plain else None


def bytecode_by(program: str, files: tuple[tuple[str, str], ...]) -> tuple[bytes, list[bytes]] | None:
    """What `compiled` returns in the interpreter `program`; None where it gives no answer now."""
    try:
        return _bytecode_by(program, files)
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


@functools.cache
def _bytecode_by(program: str, files: tuple[tuple[str, str], ...]) -> tuple[bytes, list[bytes]]:
    script = importlib.resources.files("aitop.attach").joinpath("compiling.py").read_text(encoding="utf-8")
    done = subprocess.run(
        [program, "-I", "-S", "-B", "-c", script],
        input=json.dumps(files).encode(),
        capture_output=True,
        timeout=SECONDS,
        check=True,
        env={},
        cwd="/",
    )
    magic, *codes = (bytes.fromhex(one) for one in json.loads(done.stdout))
    if len(codes) != len(files):
        raise ValueError(f"{len(codes)} texts came back for {len(files)}")
    return magic, codes
