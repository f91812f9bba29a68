"""Reads a rank's collectives from the file that torch's Flight Recorder, in the process itself, dumps on a time-out.

Source: the pickles described in torch's documentation of the Flight Recorder (`TORCH_FR_DUMP_TEMP_FILE`, formerly
`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`: a path to which the rank's number is added).
"""

from __future__ import annotations

import contextlib
import os
import pickletools
import time
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from aitop.model.host import ProcessId
from aitop.model.ranks import FlightRecord
from aitop.model.text import printable
from aitop.sources import procfs
from aitop.sources.foreign_file import open_as

VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
NAMES = ("torch/comm_lib_trace_rank_", "torch/nccl_trace_rank_")
OLD_DEFAULTS = ("/tmp/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_")  # noqa: S108 - torch's own
MOST_BYTES = 32 << 20
MOST_FRAMES = 10_000
LONGEST = 120
MOST_OPERATIONS = 3_000_000
_TYPED = ("torch.jit._pickle build_", "torch.jit._pickle restore_type_tag")
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NO_EFFECT = frozenset({"PROTO", "FRAME"})
# Stand-ins on the stack for a mark and for one of torch's builders.
_MARK, _BUILDER = object(), object()

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
    with os.fdopen(open_as(process, path), "rb") as opened:
        status = os.fstat(opened.fileno())
        # By the clock of the machine's uptime, as the wall clock may have been set since.
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - (process.started - procfs.boot_time())
        if status.st_size > MOST_BYTES or status.st_mtime < time.time() - age:
            return None
        return opened.read(MOST_BYTES)


# --- pickles ----------------------------------------------------------------------------------------------------------


def read_plain(data: bytes) -> Any:
    """The value in a pickle of plain values: dicts with texts as keys, lists, tuples, texts, numbers.

    Nothing in it is ever called or imported. torch's own pickler wraps typed lists in calls of its builders; such a
    call is read as its argument. Raises ValueError for what is damaged, too long, or not made of plain values.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for count, (code, argument, _) in enumerate(pickletools.genops(data)):
            if code.name == "STOP":
                return stack.pop()
            if count > MOST_OPERATIONS:
                break
            _apply(code.name, argument, stack, memo)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"a damaged pickle: {type(error).__name__}") from error
    raise ValueError("a pickle that does not end")


def _apply(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _VALUES:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in ("BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(memo[argument])
    elif name == "MARK":
        stack.append(_MARK)
    elif name in _TUPLES:
        items = tuple(stack[-_TUPLES[name] :])
        del stack[-_TUPLES[name] :]
        stack.append(items)
    elif name not in _NO_EFFECT:
        _gather(name, argument, stack)


def _gather(name: str, argument: Any, stack: list[Any]) -> None:
    """Apply an operation that makes or fills a container."""
    if name == "EMPTY_DICT":
        stack.append({})
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "EMPTY_TUPLE":
        stack.append(())
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name in ("APPEND", "APPENDS"):
        items = _since_mark(stack) if name == "APPENDS" else [stack.pop()]
        stack[-1].extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = _since_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        # Hashing a tuple of tuples of tuples, each twice in the next, would never end.
        if not all(isinstance(key, str) for key in items[::2]):
            raise ValueError("a key that is no text")
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    elif name == "GLOBAL" and str(argument).startswith(_TYPED):
        stack.append(_BUILDER)
    elif name == "REDUCE" and stack[-2] is _BUILDER:
        given = stack.pop()
        stack[-1] = given[0]
    else:
        raise ValueError(f"more than plain values: {name}")


def _since_mark(stack: list[Any]) -> list[Any]:
    # From the end: searching a long stack from its start, once for each of many marks, could take hours.
    last = next(place for place in range(len(stack) - 1, -1, -1) if stack[place] is _MARK)
    items = stack[last + 1 :]
    del stack[last:]
    return items
