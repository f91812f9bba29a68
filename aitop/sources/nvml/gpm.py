"""GPU performance monitoring (Hopper and later): what the hardware counted between two samples."""

from __future__ import annotations

from typing import Any, NamedTuple

from aitop.model.gpu import GpmSample
from aitop.sources import plausible
from aitop.sources.nvml.gate import SYSTEM, Gate, Handle

# NVML asks for more than 100 ms between the two samples of a pair.
SHORTEST_INTERVAL_SECONDS = 0.11
MEBIBYTE = 1 << 20

# NVML's numbers of its metrics: percentages, then MiB per second.
SHARES = {
    "sm_active": 2,
    "sm_occupancy": 3,
    "tensor_active": 5,
    "dram_active": 10,
    "fp64_active": 11,
    "fp32_active": 12,
}
RATES = {"pcie_sent": 20, "pcie_received": 21, "nvlink_received": 60, "nvlink_sent": 61}
METRICS = tuple({**SHARES, **RATES}.values())


class GpmReading(NamedTuple):
    """Shares of the interval, and by their names in GpuDevice the link traffic in bytes per second."""

    sample: GpmSample
    links: dict[str, float | None]


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
        support = gate.ask(handle, "nvmlGpmQueryDeviceSupport")
        if support is not None and support.isSupportedDevice:
            allocated = (gate.ask(SYSTEM, "nvmlGpmSampleAlloc") for _ in range(2))
            self._buffers = [buffer for buffer in allocated if buffer is not None]
        self.working = len(self._buffers) == 2

    def read(self, now: float) -> GpmReading | None:
        """The metrics since the last call; None before there are two samples, and where GPM is not supported."""
        if len(self._buffers) < 2:
            return None
        if self._sampled_at is not None and now - self._sampled_at < SHORTEST_INTERVAL_SECONDS:
            return self._reading
        older, newer = self._buffers
        self.working = self._gate.ask(self._handle, "nvmlGpmSampleGet", newer, variant="gpm") is not None
        if not self.working:
            self._sampled_at = self._reading = None
            return None
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
        shares = {name: plausible.share(values.get(metric)) for name, metric in SHARES.items()}
        links = {name: plausible.rate(values.get(metric), MEBIBYTE) for name, metric in RATES.items()}
        return GpmReading(GpmSample(**shares), links)
