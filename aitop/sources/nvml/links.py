"""PCIe and NVLink traffic of devices whose performance monitoring does not give it."""

from __future__ import annotations

from aitop.sources import plausible
from aitop.sources.nvml.gate import Gate, Handle

PCIE_SENT_COUNTER, PCIE_RECEIVED_COUNTER = 0, 1
NVLINK_SENT_FIELD, NVLINK_RECEIVED_FIELD, ALL_LINKS = 138, 139, 0xFFFFFFFF
MOST_NVLINKS = 36
KIBIBYTE, KILOBYTE = 1024, 1000

# Bytes per second, received and sent by the device.
Traffic = tuple[float | None, float | None]


def pcie_rate(gate: Gate, handle: Handle) -> Traffic:
    """What the driver measures over 20 ms for each direction, while the caller waits."""
    counters = (PCIE_RECEIVED_COUNTER, PCIE_SENT_COUNTER)
    received, sent = (gate.ask(handle, "nvmlDeviceGetPcieThroughput", counter) for counter in counters)
    return plausible.rate(received, KILOBYTE), plausible.rate(sent, KILOBYTE)


class NvlinkMeter:
    """Turns the device's NVLink counters into rates."""

    def __init__(self, gate: Gate, handle: Handle) -> None:
        self._gate = gate
        self._handle = handle
        self._before: tuple[float, int, int] | None = None

    def read(self, now: float) -> Traffic:
        """Bytes per second since the last call."""
        fields = [(NVLINK_RECEIVED_FIELD, ALL_LINKS), (NVLINK_SENT_FIELD, ALL_LINKS)]
        values = self._gate.ask(self._handle, "nvmlDeviceGetFieldValues", fields, variant="nvlink")
        before, self._before = self._before, None
        if values is None or any(value.nvmlReturn != 0 for value in values):
            return None, None
        received, sent = int(values[0].value.ullVal), int(values[1].value.ullVal)
        self._before = (now, received, sent)
        if before is None or now <= before[0]:
            return None, None
        scale = KIBIBYTE / (now - before[0])
        return plausible.rate(received - before[1], scale), plausible.rate(sent - before[2], scale)


def active_nvlinks(gate: Gate, handle: Handle) -> int | None:
    """How many NVLinks are up; None where the device has none."""
    states: list[int] = []
    for link in range(MOST_NVLINKS):
        state = gate.ask(handle, "nvmlDeviceGetNvLinkState", link)
        if state is None:
            break
        states.append(int(state))
    return states.count(1) if states else None
