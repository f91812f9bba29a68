"""The hook's ring as its reader sees it: layout version 2 of aitop/hook/layout.py, stated again.

Whatever the target writes is only ever a value here: what makes no sense is dropped or clamped, and nothing raises.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec

from aitop.model.steps import AllocatorSample, CallKind, CallSite, DdpInfo, HookFacts, LoaderInfo
from aitop.sources.step_maker.events import KINDS, UNTIMED, Event

MEMFD_LINK = "/memfd:aitop-hook (deleted)"
MAGIC = int.from_bytes(b"AITOPRNG", "little")
VERSION = 2

HEADER_SIZE = 4096
JSON_ROOM = 28672
RECORDS_AT = HEADER_SIZE + JSON_ROOM
CAPACITY = 65536
STRIDE = 40
SIZE = RECORDS_AT + CAPACITY * STRIDE

WORD = 8
W_CONTROL = 9
W_BURST = 13
W_SLOTS, SLOTS = 16, 8
W_WRITING, W_STEPS, W_TRAINS_UNTIL, W_SEQUENCE = 32, 33, 34, 35
STATE_INSTALLED, STATE_REMOVING, STATE_REMOVED = 1, 2, 3
WAYS = ("attach", "run", "import")
CONTROL_LEAVE = 1

_HEADER = struct.Struct("=13Q")
_SLOTS = struct.Struct(f"={2 * SLOTS}Q")
_PROGRESS = struct.Struct("=4Q")
_EVENT = struct.Struct("=5q")

AHEAD_NS = 10**9
MOST_RANKS = 10**6


class Header(msgspec.Struct, frozen=True):
    """The header of a ring of our version. `written` counts the events ever written, `writing` those in the making too;
    `steps` were made so far, roughly; it counts as training until `trains_until` (monotonic nanoseconds). `sequence`
    numbers the collective that was called last, 0 before the first.
    """

    pid: int
    written: int
    state: int
    way: str
    control: int
    facts_seq: int
    facts_length: int
    writing: int
    steps: int
    trains_until: int
    sequence: int


def decode_header(data: bytes) -> Header | None:
    """None where these bytes are not a ring that we can read."""
    if len(data) < WORD * (W_SEQUENCE + 1):
        return None
    magic, version, pid, stride, capacity, room, written, state, way, control, _, seq, length = _HEADER.unpack_from(
        data
    )
    if (magic, version, stride, capacity, room) != (MAGIC, VERSION, STRIDE, CAPACITY, JSON_ROOM):
        return None
    if way >= len(WAYS) or length > JSON_ROOM or not STATE_INSTALLED <= state <= STATE_REMOVED:
        return None
    progress = _PROGRESS.unpack_from(data, WORD * W_WRITING)
    return Header(pid, written, state, WAYS[way], control, seq, length, *progress)


def slot_offset(slot: int) -> int:
    """Where lease slot `slot` is: the monitor's pid, then its deadline."""
    return WORD * (W_SLOTS + 2 * slot)


def decode_slots(data: bytes) -> list[tuple[int, int]]:
    """The lease slots of a header: (pid, deadline in monotonic nanoseconds); empty where it is too short."""
    if len(data) < slot_offset(SLOTS):
        return []
    words = _SLOTS.unpack_from(data, slot_offset(0))
    return [(words[index], words[index + 1]) for index in range(0, 2 * SLOTS, 2)]


def decode_events(data: bytes, now_ns: int) -> tuple[list[Event], int]:
    """The events in these bytes, and how many there were that make no sense."""
    found: list[Event] = []
    latest, count = now_ns + AHEAD_NS, len(data) // STRIDE
    for words in _EVENT.iter_unpack(memoryview(data)[: count * STRIDE]):
        kind, start, end = words[:3]
        if (0 < start <= end <= latest and 0 <= kind < KINDS) or kind in UNTIMED:
            found.append(words)
    return found, count - len(found)


