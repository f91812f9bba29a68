"""Reads one device. What cannot change is read once, what changes rarely every few ticks, the rest at each."""

from __future__ import annotations

from typing import Any, NamedTuple

from aitop.model.gpu import GpmSample, GpuDevice, MigDevice
from aitop.sources import plausible
from aitop.sources.nvml.library import SYSTEM, DeviceLostError, Gate, Handle
from aitop.sources.nvml.processes import ProcessMeter

SLOW_TICKS = 5
SM_CLOCK, MEMORY_CLOCK = 1, 2
CORE_SENSOR = 0
UNCORRECTED = 1
SINCE_DRIVER_LOAD = 0
EVENT_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
MOST_SLICES = 16

# What holds the clocks below what the work asks for. Left out on purpose: gpu_idle (0x1, nothing to do),
# applications_clocks_setting (0x2, the clocks somebody chose, set on every data-centre card) and
# display_clock_setting (0x100).
THROTTLE_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
_HIGHEST_REASONS = (1 << 20) - 1


class Device:
    """One GPU and the meters that remember its previous counters.

    `needs_pcie` is True while PCIe traffic has to be asked for with `measure_pcie`.
    """

    def __init__(self, gate: Gate, index: int, handle: Handle) -> None:
        self.index = index
        self.lost = False
        self._gate = gate
        self.handle = handle
        self._ticks = index  # devices take their slow turn at different ticks
        self._pcie: tuple[float | None, float | None] = (None, None)
        # Fields of GpuDevice.
        self._slow: dict[str, Any] = {}
        self._lasting = self._read_lasting()
        self._gpm = GpmMeter(gate, handle)
        self.needs_pcie = not self._gpm.working
        self._nvlink = NvlinkMeter(gate, handle)
        self._processes = ProcessMeter(gate, handle)

    def measure_pcie(self) -> None:
        """Ask for PCIe traffic, which takes 40 ms. The figures stay until the next call."""
        try:
            self._pcie = pcie_rate(self._gate, self.handle)
        except DeviceLostError:
            self.lost = True

    def read(self, now: float, xid: tuple[int, ...] | None) -> GpuDevice:
        """The device now. Once the driver has lost it, only its identity, `lost` and its Xid errors."""
        if not self.lost:
            try:
                return self._read(now, xid)
            except DeviceLostError:
                self.lost = True
        name, uuid = self._lasting["name"], self._lasting["uuid"]
        return GpuDevice(index=self.index, name=name, uuid=uuid, xid=xid, lost=True)

    def close(self) -> None:
        """Give back what was allocated in NVML."""
        self._gpm.close()

    def _read(self, now: float, xid: tuple[int, ...] | None) -> GpuDevice:
        if not self._slow or self._ticks % SLOW_TICKS == 0:
            self._slow = self._read_slow()
        self._ticks += 1
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        busy = None if rates is None else plausible.share(rates.gpu)
        gpm = self._gpm.read(now)
        measured = gpm.links if gpm is not None else {}
        pcie, nvlink = self._pcie, (measured.get("nvlink_received"), measured.get("nvlink_sent"))
        if measured.get("pcie_received") is not None:
            pcie = measured["pcie_received"], measured["pcie_sent"]
        # Before its second sample, a meter that works has no figures yet.
        self.needs_pcie = measured.get("pcie_received") is None if gpm is not None else not self._gpm.working
        if None in nvlink:
            nvlink = self._nvlink.read(now)
        return GpuDevice(
            index=self.index,
            minor=self._processes.minor,
            busy=busy,
            memory_busy=None if rates is None else plausible.share(rates.memory),
            power=self._watts("nvmlDeviceGetPowerUsage"),
            temperature=self._celsius("nvmlDeviceGetTemperature", CORE_SENSOR),
            sm_clock=self._megahertz("nvmlDeviceGetClockInfo", SM_CLOCK),
            memory_clock=self._megahertz("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            throttle=reason_names(self._gate.first(self.handle, EVENT_REASONS)),
            pcie_received=pcie[0],
            pcie_sent=pcie[1],
            nvlink_received=nvlink[0],
            nvlink_sent=nvlink[1],
            xid=xid,
            processes=self._processes.read(busy),
            gpm=None if gpm is None else gpm.sample,
            **read_memory(self._gate, self.handle),
            **self._lasting,
            **self._slow,
        )

    def _ask(self, function: str, *arguments: Any) -> Any | None:
        return self._gate.ask(self.handle, function, *arguments)

    def _read_lasting(self) -> dict[str, Any]:
        """Read what cannot change: name, UUID, and maximum or default of clock, power limit and PCIe link."""
        return {
            "name": plausible.clean(self._ask("nvmlDeviceGetName")),
            "uuid": plausible.clean(self._ask("nvmlDeviceGetUUID")),
            "sm_clock_max": self._megahertz("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
            "power_limit_default": self._watts("nvmlDeviceGetPowerManagementDefaultLimit") or None,
            "pcie_generation_max": plausible.whole(self._ask("nvmlDeviceGetMaxPcieLinkGeneration"), 1, 15),
            "pcie_width_max": plausible.whole(self._ask("nvmlDeviceGetMaxPcieLinkWidth"), 1, 64),
        }

    def _read_slow(self) -> dict[str, Any]:
        """Read what changes rarely or takes long to read."""
        mode = self._ask("nvmlDeviceGetMigMode")
        mig = None if mode is None else bool(mode[0])
        return {
            "power_limit": self._watts("nvmlDeviceGetEnforcedPowerLimit") or None,
            "pcie_generation": plausible.whole(self._ask("nvmlDeviceGetCurrPcieLinkGeneration"), 1, 15),
            "pcie_width": plausible.whole(self._ask("nvmlDeviceGetCurrPcieLinkWidth"), 1, 64),
            "nvlinks_active": active_nvlinks(self._gate, self.handle),
            "ecc_uncorrected": plausible.whole(
                self._ask("nvmlDeviceGetTotalEccErrors", UNCORRECTED, SINCE_DRIVER_LOAD),
                0,
                plausible.HIGHEST_ERROR_COUNT,
            ),
            "fan": plausible.share(self._ask("nvmlDeviceGetFanSpeed")),
            "mig": mig,
            "mig_devices": read_slices(self._gate, self.handle) if mig else (),
        }

    def _watts(self, function: str) -> float | None:
        milliwatts = self._ask(function)
        return plausible.within(None if milliwatts is None else milliwatts / 1000, 0.0, plausible.HIGHEST_WATTS)

    def _celsius(self, function: str, *arguments: int) -> float | None:
        return plausible.within(self._ask(function, *arguments), 0.0, plausible.HIGHEST_CELSIUS)

    def _megahertz(self, function: str, domain: int) -> int | None:
        return plausible.whole(self._ask(function, domain), 0, plausible.HIGHEST_MEGAHERTZ)


def reason_names(mask: int | None) -> tuple[str, ...] | None:
    """The reasons in NVML's bit mask that hold the clocks back, in the mask's order; None for garbage."""
    if mask is None or not 0 <= mask <= _HIGHEST_REASONS:
        return None
    return tuple(name for bit, name in THROTTLE_REASONS.items() if mask & bit)


def read_memory(gate: Gate, handle: Handle) -> dict[str, Any]:
    """The memory fields (bytes) of a device or MIG slice; empty if the GPU uses the host's memory and has no figure."""
    newer = getattr(gate.nvml, "nvmlMemory_v2", None)
    answer = None if newer is None else gate.ask(handle, "nvmlDeviceGetMemoryInfo", newer)
    if answer is None:
        # The first version of the structure counts reserved memory as used.
        answer = gate.ask(handle, "nvmlDeviceGetMemoryInfo")
    total = None if answer is None else plausible.whole(answer.total, 1, plausible.HIGHEST_BYTES)
    if answer is None or total is None:
        return {}
    return {"memory_total": total, "memory_used": plausible.whole(answer.used, 0, total)}


def read_slices(gate: Gate, handle: Handle) -> tuple[MigDevice, ...]:
    """The MIG devices that exist on a GPU in MIG mode, in NVML's order."""
    most = plausible.whole(gate.ask(handle, "nvmlDeviceGetMaxMigDeviceCount"), 0, MOST_SLICES) or 0
    slices = []
    for index in range(most):
        pointer = gate.ask(handle, "nvmlDeviceGetMigDeviceHandleByIndex", index)
        if pointer is None:
            continue
        slice_handle = Handle(f"{handle.label}.mig{index}", pointer)
        slices.append(
            MigDevice(
                index=index,
                uuid=plausible.clean(gate.ask(slice_handle, "nvmlDeviceGetUUID")),
                name=plausible.clean(gate.ask(slice_handle, "nvmlDeviceGetName")),
                **read_memory(gate, slice_handle),
            )
        )
    return tuple(slices)


# --- traffic of links -------------------------------------------------------------------------------------------------


PCIE_SENT_COUNTER, PCIE_RECEIVED_COUNTER = 0, 1
NVLINK_SENT_FIELD, NVLINK_RECEIVED_FIELD, ALL_LINKS = 138, 139, 0xFFFFFFFF
MOST_NVLINKS = 36
KIBIBYTE, KILOBYTE = 1024, 1000

# Bytes per second, received and sent by the device.
Traffic = tuple[float | None, float | None]


def pcie_rate(gate: Gate, handle: Handle) -> Traffic:
    """PCIe traffic, which the driver measures over 20 ms for each direction while the caller waits."""
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


# --- performance monitoring -------------------------------------------------------------------------------------------


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
