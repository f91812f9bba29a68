"""Checks what works on this machine, whatever the process: py-spy, terminal, settings, limits, GPUs.

A machine without an NVIDIA GPU has no fault.
"""

from __future__ import annotations

import errno
import locale
import os
import platform
import resource
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aitop.commands import config
from aitop.commands.doctor.report import Check, fault, not_needed, works
from aitop.errors import WrongUsageError
from aitop.model.host import CgroupSample
from aitop.model.units import size
from aitop.sources.access import Confinement
from aitop.sources.host.cgroup import Cgroup
from aitop.sources.nvml import count_cards
from aitop.sources.source import SourceError
from aitop.sources.stacks.spy import find_py_spy

if TYPE_CHECKING:
    from aitop.sources.nvml.abilities import Abilities, DeviceAbilities

PY_SPY_SECONDS = 10.0
LIMITS_REACHED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)
REINSTALL = "pip install --force-reinstall py-spy"
SMALLEST_SCREEN = (80, 24)
FULL_SCREEN = (120, 36)
# For a run of one process: with 15 descriptors either the stacks or the hook fails, with 16 neither does.
FEWEST_DESCRIPTORS, MANY_DESCRIPTORS = 16, 64
LARGEST_WRITTEN = 16 << 20
THREADS = 12
NVML_SECONDS = 5.0
COUNTERS_REMEDY = (
    "run aitop with sudo, or load the driver with: options nvidia NVreg_RestrictProfilingToAdminUsers=0 "
    "(in /etc/modprobe.d, then reboot)"
)
GROUP_REMEDY = "sudo usermod -aG $(stat -c %G /dev/nvidiactl) $USER, then log in again"
SLICES_REMEDY = "sudo nvidia-smi mig -cgi PROFILE -C (nvidia-smi mig -lgip lists the profiles)"


def python() -> Check:
    """The Python that aitop itself runs on."""
    return works("python", f"{platform.python_version()} at {sys.executable}")


def py_spy() -> Check:
    """Whether py-spy is there, and runs."""
    try:
        program = find_py_spy()
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=PY_SPY_SECONDS, check=False
        )
    except SourceError as error:
        return fault("py-spy", error.reason, error.remedy)
    except OSError as error:
        mend = "see descriptors and threads" if error.errno in LIMITS_REACHED else REINSTALL
        return fault("py-spy", f"it does not start: {error.strerror or error}", mend)
    except subprocess.TimeoutExpired as error:
        return fault("py-spy", f"it does not start: {error}", REINSTALL)
    if done.returncode != 0:
        return fault("py-spy", f"{program} leaves with code {done.returncode}", REINSTALL)
    version = done.stdout.decode("utf-8", "replace").split()[-1:] or ["of unknown version"]
    return works("py-spy", f"{version[0]} at {program}")


def terminal_checks() -> list[Check]:
    """What the terminal that the output goes to can show. Output that goes elsewhere is no fault."""
    try:
        shown = os.get_terminal_size(sys.__stdout__.fileno()) if sys.__stdout__ and sys.__stdout__.isatty() else None
    except (OSError, ValueError):
        shown = None
    encoding = locale.getpreferredencoding(False)
    return terminal_of(None if shown is None else (shown.columns, shown.lines), os.environ, encoding)


def terminal_of(screen: tuple[int, int] | None, environment: Mapping[str, str], encoding: str) -> list[Check]:
    """The checks of a terminal of `screen` columns and lines; `screen` is None where the output goes elsewhere."""
    if screen is None:
        words = "output is not a terminal: diagnose, record and doctor need none"
        return [not_needed("terminal", words), *(not_needed(name, "no terminal") for name in ("colours", "utf-8"))]
    return [_screen(screen, environment.get("TERM", "")), _colours(environment), _characters(environment, encoding)]