_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Path = Annotated[str, msgspec.Meta(max_length=1000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Small = Annotated[int, msgspec.Meta(ge=0, le=10**6)]
_Large = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
_Pids = Annotated[tuple[Annotated[int, msgspec.Meta(gt=0, le=2**22)], ...], msgspec.Meta(max_length=1024)]


class _Loader(msgspec.Struct, frozen=True):
    workers: _Small
    batch_size: _Large | None = None
    prefetch: _Small | None = None
    pin_memory: bool = False
    persistent: bool = False
    dataset: _Name | None = None
    collate: _Name | None = None
    worker_pids: _Pids = ()


class _Call(msgspec.Struct, frozen=True):
    kind: CallKind
    name: _Name
    file: _Path
    line: _Small
    function: _Name
    calls: _Large
    seconds: _Seconds | None = None
    bytes: _Large | None = None
    pageable_bytes: _Large | None = None


class _Ddp(msgspec.Struct, frozen=True):
    backend: _Name | None = None
    world_size: _Small | None = None
    bucket_cap_mb: _Seconds | None = None
    find_unused_parameters: bool | None = None
    gradient_bytes: _Large | None = None
    forward: _Seconds | None = None
    backward: _Seconds | None = None
    communication: _Seconds | None = None
    overlap: _Seconds | None = None


class _Facts(msgspec.Struct, frozen=True):
    way: _Name
    python: _Name
    torch: _Name
    cuda: bool = False
    threads: _Small | None = None
    loaders: Annotated[tuple[_Loader, ...], msgspec.Meta(max_length=64)] = ()
    optimizers: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)] = ()
    foreach: bool | None = None
    fused: bool | None = None
    parameters: _Large | None = None
    parameter_tensors: _Large | None = None
    parameter_dtypes: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)] = ()
    root: _Name | None = None
    ops: _Large | None = None
    cost_us: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None
    rank: int | None = None
    world_size: int | None = None
    calls: Annotated[tuple[_Call, ...], msgspec.Meta(max_length=64)] = ()
    flops_per_backward: Annotated[float, msgspec.Meta(ge=0, le=1e24)] | None = None
    flops_dtype: _Name | None = None
    flops_basis: _Path | None = None
    input_dtypes: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)] = ()
    autocast: _Name | None = None
    matmul_precision: _Name | None = None
    compiles: _Large | None = None
    recompiles: _Large | None = None
    graph_breaks: _Large | None = None
    recompile_reasons: Annotated[tuple[_Path, ...], msgspec.Meta(max_length=16)] = ()
    scaler_skips: _Large | None = None
    ddp: _Ddp | None = None
    watches: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)] = ()


class _Allocator(msgspec.Struct, frozen=True):
    device: Annotated[int, msgspec.Meta(ge=0, le=1024)]
    allocated: _Large
    reserved: _Large
    peak_allocated: _Large | None = None
    active: _Large | None = None
    inactive_split: _Large | None = None
    retries: _Large | None = None
    ooms: _Large | None = None
    capacity: _Large | None = None


class _Area(msgspec.Struct, frozen=True):
    facts: _Facts
    allocators: Annotated[tuple[_Allocator, ...], msgspec.Meta(max_length=64)] = ()


_decoder = msgspec.json.Decoder(_Area)


def decode_facts(data: bytes) -> tuple[HookFacts, tuple[AllocatorSample, ...]] | None:
    """What the JSON area says, None where it is not what a hook writes."""
    try:
        area = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    values = msgspec.structs.asdict(area.facts)
    for name in ("rank", "world_size"):
        # A program may say -1 for none.
        values[name] = values[name] if 0 <= (values[name] or 0) <= MOST_RANKS else None
    values["ddp"] = None if area.facts.ddp is None else DdpInfo(**msgspec.structs.asdict(area.facts.ddp))
    values["calls"] = tuple(CallSite(**msgspec.structs.asdict(call)) for call in area.facts.calls)
    values["loaders"] = tuple(LoaderInfo(**msgspec.structs.asdict(loader)) for loader in area.facts.loaders)
    allocators = tuple(AllocatorSample(**msgspec.structs.asdict(item)) for item in area.allocators)
    return HookFacts(**values), allocators
