"""Decodes the JSON area of a ring: facts about the run, and what the allocators hold.

Whatever the target writes is only ever a value here. What makes no sense is dropped, and nothing raises.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from aitop.model.steps import AllocatorSample, CallKind, CallSite, DdpInfo, HookFacts, LoaderInfo

MOST_RANKS = 10**6

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
    """Return what the JSON area says, None where it is not what a hook writes."""
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
