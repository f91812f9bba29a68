"""gpu-shared, pcie-degraded, gpu-fault: other jobs on a device, its PCIe link, and its errors."""

from __future__ import annotations

from operator import attrgetter

from aitop.diagnosis.device import LANE_BYTES, link_rate, lost_devices, own_devices, without_figures
from aitop.diagnosis.evidence import MIN_STEPS, records, share_of_steps
from aitop.diagnosis.rule import Explanation, condition
from aitop.diagnosis.series import rise
from aitop.diagnosis.what_if import fix
from aitop.model.gpu import GpuDevice, GpuProcess
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent, plural, rate, size
from aitop.model.verdict import Fix, Severity

# Another process is on the device if it holds more than SHARED_MEMORY of its memory; the device is contended if it is
# busy for at least CONTENDED of the time.
SHARED_MEMORY = 0.05
CONTENDED = 0.8
# An idle device slows its link down, and links are read at every fifth tick only: the device must have worked in all
# of this number of readings.
LINK_POINTS = 6
LEAST_LOAD = 0.1
# Copies that keep a degraded link busy for less of the time are not what a step waits for.
FULL_LINK = 0.3
COUNTER_SECONDS = 300.0
# Xids that are caused by a program, or that merely follow from such a one: no sign of a broken device.
PROGRAM_XIDS = {
    13: "a kernel failed (out-of-range access, illegal instruction)",
    31: "a kernel touched memory that is not its own",
    43: "a channel was stopped because of a fault in a program",
    45: "the driver cleaned up after a program that ended",
}
HARDWARE_XIDS = {
    48: "a memory error that could not be corrected",
    63: "a row of memory is being replaced by a spare one",
    64: "a row of memory could not be replaced",
    74: "an NVLink failed",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "a contained memory error",
    95: "a memory error that was not contained",
    119: "the GPU's own processor does not answer",
    120: "the GPU's own processor failed",
    144: "an NVLink had an error (SAW)",
    145: "an NVLink had an error (RLW)",
    149: "an NVLink failed (NETIR)",
    154: "the driver asks for the GPU to be recovered: dmesg says how",
    171: "a memory error that could not be corrected",
}
# Errors that the device handled by itself, or that cost only one program.
MILD_XIDS = {63, 92, 94, 144, 145, 154}


