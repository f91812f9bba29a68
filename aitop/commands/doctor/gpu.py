"""NVML, the performance counters and MIG. A machine without an NVIDIA GPU lacks nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aitop.commands.doctor.check import Check, fault, not_needed, works
from aitop.commands.doctor.place import Place
from aitop.sources import procfs
from aitop.sources.source import SourceError

if TYPE_CHECKING:
    from aitop.sources.nvml.abilities import Abilities, DeviceAbilities

NVML_SECONDS = 5.0
NVIDIA, DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")
COUNTERS_REMEDY = (
    "run aitop with sudo, or load the driver with: options nvidia NVreg_RestrictProfilingToAdminUsers=0 "
    "(in /etc/modprobe.d, then reboot)"
)
GROUP_REMEDY = "sudo usermod -aG $(stat -c %G /dev/nvidiactl) $USER, then log in again"
SLICES_REMEDY = "sudo nvidia-smi mig -cgi PROFILE -C (nvidia-smi mig -lgip lists the profiles)"


def checks(place: Place) -> list[Check]:
    """What NVML says, asked in a thread that may hang without us."""
    answers: list[Abilities | SourceError] = []
    thread = threading.Thread(target=_ask, args=(answers,), name="aitop-doctor-gpu", daemon=True)
    thread.start()
    thread.join(NVML_SECONDS)
    if not answers:
        return [fault("nvml", f"it gave no answer in {NVML_SECONDS:g} s", "see dmesg; a hung driver needs a reboot")]
    answer = answers[0]
    return without(answer, cards(), place) if isinstance(answer, SourceError) else devices(answer)


def cards(root: str = "") -> int:
    """The number of NVIDIA graphics cards on the PCI bus. `root` stands for / and exists for tests."""
    folder = f"{root}/sys/bus/pci/devices"
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    read: Callable[[str], str] = lambda path: procfs.text(path) or ""  # noqa: E731
    return sum(
        read(f"{folder}/{name}/vendor") == NVIDIA and read(f"{folder}/{name}/class").startswith(DISPLAY_CLASSES)
        for name in names
    )


def without(error: SourceError, present: int, place: Place) -> list[Check]:
    """NVML does not work: no fault where there is no card. `present` is their number."""
    if error.state == "absent" and not present and "pip install" not in (error.remedy or ""):
        return [not_needed("nvml", "no NVIDIA GPU in this machine"), *_unasked("no GPU")]
    remedy = GROUP_REMEDY if error.state == "denied" else error.remedy
    if error.state == "absent" and present and place.container is not None and place.own_pids:
        remedy = {
            "kubernetes": "in the pod's spec: resources: {limits: {nvidia.com/gpu: 1}}",
            "podman": "podman run --device nvidia.com/gpu=all …",
        }.get(place.container, "docker run --gpus all …")
    seen = f" ({present} NVIDIA GPU on the PCI bus)" if present else ""
    return [fault("nvml", error.reason + seen, remedy), *_unasked("NVML does not work")]


def devices(found: Abilities) -> list[Check]:
    """NVML works: what it lets us see of each device."""
    lost = [device for device in found.devices if device.lost]
    there = [device for device in found.devices if not device.lost]
    if lost:
        words = f"the driver has lost GPU {_indices(lost)}"
        nvml = fault("nvml", words, f"sudo nvidia-smi --gpu-reset -i {lost[0].index}, or reboot the machine")
    else:
        names = ", ".join(f"{device.index}: {device.name or 'unnamed'}" for device in there)
        nvml = works("nvml", f"driver {found.driver or 'of unknown version'}; {names}")
    return [nvml, _counters(there), _mig(there)]


def _ask(answers: list[Abilities | SourceError]) -> None:
    try:
        from aitop.sources.nvml.abilities import abilities

        answers.append(abilities())
    except SourceError as error:
        answers.append(error)
    except OSError as error:
        answers.append(SourceError("failed", f"NVML cannot be asked: {error.strerror or error}"))


def _counters(there: Sequence[DeviceAbilities]) -> Check:
    denied = [device for device in there if device.counters == "denied"]
    failed = [device for device in there if device.counters == "failed"]
    having = [device for device in there if device.counters == "works"]
    if denied:
        words = f"the performance counters of GPU {_indices(denied)} are refused to this user"
        return fault("gpm", words, COUNTERS_REMEDY)
    if failed:
        words = f"the performance counters of GPU {_indices(failed)} give nothing: {failed[0].counters_error}"
        return fault("gpm", words, "end other profilers (DCGM, Nsight), or: dcgmi profile --pause")
    if having:
        return works("gpm", f"SM, tensor core and memory activity of GPU {_indices(having)}")
    if any(device.mig for device in there):
        return not_needed("gpm", "GPUs that are split (MIG) have no such counters")
    return not_needed("gpm", "these GPUs have no such counters (Hopper and later do); utilization is read instead")


def _mig(there: Sequence[DeviceAbilities]) -> Check:
    split = [device for device in there if device.mig]
    empty = [device for device in split if not device.slices]
    if empty:
        words = f"MIG is on in GPU {_indices(empty)}, and no slice of it can be seen"
        return fault("mig", words, SLICES_REMEDY)
    if split:
        slices = ", ".join(f"GPU {device.index} has {device.slices}" for device in split)
        return works("mig", f"on; slices: {slices}; the driver tells their memory, not how busy they are")
    return not_needed("mig", "off" if any(device.mig is False for device in there) else "these GPUs cannot be split")


def not_asked(why: str) -> list[Check]:
    """All of them where nothing can be asked."""
    return [not_needed("nvml", why), *_unasked(why)]


def _unasked(why: str) -> list[Check]:
    return [not_needed("gpm", why), not_needed("mig", why)]


def _indices(some: Sequence[DeviceAbilities]) -> str:
    return ", ".join(str(device.index) for device in some)
