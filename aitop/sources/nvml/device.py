"""Reads one device. What cannot change is read once, what changes rarely every few ticks, the rest at each."""

from __future__ import annotations

from typing import Any

from aitop.model.gpu import GpuDevice, MigDevice
from aitop.sources import plausible
from aitop.sources.nvml.gate import DeviceLostError, Gate, Handle
from aitop.sources.nvml.gpm import GpmMeter
from aitop.sources.nvml.links import NvlinkMeter, active_nvlinks, pcie_rate
from aitop.sources.nvml.processes import ProcessMeter

SLOW_TICKS = 5
SM_CLOCK, MEMORY_CLOCK = 1, 2
CORE_SENSOR = 0
UNCORRECTED = 1
SINCE_DRIVER_LOAD = 0
EVENT_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
MOST_SLICES = 16

# Something holds the clocks below what the work asks for. Left out on purpose: gpu_idle (0x1, nothing to do),
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
        self.mine = False
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

    def read(self, now: float, tree: frozenset[int], xid: tuple[int, ...] | None) -> GpuDevice:
        """The device now. Once the driver has lost it, only its identity, `lost` and its Xid errors."""
        if not self.lost:
            try:
                return self._read(now, tree, xid)
            except DeviceLostError:
                self.lost = True
        name, uuid = self._lasting["name"], self._lasting["uuid"]
        return GpuDevice(index=self.index, name=name, uuid=uuid, xid=xid, lost=True, mine=self.mine)

    def close(self) -> None:
        """Give back what was allocated in NVML."""
        self._gpm.close()

    def _read(self, now: float, tree: frozenset[int], xid: tuple[int, ...] | None) -> GpuDevice:
        if not self._slow or self._ticks % SLOW_TICKS == 0:
            self._slow = self._read_slow()
        self._ticks += 1
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        busy = None if rates is None else plausible.share(rates.gpu)
        processes, self.mine = self._processes.read(tree, busy)
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
            processes=processes,
            gpm=None if gpm is None else gpm.sample,
            mine=self.mine,
            **read_memory(self._gate, self.handle),
            **self._lasting,
            **self._slow,
        )

    def _ask(self, function: str, *arguments: Any) -> Any | None:
        return self._gate.ask(self.handle, function, *arguments)

    def _read_lasting(self) -> dict[str, Any]:
        """Read what cannot change: name, UUID, greatest clock and link width."""
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
    """Fields of memory of a device or a MIG slice; empty where the GPU shares the host's and gives no figure."""
    newer = getattr(gate.nvml, "nvmlMemory_v2", None)
    answer = None if newer is None else gate.ask(handle, "nvmlDeviceGetMemoryInfo", newer)
    if answer is None:
        # The first version of the structure counts what is reserved as used.
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
