"""GPU performance monitoring (Hopper and later): what the hardware counted between two samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aitop.model.gpu import GpmSample
from aitop.sources.nvml import plausible
from aitop.sources.nvml.gate import SYSTEM, Gate, Handle

# NVML asks for more than 100 ms between the two samples of a pair.
SHORTEST_INTERVAL_SECONDS = 0.11
MEBIBYTE = 1 << 20

SM_ACTIVE, SM_OCCUPANCY, TENSOR, DRAM, FP64, FP32, FP16 = 2, 3, 5, 10, 11, 12, 13
PCIE_SENT, PCIE_RECEIVED, NVLINK_RECEIVED, NVLINK_SENT = 20, 21, 60, 61
METRICS = (
    *(SM_ACTIVE, SM_OCCUPANCY, TENSOR, DRAM, FP64, FP32, FP16),
    *(PCIE_SENT, PCIE_RECEIVED, NVLINK_RECEIVED, NVLINK_SENT),
)


@dataclass(frozen=True)
class GpmReading:
    """Shares of the interval, and link traffic in bytes per second as the device counted it."""

    sample: GpmSample
    pcie_received: float | None = None
    pcie_sent: float | None = None
    nvlink_received: float | None = None
    nvlink_sent: float | None = None


class GpmMeter:
    """Keeps two sample buffers of one device and swaps them. Nothing is allocated where GPM is not supported.

    `working` is True where it is supported and the last sample could be taken.
    """

    def __init__(self, gate: Gate, handle: Handle) -> None:
        self._gate = gate
        self._handle = handle
        self._buffers: list[Any] = []
        self._sampled_at: float | None = None
        self._reading: GpmReading | None = None
        self.working = False
        support = gate.ask(handle, "nvmlGpmQueryDeviceSupport")
        if support is None or not support.isSupportedDevice:
            return
        for _ in range(2):
            buffer = gate.ask(SYSTEM, "nvmlGpmSampleAlloc")
            if buffer is not None:
                self._buffers.append(buffer)
        self.working = len(self._buffers) == 2

    def read(self, now: float) -> GpmReading | None:
        """What happened since the last call; None before there are two samples or where it is not supported."""
        if len(self._buffers) < 2:
            return None
        if self._sampled_at is not None and now - self._sampled_at < SHORTEST_INTERVAL_SECONDS:
            return self._reading
        older, newer = self._buffers
        if self._gate.ask(self._handle, "nvmlGpmSampleGet", newer, variant="gpm") is None:
            self._sampled_at = self._reading = None
            self.working = False
            return None
        self.working = True
        self._reading = self._between(older, newer) if self._sampled_at is not None else None
        self._sampled_at = now
        self._buffers = [newer, older]
        return self._reading

    def close(self) -> None:
        """Give the buffers back."""
        for buffer in self._buffers:
            self._gate.ask(SYSTEM, "nvmlGpmSampleFree", buffer, variant="gpm")
        self._buffers = []

    def _between(self, older: Any, newer: Any) -> GpmReading | None:
        nvml = self._gate.nvml
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = len(METRICS)
        wanted.sample1, wanted.sample2 = older, newer
        for position, metric in enumerate(METRICS):
            wanted.metrics[position].metricId = metric
        got = self._gate.ask(SYSTEM, "nvmlGpmMetricsGet", wanted, variant=self._handle.label)
        if got is None:
            return None
        values = {
            metric: float(got.metrics[position].value)
            for position, metric in enumerate(METRICS)
            if got.metrics[position].nvmlReturn == 0
        }
        return _reading_of(values)


def _reading_of(values: dict[int, float]) -> GpmReading:
    def share(metric: int) -> float | None:
        return plausible.share(values.get(metric))

    def rate(metric: int) -> float | None:
        mebibytes = values.get(metric)
        return plausible.within(
            None if mebibytes is None else mebibytes * MEBIBYTE, 0.0, plausible.HIGHEST_BYTES_PER_SECOND
        )

    return GpmReading(
        GpmSample(
            sm_active=share(SM_ACTIVE),
            sm_occupancy=share(SM_OCCUPANCY),
            tensor_active=share(TENSOR),
            dram_active=share(DRAM),
            fp64_active=share(FP64),
            fp32_active=share(FP32),
            fp16_active=share(FP16),
        ),
        pcie_received=rate(PCIE_RECEIVED),
        pcie_sent=rate(PCIE_SENT),
        nvlink_received=rate(NVLINK_RECEIVED),
        nvlink_sent=rate(NVLINK_SENT),
    )
