"""What NVML can do here, device by device: asked once, for the doctor."""

from __future__ import annotations

from typing import Literal

import msgspec
import pynvml

from aitop.sources import plausible
from aitop.sources.nvml import library
from aitop.sources.nvml.device import read_slices
from aitop.sources.nvml.library import SYSTEM, DeviceLostError, Gate, Handle

WAIT_SECONDS = 2.0
MIG_ON = 1

Counters = Literal["works", "unsupported", "denied", "failed"]


class DeviceAbilities(msgspec.Struct, frozen=True):
    """`counters`: whether its performance counters (GPM) can be sampled, `counters_error` NVML's words where not.

    `mig` is None where the device has no such mode, `slices` the number of MIG devices that can be seen.
    """

    index: int
    name: str | None = None
    lost: bool = False
    counters: Counters = "unsupported"
    counters_error: str | None = None
    mig: bool | None = None
    slices: int = 0


class Abilities(msgspec.Struct, frozen=True):
    """The driver's version and every device."""

    driver: str | None
    devices: tuple[DeviceAbilities, ...]


def abilities() -> Abilities:
    """Start NVML, ask, and end it. Raises SourceError where it does not work at all."""
    with library.started(WAIT_SECONDS):
        gate = Gate(pynvml)
        driver = plausible.clean(gate.ask(SYSTEM, "nvmlSystemGetDriverVersion"))
        devices = tuple(_device(gate, index, handle) for index, handle in library.handles().items())
    return Abilities(driver, devices)


def _device(gate: Gate, index: int, handle: Handle | None) -> DeviceAbilities:
    if handle is None:
        return DeviceAbilities(index, lost=True)
    try:
        name = plausible.clean(gate.ask(handle, "nvmlDeviceGetName"))
        modes = gate.ask(handle, "nvmlDeviceGetMigMode")
        mig = None if modes is None else modes[0] == MIG_ON
        slices = len(read_slices(gate, handle)) if mig else 0
        counters, error = _counters(handle)
    except DeviceLostError:
        return DeviceAbilities(index, lost=True)
    return DeviceAbilities(index, name, False, counters, error, mig, slices)


def _counters(handle: Handle) -> tuple[Counters, str | None]:
    """Take one sample of the counters. Not through the Gate, which does not tell why a call was refused."""
    try:
        if not pynvml.nvmlGpmQueryDeviceSupport(handle.pointer).isSupportedDevice:
            return "unsupported", None
        sample = pynvml.nvmlGpmSampleAlloc()
        try:
            pynvml.nvmlGpmSampleGet(handle.pointer, sample)
        finally:
            pynvml.nvmlGpmSampleFree(sample)
    except pynvml.NVMLError as error:
        if int(error.value) in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return "unsupported", None
        denied = int(error.value) == pynvml.NVML_ERROR_NO_PERMISSION
        return "denied" if denied else "failed", plausible.clean(str(error))
    return "works", None
