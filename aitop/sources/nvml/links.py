"""PCIe and NVLink traffic of devices whose performance monitoring does not give it."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.sources.nvml import plausible
from aitop.sources.nvml.gate import Gate, Handle

PCIE_SENT_COUNTER, PCIE_RECEIVED_COUNTER = 0, 1
NVLINK_SENT_FIELD, NVLINK_RECEIVED_FIELD, ALL_LINKS = 138, 139, 0xFFFFFFFF
MOST_NVLINKS = 36
KIBIBYTE, KILOBYTE = 1024, 1000


def pcie_rate(gate: Gate, handle: Handle) -> tuple[float | None, float | None]:
    """Bytes per second received and sent by the device, measured by the driver over 20 ms for each direction."""

    def one(counter: int) -> float | None:
        kilobytes = gate.ask(handle, "nvmlDeviceGetPcieThroughput", counter)
        return plausible.within(
            None if kilobytes is None else kilobytes * KILOBYTE, 0.0, plausible.HIGHEST_BYTES_PER_SECOND
        )

    return one(PCIE_RECEIVED_COUNTER), one(PCIE_SENT_COUNTER)


class Rotation:
    """Chooses one device a tick.

    Each PCIe direction keeps the calling thread for the 20 ms over which the driver counts: eight devices would cost
    a third of a second at every tick, so only one device is measured a tick and the others keep their last figure.
    """

    def __init__(self) -> None:
        self._last = -1

    def next(self, indices: Sequence[int]) -> int | None:
        """The one after the last one chosen, going round; None if there is nobody to choose."""
        if not indices:
            return None
        later = [index for index in indices if index > self._last]
        self._last = min(later) if later else min(indices)
        return self._last


class NvlinkMeter:
    """Turns the device's NVLink byte counters, over all links, into rates."""

    def __init__(self, gate: Gate, handle: Handle) -> None:
        self._gate = gate
        self._handle = handle
        self._before: tuple[float, int, int] | None = None

    def read(self, now: float) -> tuple[float | None, float | None]:
        """Bytes per second received and sent since the last call; None before there are two."""
        fields = [(NVLINK_RECEIVED_FIELD, ALL_LINKS), (NVLINK_SENT_FIELD, ALL_LINKS)]
        values = self._gate.ask(self._handle, "nvmlDeviceGetFieldValues", fields, variant="nvlink")
        before, self._before = self._before, None
        if values is None or any(value.nvmlReturn != 0 for value in values):
            return None, None
        received, sent = int(values[0].value.ullVal), int(values[1].value.ullVal)
        self._before = (now, received, sent)
        if before is None or now <= before[0]:
            return None, None
        seconds = now - before[0]
        return _rate(received - before[1], seconds), _rate(sent - before[2], seconds)


def active_nvlinks(gate: Gate, handle: Handle) -> int | None:
    """How many NVLinks are up; None where the device has none."""
    states: list[int] = []
    for link in range(MOST_NVLINKS):
        state = gate.ask(handle, "nvmlDeviceGetNvLinkState", link)
        if state is None:
            break
        states.append(int(state))
    return sum(1 for state in states if state == 1) if states else None


def _rate(kibibytes: int, seconds: float) -> float | None:
    return plausible.within(kibibytes * KIBIBYTE / seconds, 0.0, plausible.HIGHEST_BYTES_PER_SECOND)
