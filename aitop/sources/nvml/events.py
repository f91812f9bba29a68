"""Xid errors: what the driver reports about a device while we watch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from aitop.sources.nvml.gate import SYSTEM, Gate, Handle

XID_EVENT = 0x8
MOST_KEPT = 16
MOST_A_TICK = 64


class XidWatch:
    """Collects the Xids of the devices that report them, without ever waiting for one."""

    def __init__(self, gate: Gate, devices: Mapping[int, Handle]) -> None:
        self._gate = gate
        self._seen: dict[int, list[int]] = {}
        self._index_of: dict[int, int] = {}
        self._set: Any = gate.ask(SYSTEM, "nvmlEventSetCreate")
        if self._set is None:
            return
        for index, handle in devices.items():
            if self._register(handle):
                self._seen[index] = []
                self._index_of[_address(handle.pointer)] = index

    def _register(self, handle: Handle) -> bool:
        types = self._gate.ask(handle, "nvmlDeviceGetSupportedEventTypes")
        if types is None or not int(types) & XID_EVENT:
            return False
        answered = self._gate.answered
        self._gate.ask(handle, "nvmlDeviceRegisterEvents", XID_EVENT, self._set, variant="xid")
        return self._gate.answered > answered  # it returns nothing when it works

    def poll(self) -> None:
        """Take what has been reported since the last call."""
        if not self._seen:
            return
        for _ in range(MOST_A_TICK):
            event = self._gate.ask(SYSTEM, "nvmlEventSetWait_v2", self._set, 0, variant="xid")
            if event is None:
                return
            index = self._index_of.get(_address(event.device))
            if index is not None and int(event.eventType) == XID_EVENT:
                self._seen[index] = [*self._seen[index], int(event.eventData)][-MOST_KEPT:]

    def of(self, index: int) -> tuple[int, ...] | None:
        """The newest Xids of the device since the source was opened, oldest first; None where it reports none."""
        seen = self._seen.get(index)
        return None if seen is None else tuple(seen)

    def close(self) -> None:
        """Give the event set back."""
        if self._set is not None:
            self._gate.ask(SYSTEM, "nvmlEventSetFree", self._set, variant="xid")
            self._set = None


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
