"""NVML itself: starting and ending it, saying in words why that cannot be, and the one place where it is called."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pynvml

from aitop.sources.nvml import START_WITH_IT, count_cards, without_driver
from aitop.sources.source import SourceError

# NVML is documented to be thread-safe, but other tools have learnt from drivers that hang not to rely on it.
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
        remedy = START_WITH_IT if count_cards() else None
        raise SourceError("absent", "the NVIDIA driver is here, but no GPU", remedy)
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
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: without_driver(count_cards()),
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: SourceError(
            "absent", "the NVIDIA kernel driver is not loaded", "sudo modprobe nvidia" if count_cards() else None
        ),
        pynvml.NVML_ERROR_NO_PERMISSION: SourceError(
            "denied", "the NVIDIA driver does not let this user in", _PERMISSION_REMEDY
        ),
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: SourceError(
            "failed", "the NVIDIA driver was updated while the old one is still loaded", "reboot the machine"
        ),
    }
    return known.get(int(error.value), SourceError("failed", f"NVML does not start: {error}"))


_NEVER = frozenset(
    {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    | {pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, pynvml.NVML_ERROR_DEPRECATED}
)
_NOTHING_NOW = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_NO_DATA})
_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})


class DeviceLostError(Exception):
    """The driver lost the device that was asked, or wants it reset before it answers again."""


class Handle(msgspec.Struct, frozen=True):
    """What an NVML call is about: a device, a MIG slice or (without pointer) the system. `label` is unique."""

    label: str
    pointer: Any = None


SYSTEM = Handle("system")


class Gate:
    """Asks NVML by function name.

    A call that this device does not support, that this driver does not have or that this user may not make is made
    once and never again. After any other failure the call returns None and is made again the next time.
    `answered` counts calls for a device that returned something. `last_error` is the newest failure of the second kind,
    except those that only mean that there is no figure now.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.answered = 0
        self.last_error: str | None = None
        self._never: set[tuple[str, str, Hashable]] = set()

    def ask(self, handle: Handle, function: str, *arguments: Any, variant: Hashable = None) -> Any | None:
        """What `function` returns for `handle`, or None. Raises DeviceLostError.

        `variant` tells apart uses of one function that may be supported independently; by default its arguments do.
        """
        key = (handle.label, function, arguments if variant is None else variant)
        if key in self._never:
            return None
        call = getattr(self.nvml, function, None)
        if call is None:
            self._never.add(key)
            return None
        everything = arguments if handle.pointer is None else (handle.pointer, *arguments)
        try:
            result = call(*everything)
        except self.nvml.NVMLError as error:
            self._note(key, handle, error)
            return None
        except (ValueError, TypeError, OverflowError, ctypes.ArgumentError) as error:
            # pynvml itself stumbles over some answers, for example a name that is not UTF-8.
            self.last_error = f"{function}: {error}"
            return None
        if handle.pointer is not None:
            self.answered += 1
        return result

    def first(self, handle: Handle, functions: tuple[str, ...], *arguments: Any) -> Any | None:
        """The first of several functions, newest first, that gives something: older drivers lack the newer ones."""
        for function in functions:
            result = self.ask(handle, function, *arguments)
            if result is not None:
                return result
        return None

    def _note(self, key: tuple[str, str, Hashable], handle: Handle, error: Any) -> None:
        code = int(error.value)
        # A device answers 'invalid' for a sensor or a link that it does not have; elsewhere the arguments were wrong.
        if code in _NEVER or (code == pynvml.NVML_ERROR_INVALID_ARGUMENT and handle.pointer is not None):
            self._never.add(key)
        elif code in _LOST and handle.pointer is not None:
            raise DeviceLostError(handle.label) from error
        elif code not in _NOTHING_NOW:
            self.last_error = f"{key[1]}: {error}"
