"""Compiles our files to bytecode for a target, in this interpreter or in a new process of the target's own Python.

Compiling takes tens of milliseconds, which would hold up the target if it had to do it itself. For another Python this
very file is run as a script, so it imports nothing of aitop: it reads JSON from stdin, [[file name, source]], and
writes what `compiled` returns as one list of hexadecimal texts.
"""

from __future__ import annotations

import functools
import importlib.resources
import importlib.util
import json
import marshal
import subprocess
import sys

# Kept short, because aitop cannot exit before a running compilation is over.
SECONDS = 2.0


@functools.cache
def compiled(files: tuple[tuple[str, str], ...]) -> tuple[bytes, list[bytes]]:
    """Return this interpreter's magic number, and the marshalled code (without docstrings) of each (file name, source).

    Raises SyntaxError and ValueError as `compile` does.
    """
    codes = [marshal.dumps(compile(source, name, "exec", dont_inherit=True, optimize=2)) for name, source in files]
    return importlib.util.MAGIC_NUMBER, codes


def compiled_by(program: str, files: tuple[tuple[str, str], ...]) -> tuple[bytes, list[bytes]] | None:
    """Return what `compiled` returns in the interpreter `program`; None if that gives no usable answer now."""
    try:
        return _compiled_by(program, files)
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


@functools.cache
def _compiled_by(program: str, files: tuple[tuple[str, str], ...]) -> tuple[bytes, list[bytes]]:
    script = importlib.resources.files("aitop.attach.payload").joinpath("bytecode.py").read_text(encoding="utf-8")
    done = subprocess.run(
        [program, "-I", "-S", "-B", "-c", script],
        input=json.dumps(files).encode(),
        capture_output=True,
        timeout=SECONDS,
        check=True,
        env={},
        cwd="/",
    )
    magic, *codes = (bytes.fromhex(text) for text in json.loads(done.stdout))
    if len(codes) != len(files):
        raise ValueError(f"{len(codes)} texts came back for {len(files)}")
    return magic, codes


if __name__ == "__main__":
    magic_number, all_code = compiled(tuple((name, source) for name, source in json.load(sys.stdin)))
    json.dump([item.hex() for item in (magic_number, *all_code)], sys.stdout)
