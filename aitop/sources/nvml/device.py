"""Reads one device. What cannot change is read once, what changes rarely every few ticks, the rest at each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aitop.model.gpu import GpuDevice, MigDevice
from aitop.sources.nvml import plausible
from aitop.sources.nvml.gate import DeviceLostError, Gate, Handle
from aitop.sources.nvml.gpm import GpmMeter, GpmReading
from aitop.sources.nvml.links import NvlinkMeter, active_nvlinks, pcie_rate
from aitop.sources.nvml.processes import ProcessMeter
from aitop.sources.nvml.throttle import reason_names

SLOW_TICKS = 5
SM_CLOCK, MEMORY_CLOCK = 1, 2
CORE_SENSOR = 0
SLOWDOWN_THRESHOLD = 1
CORRECTED, UNCORRECTED = 0, 1
SINCE_DRIVER_LOAD, OVER_LIFETIME = 0, 1
EVENT_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
MOST_SLICES = 16


@dataclass(frozen=True)
class Lasting:
    """What a device is."""

    name: str | None
    uuid: str | None
    sm_clock_max: int | None
    memory_clock_max: int | None
    power_limit_default: float | None
    pcie_generation_max: int | None
    pcie_width_max: int | None
    temperature_slowdown: float | None


@dataclass(frozen=True)
class Slow:
    """What changes rarely or costs much."""

    power_limit: float | None
    pcie_generation: int | None
    pcie_width: int | None
    nvlinks_active: int | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    ecc_corrected_lifetime: int | None
    ecc_uncorrected_lifetime: int | None
    fan: float | None
    mig: bool | None
    mig_devices: tuple[MigDevice, ...]


@dataclass(frozen=True)
class Memory:
    """Bytes; all None on a machine whose GPU shares the host's memory and gives no figure."""

    total: int | None = None
    used: int | None = None
    reserved: int | None = None


