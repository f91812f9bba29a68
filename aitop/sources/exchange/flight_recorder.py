"""What torch's Flight Recorder has written of a rank's collectives: a file that the process itself dumps on a time-out.

Source: the pickles described in torch's documentation of the Flight Recorder (`TORCH_FR_DUMP_TEMP_FILE`, before
`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`: a path to which the rank's number is added).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from aitop.model.host import ProcessId
from aitop.model.ranks import FlightRecord
from aitop.model.text import printable
from aitop.sources import procfs
from aitop.sources.exchange.plain_pickle import read_plain
from aitop.sources.foreign_file import open_as

VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
NAMES = ("torch/comm_lib_trace_rank_", "torch/nccl_trace_rank_")
OLD_DEFAULTS = ("/tmp/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_")  # noqa: S108 - torch's own
MOST_BYTES = 32 << 20
MOST_FRAMES = 10_000
LONGEST = 120


_Number = Annotated[int, msgspec.Meta(ge=-1, le=10**15)]


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: _Number = 0


class _Entry(msgspec.Struct):
    profiling_name: str = ""
    state: str = ""
    collective_seq_id: _Number = 0
    process_group: tuple[str, ...] = ()
    frames: Annotated[list[_Frame], msgspec.Meta(max_length=MOST_FRAMES)] = []
    retired: bool = False


# Makes what `convert` needs while the module is imported, as in speedscope.py.
msgspec.json.Decoder(_Entry)


def flight_record(pid: int, rank: int) -> FlightRecord | None:
    """The newest unfinished collective in what process `pid`, rank `rank`, has dumped since it started, else its last
    one; None where there is no dump.
    """
    process, environment = procfs.process_id(pid), procfs.environ(pid)
    if process is None or environment is None:
        return None
    for prefix in prefixes(environment):
        with contextlib.suppress(OSError, ValueError):
            data = _read(process, f"{prefix}{rank}")
            if data is not None:
                return last_of(data, pid, rank)
    return None


def prefixes(environment: Mapping[str, str]) -> list[str]:
    """Paths to which a process with this environment may write dumps, without the rank at the end; likeliest first."""
    given = [environment[name] for name in VARIABLES if environment.get(name, "").startswith("/")]
    if given:
        return given[:1]
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", "/"), ".cache")
    return [os.path.join(cache, name) for name in NAMES] + list(OLD_DEFAULTS)


def last_of(data: bytes, pid: int, rank: int) -> FlightRecord | None:
    """The newest unfinished collective in the content of a dump, else its last one; None if it has none.

    Raises ValueError for anything that is not a dump.
    """
    dump = read_plain(data)
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list):
        raise ValueError("not what a Flight Recorder writes")
    if not entries:
        return None
    # Only this entry is converted: a few bytes can put the same million frames into every entry.
    unfinished = next((entry for entry in reversed(entries) if _waits(entry)), None)
    try:
        newest = msgspec.convert(unfinished or entries[-1], _Entry)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    user = next((frame for frame in newest.frames if "/torch/" not in frame.filename and frame.filename), None)
    return FlightRecord(
        pid=pid,
        rank=rank,
        call=printable(newest.profiling_name.rpartition(":")[2])[:LONGEST],
        state=printable(newest.state)[:LONGEST],
        sequence=newest.collective_seq_id,
        group=printable((newest.process_group or ("",))[-1])[:LONGEST],
        waiting=unfinished is not None,
        where=f"{printable(os.path.basename(user.filename))[:LONGEST]}:{user.line}" if user else None,
    )


def _waits(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("state") != "completed" and not entry.get("retired")


def _read(process: ProcessId, path: str) -> bytes | None:
    """A file as the process would open it, None where it is older than the process or too large."""
    file = open_as(process, path)
    try:
        status = os.fstat(file)
        # By the clock of the machine's uptime: the other one may have been set since.
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - (process.started - procfs.boot_time())
        if status.st_size > MOST_BYTES or status.st_mtime < time.time() - age:
            return None
        with os.fdopen(os.dup(file), "rb") as opened:
            return opened.read(MOST_BYTES)
    finally:
        os.close(file)
