"""Say what works on this machine and for this process, what does not, and the command that mends it.

Exit code 0 if everything works, 1 if something does not.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aitop.commands.options import process_id
from aitop.errors import AitopError

if TYPE_CHECKING:
    from aitop.sources.source import SourceError

SMALLEST_SCREEN = (80, 24)
NVML_SECONDS = 5.0


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, whether it works, in words, and what would mend it."""

    name: str
    works: bool
    words: str
    remedy: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--pid."""
    parser.add_argument("--pid", type=process_id, help="also say what can be seen of this process")


def run(args: argparse.Namespace) -> int:
    """Print one line a check; 1 if any does not work."""
    from aitop.model.text import printable

    checks = [_python(), _attach_support(), _terminal(), _gpu(), _sampler(), _ptrace()]
    if args.pid is not None:
        checks += _process(args.pid)
    for check in checks:
        mark = "works   " if check.works else "does not"
        print(f"{mark}  {check.name:<10} {printable(check.words)}")
        if check.remedy and not check.works:
            print(f"{'':<21}→ {printable(check.remedy)}")
    return int(not all(check.works for check in checks))


def _python() -> Check:
    return Check("python", True, f"{platform.python_version()} at {sys.executable}")


def _attach_support() -> Check:
    machine = platform.machine()
    if platform.system() == "Linux" and machine in ("x86_64", "AMD64"):
        return Check("attach", True, f"Linux on {machine}: the step hook can be put into a running process")
    if platform.system() == "Linux":
        debugger = shutil.which("gdb")
        how = f"with {debugger}" if debugger else "from Python 3.14 on; for older ones gdb is missing"
        words = f"Linux on {machine}: the step hook can be put into a running process {how}"
        return Check("attach", debugger is not None, words, "install gdb, or start the run with: aitop run -- CMD")
    return Check(
        "attach",
        False,
        f"{platform.system()} on {machine}: the step hook cannot be put into a running process here",
        "start the run with: aitop run -- python train.py",
    )


def _terminal() -> Check:
    if sys.stdout is None or not sys.stdout.isatty():
        return Check("terminal", False, "output is not a terminal", "run aitop doctor in the terminal you want to use")
    if os.environ.get("TERM") == "dumb":
        return Check("terminal", False, "TERM=dumb cannot show the screen", "export TERM=xterm-256color")
    columns, lines = os.get_terminal_size(sys.stdout.fileno())
    roomy = columns >= SMALLEST_SCREEN[0] and lines >= SMALLEST_SCREEN[1]
    name = os.environ.get("TERM") or "unnamed"
    return Check("terminal", roomy, f"{columns}x{lines}, {name}", "make it at least {}x{}".format(*SMALLEST_SCREEN))


def _gpu() -> Check:
    """What NVML says, asked in a thread that may hang without us."""
    answers: list[Check] = []
    thread = threading.Thread(target=lambda: answers.append(_ask_nvml()), name="aitop-doctor-gpu", daemon=True)
    thread.start()
    thread.join(NVML_SECONDS)
    return answers[0] if answers else Check("gpu", False, f"NVML gave no answer in {NVML_SECONDS:g} s", "nvidia-smi")


def _ask_nvml() -> Check:
    from aitop.model.gpu import GpuSample
    from aitop.sources.nvml import NvmlSource
    from aitop.sources.source import SourceError

    source = NvmlSource(frozenset)
    try:
        source.open()
        devices = [device for sample in source.read() if isinstance(sample, GpuSample) for device in sample.devices]
    except SourceError as error:
        return Check("gpu", False, error.reason, error.remedy)
    finally:
        source.close()
    lost = [str(device.index) for device in devices if device.lost]
    if lost:
        return Check("gpu", False, f"the driver has lost GPU {', '.join(lost)}", "reboot the machine")
    return Check("gpu", True, ", ".join(f"{device.index}: {device.name or 'unnamed'}" for device in devices))


def _sampler() -> Check:
    from aitop.sources.source import SourceError
    from aitop.sources.stacks.spy import find_py_spy

    try:
        return Check("py-spy", True, find_py_spy())
    except SourceError as error:
        return Check("py-spy", False, error.reason, error.remedy)


def _ptrace() -> Check:
    """Try on a process of our own that is not our descendant, as a user's run would be."""
    started = subprocess.run(
        ["/bin/sh", "-c", "sleep 20 </dev/null >/dev/null 2>&1 & echo $!"], capture_output=True, check=True
    )
    pid = int(started.stdout)
    try:
        refused = _refusal(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    if refused is None:
        return Check("ptrace", True, "your own processes can be looked into")
    return Check("ptrace", False, refused.reason, refused.remedy)


def _refusal(pid: int) -> SourceError | None:
    """Why the kernel refuses to let us look into `pid`, None where it does not."""
    from aitop.sources import procfs
    from aitop.sources.stacks.refusal import YAMA, denied

    try:
        # Opening asks the kernel the question that attaching asks, and touches nothing.
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return denied(pid, procfs.status(os.getpid()), procfs.status(pid), procfs.text(YAMA))
    return None


def _process(pid: int) -> list[Check]:
    from aitop.sources import procfs
    from aitop.sources.host.tree import ProcessTree
    from aitop.sources.target import look

    try:
        target = look(pid)
    except AitopError as error:
        return [Check("process", False, str(error))]
    version = f", Python {target.python}" if target.python else ""
    checks = [Check("process", True, f"{pid} is {target.command}{version}")]
    refused = _refusal(pid)
    if refused is None:
        checks.append(Check("access", True, "its stacks can be sampled and the hook put in"))
    else:
        checks.append(Check("access", False, f"no stacks and no hook: {refused.reason}", refused.remedy))
    tree = [member.stat.pid for member in ProcessTree([(pid, None)]).update()]
    maps = [found for member in tree if (found := procfs.maps(member)) is not None]
    if maps:
        loaded = sorted({name for memory_map in maps if (name := procfs.framework_of(memory_map))})
        words = f"it has {', '.join(loaded)} loaded" if loaded else "it has neither torch, JAX nor TensorFlow loaded"
        checks.append(Check("framework", bool(loaded), words, "name the process that trains, or wait until it begins"))
    return checks
