"""What a burst of torch.profiler says about a few steps: operators, kernels, gaps, memory. Times in seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

OpClass = Literal[
    "matmul", "attention", "convolution", "normalization", "elementwise", "reduction", "copy", "collective", "other"
]


class OpRow(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operator. `host` and `device` are seconds, `self_host` those without the operators it calls.

    `device` is the time of the kernels it launched. `allocated` is the bytes that it asked for itself, None where
    memory was not watched.
    """

    name: str
    kind: OpClass
    calls: int
    host: float
    self_host: float
    device: float | None = None
    allocated: int | None = None


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one kernel or device copy."""

    name: str
    kind: OpClass
    calls: int
    device: float


class ClassRow(msgspec.Struct, frozen=True, kw_only=True):
    """Time by kind of work: on the device where there is one, else on the host."""

    kind: OpClass
    seconds: float
    share: float


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """How one device spent the burst. A gap is a time without any kernel or copy; `launch_delay` is the median time
    from a launch's end on the host to its kernel's begin.
    """

    device: int
    busy: float
    idle: float
    gaps: int
    longest_gap: float
    launch_delay: float | None = None


class Holds(msgspec.Struct, frozen=True, kw_only=True):
    """For how long the burst itself held the run: starting the profiler, stopping it, writing the trace."""

    start: float
    stop: float
    save: float

    @property
    def total(self) -> float:
        return self.start + self.stop + self.save


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The burst in figures. `seconds` is its length with `steps` in it; `ops` and `kernels` are the longest, in order.

    `peak_memory` is the most that was allocated on the device (on the host where there is none), in bytes.
    """

    pid: int
    steps: int
    seconds: float
    holds: Holds
    events: int
    ops: tuple[OpRow, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    classes: tuple[ClassRow, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    peak_memory: int | None = None