@condition("gpu-shared", 0.05, 0.03)
def shared(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict that another job computes on a device that the run uses."""
    # The jobs on other slices of a card (MIG) take nothing from this one's.
    devices = [device for device in own_devices(snapshot) if not device.mig]
    listed = [device for device in devices if _listed(device)]
    if devices and not listed:
        unlisted = all(device.processes is None for device in devices)
        reason = "the driver does not list" if unlisted else "the driver names only from outside of the container"
        return f"{reason} who is on the GPU"
    device = max(listed, key=_taken, default=None)
    if device is None or _taken(device) <= 0:
        return without_figures(snapshot)
    others = [process for process in device.processes or () if not process.mine]
    busiest = max(others, key=lambda process: (process.sm or 0.0, process.memory or 0))
    computing = [process.sm for process in others if process.sm is not None]
    # While the step waits for data, other jobs on the device cost it nothing.
    waits = snapshot.phases.data_wait or 0.0
    taken = min(0.95, sum(computing)) * (1.0 - waits) if any(computing) else None
    contended = device.busy is not None and device.busy >= CONTENDED
    severity: Severity = "critical" if taken is not None and taken >= 0.5 and contended else "warning"
    if computing and taken is None:
        severity = "info"
    return Explanation(
        severity=severity,
        share=taken,
        confidence=0.85 if taken else 0.5,
        title=f"GPU {device.index} is shared with {plural(len(others), 'other process', 'other processes')}",
        evidence=tuple(_uses(process) for process in others[:4]),
        fixes=(fix(f"use another device (CUDA_VISIBLE_DEVICES), or end pid {busiest.pid} if it is stray"),),
        level=_taken(device),
    )


def _listed(device: GpuDevice) -> bool:
    """Whether it is known which processes use the device, and which of them are the run's."""
    return device.processes is not None and (not device.processes or any(process.mine for process in device.processes))


def _uses(process: GpuProcess) -> str:
    name = f" {process.name}" if process.name else ""
    computing = "" if process.sm is None else f" uses {percent(process.sm)} of the SMs' time,"
    memory = "an unknown amount of memory" if process.memory is None else f"{size(process.memory)} of memory"
    return f"pid {process.pid}{name}{computing} holds {memory}"


def _taken(device: GpuDevice) -> float:
    """How much of the device others take: their SM share, or their memory where that is not known."""
    others = [process for process in device.processes or () if not process.mine]
    computing = sum(process.sm or 0.0 for process in others)
    memory = sum(process.memory or 0 for process in others) / device.memory_total if device.memory_total else 0.0
    return max(computing, memory if memory > SHARED_MEMORY else 0.0)


@condition("pcie-degraded")
def slow_link(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on a PCIe link that runs below what card and slot can do, although the device works."""
    slow = [device for device in own_devices(snapshot) if _link_share(device) < 1.0]
    if not slow:
        return without_figures(snapshot)
    loaded = [device for device in slow if _loaded(snapshot, device)]
    if not loaded:
        return "the PCIe link is below its best, as in any idle GPU: it is judged only while the GPU works"
    device = min(loaded, key=_link_share)
    share, used = _transfer(snapshot), _link_used(device)
    lost = share * (1.0 - _link_share(device)) if share is not None else None
    felt = (used is not None and used >= FULL_LINK) or (lost is not None and lost >= 0.05)
    severity: Severity = "warning" if felt else "info"
    evidence = [f"{_link_words(device)} while the GPU works"]
    if used is not None and device.pcie_received is not None and device.pcie_sent is not None:
        traffic = f"{rate(device.pcie_received)} in, {rate(device.pcie_sent)} out"
        evidence.append(f"{traffic}: {percent(used)} of what the link can carry now")
    if share is not None:
        evidence.append(f"copies to the device take {percent(share)} of each step")
    return Explanation(
        severity=severity,
        share=lost if felt and lost else None,
        confidence=0.8 if felt else 0.6,
        title=f"GPU {device.index} has {percent(_link_share(device))} of its PCIe bandwidth: {_link_words(device)}",
        evidence=tuple(evidence),
        fixes=(
            Fix(text="move the card to a slot with all lanes, reseat it or its riser, and look at the BIOS's limit"),
            fix("until then copy less: pin_memory=True, smaller dtypes, decode or augment on the GPU"),
        ),
        level=1.0,
    )


def _link_share(device: GpuDevice) -> float:
    """Bandwidth of the link as a part of the best that card and slot can do; 1 where that is not known."""
    now, best = LANE_BYTES.get(device.pcie_generation or 0), LANE_BYTES.get(device.pcie_generation_max or 0)
    speed = now / best if now and best else 1.0
    width = device.pcie_width / device.pcie_width_max if device.pcie_width and device.pcie_width_max else 1.0
    return min(1.0, speed) * min(1.0, width)


def _link_words(device: GpuDevice) -> str:
    parts = []
    if (device.pcie_generation or 0) < (device.pcie_generation_max or 0):
        parts.append(f"generation {device.pcie_generation} of {device.pcie_generation_max}")
    if (device.pcie_width or 0) < (device.pcie_width_max or 0):
        parts.append(f"{device.pcie_width} of {device.pcie_width_max} lanes")
    return ", ".join(parts)


def _loaded(snapshot: Snapshot, device: GpuDevice) -> bool:
    series = snapshot.series.get(f"gpu{device.index}.busy")
    known = [value for value in series.values if value is not None] if series is not None else []
    return len(known) >= LINK_POINTS and min(known[-LINK_POINTS:]) >= LEAST_LOAD


def _link_used(device: GpuDevice) -> float | None:
    """The busier direction's traffic as a part of what the link carries now."""
    most = link_rate(device)
    known = [traffic for traffic in (device.pcie_received, device.pcie_sent) if traffic is not None]
    return min(1.0, max(known) / most) if most and known else None


def _transfer(snapshot: Snapshot) -> float | None:
    """Share of step time in which the host copies, from the steps: phases timed by the device clock do not have it."""
    measured = share_of_steps(records(snapshot), attrgetter("transfer"), MIN_STEPS)
    return snapshot.phases.transfer if measured is None else measured


@condition("gpu-fault")
def fault(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on a device of the run that was lost or reports errors: uncorrected memory errors, Xids."""
    faults = [*(_lost(device) for device in lost_devices(snapshot))]
    faults += [one for device in own_devices(snapshot) if (one := _errors(snapshot, device)) is not None]
    if faults:
        return max(faults, key=lambda fault: (fault.severity == "critical", fault.confidence))
    devices = own_devices(snapshot)
    if devices and all(device.xid is None and device.ecc_uncorrected is None for device in devices):
        return "the driver reports neither Xids nor memory errors of this GPU"
    return without_figures(snapshot)


def _lost(device: GpuDevice) -> Explanation:
    return _fault(
        "critical",
        0.95,
        f"GPU {device.index} is lost: the driver no longer reaches it",
        _xid_words(device),
        ("reset it (nvidia-smi -r) or reboot and go on from a checkpoint; if it is lost again, have it replaced",),
    )


def _errors(snapshot: Snapshot, device: GpuDevice) -> Explanation | None:
    """The verdict on the errors that a device reports; None where it reports none."""
    new = rise(snapshot, f"gpu{device.index}.ecc_uncorrected", COUNTER_SECONDS) or 0.0
    broken = [xid for xid in device.xid or () if xid not in PROGRAM_XIDS]
    evidence = _xid_words(device)
    total = device.ecc_uncorrected
    if total:
        lately = f"{new:.0f} of them in the last five minutes"
        evidence = (*evidence, f"{total} uncorrected memory errors since the driver was loaded, {lately}")
    grave = [xid for xid in broken if xid in HARDWARE_XIDS and xid not in MILD_XIDS]
    if new > 0 or grave:
        title = f"GPU {device.index} fails: " + (f"Xid {grave[-1]}" if grave else "memory errors")
        fix = "save a checkpoint and move to another device; have this one drained and tested (dcgmi diag)"
        return _fault("critical", 0.9, title, evidence, (fix,))
    if broken or device.xid:
        last = (broken or list(device.xid or ()))[-1]
        fix = (
            f"look up Xid {last} in NVIDIA's list, and in dmesg for what came before it"
            if broken
            else "run with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer: a kernel of some program on this device failed"
        )
        return _fault("warning", 0.7, f"GPU {device.index} reported Xid {last}", evidence, (fix,))
    if total:
        title = f"GPU {device.index} had {total} memory errors that could not be corrected"
        return _fault("warning", 0.7, title, evidence, ("have the device drained, reset and tested (dcgmi diag)",))
    return None


def _xid_words(device: GpuDevice) -> tuple[str, ...]:
    named = HARDWARE_XIDS | PROGRAM_XIDS
    return tuple(
        f"Xid {xid}: {named.get(xid, 'see the list of Xid errors')}" for xid in dict.fromkeys(device.xid or ())
    )


def _fault(
    severity: Severity, sure: float, title: str, evidence: tuple[str, ...], fixes: tuple[str, ...]
) -> Explanation:
    return Explanation(
        severity=severity,
        confidence=sure,
        title=title,
        evidence=evidence,
        fixes=tuple(map(fix, fixes)),
        level=1.0,
    )