class Device:
    """One GPU and the meters that remember its previous counters.

    `needs_pcie` is True while PCIe traffic has to be asked for with `measure_pcie`.
    """

    def __init__(self, gate: Gate, index: int, handle: Handle) -> None:
        self.index = index
        self.lost = False
        self.mine = False
        self._gate = gate
        self.handle = handle
        self._ticks = index  # devices take their slow turn at different ticks
        self._pcie: tuple[float | None, float | None] = (None, None)
        self._slow: Slow | None = None
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

    def read(self, now: float, tree: frozenset[int], xid: tuple[int, ...] | None) -> GpuDevice:
        """The device at this moment; only its identity, `lost` and Xids once the driver has lost it."""
        if not self.lost:
            try:
                return self._read(now, tree, xid)
            except DeviceLostError:
                self.lost = True
        return GpuDevice(
            index=self.index, name=self._lasting.name, uuid=self._lasting.uuid, xid=xid, lost=True, mine=self.mine
        )

    def close(self) -> None:
        """Give back what was allocated in NVML."""
        self._gpm.close()

    def _read(self, now: float, tree: frozenset[int], xid: tuple[int, ...] | None) -> GpuDevice:
        lasting, slow = self._lasting, self._take_slow_turn()
        busy, memory_busy = self._utilization()
        memory = read_memory(self._gate, self.handle)
        processes, self.mine = self._processes.read(tree, busy)
        gpm = self._gpm.read(now)
        pcie = self._pcie_of(gpm)
        nvlink = self._nvlink_of(gpm, now)
        return GpuDevice(
            index=self.index,
            name=lasting.name,
            uuid=lasting.uuid,
            busy=busy,
            memory_busy=memory_busy,
            memory_total=memory.total,
            memory_used=memory.used,
            memory_reserved=memory.reserved,
            power=self._watts("nvmlDeviceGetPowerUsage"),
            power_limit=slow.power_limit,
            power_limit_default=lasting.power_limit_default,
            temperature=self._celsius("nvmlDeviceGetTemperature", CORE_SENSOR),
            temperature_slowdown=lasting.temperature_slowdown,
            sm_clock=self._megahertz("nvmlDeviceGetClockInfo", SM_CLOCK),
            sm_clock_max=lasting.sm_clock_max,
            memory_clock=self._megahertz("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            memory_clock_max=lasting.memory_clock_max,
            throttle=reason_names(self._gate.first(self.handle, EVENT_REASONS)),
            pcie_received=pcie[0],
            pcie_sent=pcie[1],
            pcie_generation=slow.pcie_generation,
            pcie_generation_max=lasting.pcie_generation_max,
            pcie_width=slow.pcie_width,
            pcie_width_max=lasting.pcie_width_max,
            nvlink_received=nvlink[0],
            nvlink_sent=nvlink[1],
            nvlinks_active=slow.nvlinks_active,
            ecc_corrected=slow.ecc_corrected,
            ecc_uncorrected=slow.ecc_uncorrected,
            ecc_corrected_lifetime=slow.ecc_corrected_lifetime,
            ecc_uncorrected_lifetime=slow.ecc_uncorrected_lifetime,
            xid=xid,
            fan=slow.fan,
            mig=slow.mig,
            mig_devices=slow.mig_devices,
            processes=processes,
            gpm=None if gpm is None else gpm.sample,
            mine=self.mine,
        )

    def _take_slow_turn(self) -> Slow:
        slow = self._slow
        if slow is None or self._ticks % SLOW_TICKS == 0:
            slow = self._slow = self._read_slow()
        self._ticks += 1
        return slow

    def _ask(self, function: str, *arguments: Any) -> Any | None:
        return self._gate.ask(self.handle, function, *arguments)

    def _read_lasting(self) -> Lasting:
        return Lasting(
            name=plausible.clean(self._ask("nvmlDeviceGetName")),
            uuid=plausible.clean(self._ask("nvmlDeviceGetUUID")),
            sm_clock_max=self._megahertz("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
            memory_clock_max=self._megahertz("nvmlDeviceGetMaxClockInfo", MEMORY_CLOCK),
            power_limit_default=self._watts("nvmlDeviceGetPowerManagementDefaultLimit") or None,
            pcie_generation_max=plausible.whole(self._ask("nvmlDeviceGetMaxPcieLinkGeneration"), 1, 15),
            pcie_width_max=plausible.whole(self._ask("nvmlDeviceGetMaxPcieLinkWidth"), 1, 64),
            temperature_slowdown=self._slowdown(),
        )

    def _slowdown(self) -> float | None:
        """The temperature at which the clocks go down; newer cards only tell how far away it is."""
        threshold = self._celsius("nvmlDeviceGetTemperatureThreshold", SLOWDOWN_THRESHOLD)
        if threshold:
            return threshold
        margin = self._celsius("nvmlDeviceGetMarginTemperature")
        temperature = self._celsius("nvmlDeviceGetTemperature", CORE_SENSOR)
        return None if margin is None or temperature is None else temperature + margin

    def _read_slow(self) -> Slow:
        mode = self._ask("nvmlDeviceGetMigMode")
        mig = None if mode is None else bool(mode[0])
        return Slow(
            power_limit=self._watts("nvmlDeviceGetEnforcedPowerLimit") or None,
            pcie_generation=plausible.whole(self._ask("nvmlDeviceGetCurrPcieLinkGeneration"), 1, 15),
            pcie_width=plausible.whole(self._ask("nvmlDeviceGetCurrPcieLinkWidth"), 1, 64),
            nvlinks_active=active_nvlinks(self._gate, self.handle),
            ecc_corrected=self._ecc(CORRECTED, SINCE_DRIVER_LOAD),
            ecc_uncorrected=self._ecc(UNCORRECTED, SINCE_DRIVER_LOAD),
            ecc_corrected_lifetime=self._ecc(CORRECTED, OVER_LIFETIME),
            ecc_uncorrected_lifetime=self._ecc(UNCORRECTED, OVER_LIFETIME),
            fan=plausible.share(self._ask("nvmlDeviceGetFanSpeed")),
            mig=mig,
            mig_devices=read_slices(self._gate, self.handle) if mig else (),
        )

    def _utilization(self) -> tuple[float | None, float | None]:
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        if rates is None:
            return None, None
        return plausible.share(rates.gpu), plausible.share(rates.memory)

    def _pcie_of(self, gpm: GpmReading | None) -> tuple[float | None, float | None]:
        told = gpm is not None and gpm.pcie_received is not None
        self.needs_pcie = not (told if gpm is not None else self._gpm.working)
        return (gpm.pcie_received, gpm.pcie_sent) if gpm is not None and told else self._pcie

    def _nvlink_of(self, gpm: GpmReading | None, now: float) -> tuple[float | None, float | None]:
        if gpm is not None and gpm.nvlink_received is not None and gpm.nvlink_sent is not None:
            return gpm.nvlink_received, gpm.nvlink_sent
        return self._nvlink.read(now)

    def _watts(self, function: str) -> float | None:
        milliwatts = self._ask(function)
        return plausible.within(None if milliwatts is None else milliwatts / 1000, 0.0, plausible.HIGHEST_WATTS)

    def _celsius(self, function: str, *arguments: int) -> float | None:
        return plausible.within(self._ask(function, *arguments), 0.0, plausible.HIGHEST_CELSIUS)

    def _megahertz(self, function: str, domain: int) -> int | None:
        return plausible.whole(self._ask(function, domain), 0, plausible.HIGHEST_MEGAHERTZ)

    def _ecc(self, kind: int, span: int) -> int | None:
        return plausible.whole(self._ask("nvmlDeviceGetTotalEccErrors", kind, span), 0, plausible.HIGHEST_ERROR_COUNT)


def read_memory(gate: Gate, handle: Handle) -> Memory:
    """Memory of a device or a MIG slice; the first version of the structure counts what is reserved as used."""
    newer = getattr(gate.nvml, "nvmlMemory_v2", None)
    answer = None if newer is None else gate.ask(handle, "nvmlDeviceGetMemoryInfo", newer)
    if answer is None:
        answer = gate.ask(handle, "nvmlDeviceGetMemoryInfo")
    if answer is None:
        return Memory()
    total = plausible.whole(answer.total, 1, plausible.HIGHEST_BYTES)
    if total is None:
        return Memory()
    return Memory(
        total, plausible.whole(answer.used, 0, total), plausible.whole(getattr(answer, "reserved", None), 0, total)
    )


def read_slices(gate: Gate, handle: Handle) -> tuple[MigDevice, ...]:
    """The MIG devices that exist on a GPU in MIG mode, in NVML's order."""
    most = plausible.whole(gate.ask(handle, "nvmlDeviceGetMaxMigDeviceCount"), 0, MOST_SLICES) or 0
    found = []
    for index in range(most):
        pointer = gate.ask(handle, "nvmlDeviceGetMigDeviceHandleByIndex", index)
        if pointer is None:
            continue
        slice_handle = Handle(f"{handle.label}.mig{index}", pointer)
        memory = read_memory(gate, slice_handle)
        found.append(
            MigDevice(
                index=index,
                uuid=plausible.clean(gate.ask(slice_handle, "nvmlDeviceGetUUID")),
                name=plausible.clean(gate.ask(slice_handle, "nvmlDeviceGetName")),
                memory_total=memory.total,
                memory_used=memory.used,
            )
        )
    return tuple(found)