def _screen(screen: tuple[int, int], name: str) -> Check:
    if name == "dumb":
        return fault("terminal", "TERM=dumb cannot show the screen", "export TERM=xterm-256color")
    shown = f"{screen[0]}x{screen[1]}, {name or 'unnamed'}"
    if screen[0] < SMALLEST_SCREEN[0] or screen[1] < SMALLEST_SCREEN[1]:
        remedy = "make it at least {}x{}".format(*SMALLEST_SCREEN)
        return fault("terminal", f"{shown}: too small for the screen", remedy)
    roomy = screen[0] >= FULL_SCREEN[0] and screen[1] >= FULL_SCREEN[1]
    return works("terminal", shown + ("" if roomy else "; every pane fits from {}x{} on".format(*FULL_SCREEN)))


def _colours(environment: Mapping[str, str]) -> Check:
    from aitop.ui.theme.themes import theme_for

    theme = theme_for(environment)
    if environment.get("NO_COLOR"):
        return not_needed("colours", "NO_COLOR is set: letters, bold and reverse instead")
    if theme.mono:
        return not_needed("colours", f"TERM={environment.get('TERM')} has none: letters, bold and reverse instead")
    if theme.ansi:
        return works("colours", "sixteen (export COLORTERM=truecolor where the terminal has more)")
    return works("colours", f"{theme.name} theme; C on the screen goes through the others")


def _characters(environment: Mapping[str, str], encoding: str) -> Check:
    from aitop.model.settings import Settings
    from aitop.ui.theme.themes import appearance_for

    if "utf" not in encoding.lower():
        return fault("utf-8", f"the locale is {encoding}: ASCII is drawn", "export LC_ALL=C.UTF-8")
    if appearance_for(Settings(), environment, encoding).ascii:
        return not_needed("utf-8", f"TERM={environment.get('TERM')} has few characters: ASCII is drawn")
    return works("utf-8", "charts are drawn with braille and block characters")


def settings_file() -> Check:
    """Whether there is a settings file, and what is wrong with it. Other verbs do not start with a wrong one."""
    try:
        file = config.path()
    except WrongUsageError as error:
        return not_needed("settings", f"{error}; everything is as `aitop config` prints it")
    try:
        config.read(file)
        there = file.exists()
    except WrongUsageError as error:
        return fault("settings", str(error), f"mend or remove {file}")
    except OSError:
        there = False
    return works("settings", f"read from {file}") if there else not_needed("settings", f"there is no {file}")


def cgroup(pid: int) -> Check:
    """The tightest control group limits that hold for process `pid`."""
    return cgroup_of(Cgroup(pid).read())


def cgroup_of(sample: CgroupSample | None) -> Check:
    """The check of the limits in this sample; `sample` is None where no control group can be read."""
    if sample is None:
        return not_needed("cgroup", "no control group can be read; the machine's own limits count")
    limits = []
    if sample.cpu_quota is not None:
        limits.append(f"{sample.cpu_quota:.3g} cores")
    if sample.memory_limit is not None:
        used = "" if sample.memory_used is None else f", {size(sample.memory_used)} of it used"
        limits.append(f"{size(sample.memory_limit)} of memory{used}")
    return works("cgroup", f"v{sample.version}; limits: {'; '.join(limits) if limits else 'none'}")


def descriptors() -> Check:
    """Whether aitop may have enough files open. It needs a few, and some more for each process of the job."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= MANY_DESCRIPTORS:
        return works("descriptors", f"{'any number' if soft == resource.RLIM_INFINITY else soft} may be open")
    if soft >= FEWEST_DESCRIPTORS:
        return works("descriptors", f"only {soft} may be open: few for a job of many processes (see ulimit -n)")
    words = f"only {soft} may be open"
    if 0 <= hard < FEWEST_DESCRIPTORS:
        words += ", and the hard limit is as low"
        return fault("descriptors", words, "in a container: --ulimit nofile=1024; else see limits.conf")
    return fault("descriptors", words, f"ulimit -n {1024 if hard < 0 else min(hard, 1024)}")


def file_size() -> Check | None:
    """The fault where the limit on file sizes is too low for aitop, else None. Memory files (memfd) count as well."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY or soft >= LARGEST_WRITTEN:
        return None
    words = f"a file may not be larger than {size(soft)}, and what py-spy and the hook's way in need counts as one"
    if 0 <= hard < LARGEST_WRITTEN:
        return fault("file-size", words, "raise the hard limit (limits.conf)")
    return fault("file-size", words, f"ulimit -S -f {'unlimited' if hard < 0 else 'hard'}")


