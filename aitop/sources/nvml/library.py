"""Loading, starting and ending NVML, and saying in words why it cannot be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aitop.sources.nvml.gate import Handle
from aitop.sources.source import SourceError

# NVML says that it may be called from several threads; drivers that hang have taught others not to.
_ONE_AT_A_TIME = threading.Lock()

_LIBRARY_NOT_FOUND = 12
_DRIVER_NOT_LOADED = 9
_NO_PERMISSION = 4
_VERSION_MISMATCH = 18
_GPU_IS_LOST = 15

_DRIVER_REMEDY = "install the NVIDIA driver, or start the container with the GPU (docker run --gpus all)"
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
def started(patience: float) -> Iterator[Any]:
    """NVML for one look: the pynvml module, and NVML ended afterwards. Raises SourceError."""
    with turn(patience):
        nvml = start()
        try:
            yield nvml
        finally:
            stop(nvml)


def start() -> Any:
    """The pynvml module with NVML started. Raises SourceError."""
    try:
        import pynvml  # noqa: PLC0415 - a large module, not needed with --no-gpu
    except ImportError:
        raise SourceError("absent", "the Python package nvidia-ml-py is missing", "pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _why(error) from error
    return pynvml


def stop(nvml: Any) -> None:
    """End NVML. A driver that is already gone is no reason to complain."""
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        pass  # nothing left to end


def handles(nvml: Any) -> dict[int, Handle | None]:
    """The devices by index, None for one that is lost. Raises SourceError where there is none that we may use."""
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        raise _why(error) from error
    if count == 0:
        raise SourceError("absent", "the NVIDIA driver is here, but no GPU", _DRIVER_REMEDY)
    devices: dict[int, Handle | None] = {}
    refused: Any = None
    for index in range(count):
        try:
            devices[index] = Handle(f"gpu{index}", nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError as error:
            if int(error.value) == _GPU_IS_LOST:
                devices[index] = None
            else:
                refused = error
    if not devices:
        raise _why(refused) from refused
    return devices


def _why(error: Any) -> SourceError:
    code = int(error.value)
    if code == _LIBRARY_NOT_FOUND:
        return SourceError("absent", "no NVIDIA driver here (libnvidia-ml.so.1 not found)", _DRIVER_REMEDY)
    if code == _DRIVER_NOT_LOADED:
        return SourceError("absent", "the NVIDIA kernel driver is not loaded", "sudo modprobe nvidia")
    if code == _NO_PERMISSION:
        return SourceError("denied", "the NVIDIA driver does not let this user in", _PERMISSION_REMEDY)
    if code == _VERSION_MISMATCH:
        return SourceError(
            "failed", "the NVIDIA driver was updated while the old one is still loaded", "reboot the machine"
        )
    return SourceError("failed", f"NVML does not start: {error}")
