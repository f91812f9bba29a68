"""What a process is in below Python: the C and C++ frames of its main thread, by `py-spy dump --native`.

That stops the process while it is looked at (some tenths of a second), so it is only for one that stands still anyway,
and only where the user asks for it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

import msgspec

from aitop.model.text import printable
from aitop.sources.source import SourceError
from aitop.sources.stacks.refusal import explain
from aitop.sources.stacks.speedscope import MAIN_NAME, MOST_BYTES
from aitop.sources.stacks.spy import find_py_spy, first_line, quiet_environment

PATIENCE_SECONDS = 20.0
MOST_FRAMES = 24
LONGEST = 120


class _Frame(msgspec.Struct):
    name: str
    module: str | None = None


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_name: str | None = None
    thread_id: int | str | None = None
    os_thread_id: int | None = None


def native_frames(pids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """By pid, the innermost frame first, down to the first one of Python. Raises SourceError where none can be seen."""
    program, found, error = find_py_spy(), {}, None
    for pid in pids:
        command = [program, "dump", "--pid", str(pid), "--json", "--native"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_SECONDS, check=False,
                start_new_session=True, env=quiet_environment(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            error = SourceError("failed", f"py-spy had no answer in {PATIENCE_SECONDS:.0f} s")
            continue
        except OSError as problem:
            raise SourceError("failed", f"py-spy does not start: {problem.strerror}", "pip install py-spy") from problem
        if done.returncode == 0 and len(done.stdout) <= MOST_BYTES:
            found[pid] = innermost(done.stdout, pid)
        else:
            error = explain(pid, first_line(done.stderr.decode("utf-8", "replace")))
    if not found and error is not None:
        raise error
    return found


def innermost(data: bytes, pid: int) -> tuple[str, ...]:
    """The native frames above the newest of Python in the main thread, from what py-spy wrote; empty without any."""
    try:
        threads = msgspec.json.decode(data, type=list[_Thread])
    except (ValueError, RecursionError):
        return ()
    main = next((one for one in threads if one.os_thread_id == pid or one.thread_name == MAIN_NAME), None)
    names: list[str] = []
    for frame in main.frames if main else ():
        if frame.module is None:
            break
        library = frame.module.rpartition("/")[2]
        # An address says nothing to anybody; which library it lies in does.
        name = frame.name.partition("(")[0] if not frame.name.startswith("0x") else ""
        names.append(printable(f"{name} ({library})" if name else library)[:LONGEST])
    kept = [name for number, name in enumerate(names) if number == 0 or name != names[number - 1]]
    return tuple(kept[:MOST_FRAMES])
