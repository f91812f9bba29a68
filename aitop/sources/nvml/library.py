"""Loading, starting and ending NVML, and saying in words why it cannot be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pynvml

from aitop.sources.nvml import DRIVER_REMEDY, NO_DRIVER
from aitop.sources.nvml.gate import Handle
from aitop.sources.source import SourceError

# NVML says that it may be called from several threads; drivers that hang have taught others not to.
_ONE_AT_A_TIME = threading.Lock()

_PERMISSION_REMEDY = "ask for read and write access to /dev/nvidiactl and /dev/nvidia*"


@contextmanager
def turn(seconds: float) -> Iterator[None]:
    """The right to call NVML. Raises SourceError if another thread's call does not come back in time."""
    if not _ONE_AT_A_TIME.acquire(timeout=seconds):
        raise SourceError("stale", "an earlier call into the NVIDIA driver has not come back")
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


@contextmanager
def started(patience: float) -> Iterator[None]:
    """NVML for one look, ended afterwards. Raises SourceError."""
    with turn(patience):
        start()
        try:
            yield
        finally:
            stop()


def start() -> None:
    """Start NVML. Raises SourceError."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _why(error) from error


def stop() -> None:
    """End NVML. A driver that is already gone is no reason to complain."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        pass  # nothing left to end


def handles() -> dict[int, Handle | None]:
    """The devices by index, None for one that is lost. Raises SourceError where there is none that we may use."""
    try:
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        raise _why(error) from error
    if count == 0:
        raise SourceError("absent", "the NVIDIA driver is here, but no GPU", DRIVER_REMEDY)
    devices: dict[int, Handle | None] = {}
    refused: pynvml.NVMLError | None = None
    for index in range(count):
        try:
            devices[index] = Handle(f"gpu{index}", pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError as error:
            if int(error.value) == pynvml.NVML_ERROR_GPU_IS_LOST:
                devices[index] = None
            else:
                refused = error
    if not devices:
        raise _why(refused) from refused
    return devices


def _why(error: pynvml.NVMLError) -> SourceError:
    known = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: SourceError("absent", NO_DRIVER, DRIVER_REMEDY),
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: SourceError(
            "absent", "the NVIDIA kernel driver is not loaded", "sudo modprobe nvidia"
        ),
        pynvml.NVML_ERROR_NO_PERMISSION: SourceError(
            "denied", "the NVIDIA driver does not let this user in", _PERMISSION_REMEDY
        ),
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: SourceError(
            "failed", "the NVIDIA driver was updated while the old one is still loaded", "reboot the machine"
        ),
    }
    return known.get(int(error.value), SourceError("failed", f"NVML does not start: {error}"))