def threads() -> Check | None:
    """The fault where aitop may not start as many threads as it needs, found by trying; else None."""
    over = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(THREADS):
            thread = threading.Thread(target=over.wait, name="aitop-doctor", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        words = f"only {len(started)} threads may be started, and aitop needs up to {THREADS}"
        return fault("threads", words, "ulimit -u 4096, or a higher limit of processes for the container (pids)")
    finally:
        over.set()
        for thread in started:
            thread.join()
    return None


def gpu_checks(confinement: Confinement) -> list[Check]:
    """What NVML says of the GPUs, asked in a thread of its own: a broken driver may hang."""
    answers: list[Abilities | SourceError] = []
    thread = threading.Thread(target=_ask, args=(answers,), name="aitop-doctor-gpu", daemon=True)
    thread.start()
    thread.join(NVML_SECONDS)
    if not answers:
        return [fault("nvml", f"it gave no answer in {NVML_SECONDS:g} s", "see dmesg; a hung driver needs a reboot")]
    answer = answers[0]
    return nvml_missing(answer, count_cards(), confinement) if isinstance(answer, SourceError) else nvml_works(answer)


def nvml_missing(error: SourceError, present: int, confinement: Confinement) -> list[Check]:
    """The checks where NVML does not work: no fault without a card. `present` is the number of cards."""
    if error.state == "absent" and not present:
        return [not_needed("nvml", "no NVIDIA GPU in this machine"), *_unasked("no GPU")]
    remedy = GROUP_REMEDY if error.state == "denied" else error.remedy
    if error.state == "absent" and present and confinement.container is not None and confinement.own_pids:
        remedy = {
            "kubernetes": "in the pod's spec: resources: {limits: {nvidia.com/gpu: 1}}",
            "podman": "podman run --device nvidia.com/gpu=all …",
        }.get(confinement.container, "docker run --gpus all …")
    seen = f" ({present} NVIDIA GPU on the PCI bus)" if present else ""
    return [fault("nvml", error.reason + seen, remedy), *_unasked("NVML does not work")]


def nvml_works(abilities: Abilities) -> list[Check]:
    """The checks where NVML works: what it shows of each device."""
    lost = [device for device in abilities.devices if device.lost]
    there = [device for device in abilities.devices if not device.lost]
    if lost:
        words = f"the driver has lost GPU {_indices(lost)}"
        nvml = fault("nvml", words, f"sudo nvidia-smi --gpu-reset -i {lost[0].index}, or reboot the machine")
    else:
        names = ", ".join(f"{device.index}: {device.name or 'unnamed'}" for device in there)
        nvml = works("nvml", f"driver {abilities.driver or 'of unknown version'}; {names}")
    return [nvml, _counters(there), _mig(there)]


def _ask(answers: list[Abilities | SourceError]) -> None:
    try:
        from aitop.sources.nvml.abilities import abilities

        answers.append(abilities())
    except SourceError as error:
        answers.append(error)
    except Exception as error:  # without an answer, the driver would be said to hang
        why = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
        answers.append(SourceError("failed", f"NVML cannot be asked: {why}"))


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


def gpu_not_asked(why: str) -> list[Check]:
    """The checks of GPUs, all "not needed" for the reason `why`, where NVML is not asked."""
    return [not_needed("nvml", why), *_unasked(why)]


def _unasked(why: str) -> list[Check]:
    return [not_needed("gpm", why), not_needed("mig", why)]


def _indices(some: Sequence[DeviceAbilities]) -> str:
    return ", ".join(str(device.index) for device in some)
