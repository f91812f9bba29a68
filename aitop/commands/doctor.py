"""Say what works on this machine and for this process, what does not, and the command that mends it.

Exit code 0 if everything works, 1 if something does not.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass

from aitop.commands.options import process_id
from aitop.errors import AitopError

CAP_SYS_PTRACE = 19
YAMA_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
SMALLEST_SCREEN = (80, 24)
AI_LIBRARIES = ("libtorch", "jaxlib", "libtensorflow")


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
    checks = [_python(), _attach_support(), _terminal(), _gpu(), _sampler(), _ptrace()]
    if args.pid is not None:
        checks += _process(args.pid)
    for check in checks:
        mark = "works   " if check.works else "does not"
        print(f"{mark}  {check.name:<10} {check.words}")
        if check.remedy and not check.works:
            print(f"{'':<21}→ {check.remedy}")
    return int(not all(check.works for check in checks))


def _python() -> Check:
    return Check("python", True, f"{platform.python_version()} at {sys.executable}")


def _attach_support() -> Check:
    machine = platform.machine()
    if sys.platform == "linux" and machine in ("x86_64", "AMD64"):
        return Check("attach", True, f"Linux on {machine}: the step hook can be put into a running process")
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
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check("gpu", False, f"NVML: {error}", "without an NVIDIA GPU none is needed; else install its driver")
    try:
        count = pynvml.nvmlDeviceGetCount()
        return Check("gpu", count > 0, f"NVML sees {count} device{'s' if count != 1 else ''}", "nvidia-smi -L")
    except pynvml.NVMLError as error:
        return Check("gpu", False, f"NVML: {error}", "nvidia-smi")
    finally:
        pynvml.nvmlShutdown()


def _sampler() -> Check:
    from aitop.sources.stacks import py_spy_path

    path = py_spy_path()
    if path is None:
        return Check("py-spy", False, "not found beside this Python or on PATH", "pip install py-spy")
    return Check("py-spy", True, str(path))


def _ptrace() -> Check:
    """Try on a process of our own that is not our descendant, as a user's run would be."""
    why = _ptrace_facts()
    shell = shutil.which("sh")
    if shell is None:
        return Check("ptrace", False, f"could not be tried, there is no sh ({why})")
    pid = int(subprocess.run([shell, "-c", "sleep 20 >/dev/null & echo $!"], capture_output=True, check=True).stdout)
    try:
        refused = _refusal(pid)
    finally:
        os.kill(pid, 15)
    if refused is None:
        return Check("ptrace", True, f"your own processes can be looked into ({why})")
    return Check("ptrace", False, f"your own processes cannot be looked into: {refused} ({why})", _ptrace_remedy())


def _refusal(pid: int) -> str | None:
    """Why the kernel refuses ptrace access to `pid`: opening its memory asks the same question as attaching does."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror or str(error)
    return None


def _ptrace_facts() -> str:
    scope = _first_line(YAMA_SCOPE)
    capable = "with" if _capable() else "without"
    return f"uid {os.geteuid()}, {capable} CAP_SYS_PTRACE, Yama scope {scope if scope is not None else 'not there'}"


def _ptrace_remedy() -> str:
    if _first_line(YAMA_SCOPE) in ("1", "2"):
        return "sudo sysctl kernel.yama.ptrace_scope=0   (or run aitop with sudo)"
    return "run aitop with sudo; in a container start it with: docker run --cap-add=SYS_PTRACE"


def _capable() -> bool:
    with open("/proc/self/status") as status:
        effective = next((line.split()[1] for line in status if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> CAP_SYS_PTRACE & 1)


def _first_line(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return None


def _process(pid: int) -> list[Check]:
    from aitop.sources.target import look

    try:
        target = look(pid)
    except AitopError as error:
        return [Check("process", False, str(error))]
    checks = [
        Check("process", True, f"{pid} is {target.command}" + (f", Python {target.python}" if target.python else ""))
    ]
    refused = _refusal(pid)
    if refused is None:
        checks.append(Check("access", True, "stacks can be sampled and the hook put in"))
    else:
        checks.append(Check("access", False, f"no stacks and no hook: {refused} ({_ptrace_facts()})", _ptrace_remedy()))
    loaded = _libraries(pid)
    if loaded is not None:
        words = (
            f"it has {', '.join(loaded)} loaded" if loaded else "it has neither torch, JAX nor TensorFlow loaded yet"
        )
        checks.append(
            Check("framework", bool(loaded), words, "name the process that trains, or wait until it has begun")
        )
    return checks


def _libraries(pid: int) -> list[str] | None:
    """Names of AI libraries mapped into the process; None where its maps cannot be read."""
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as maps:
            text = maps.read()
    except OSError:
        return None
    return [name.removeprefix("lib") for name in AI_LIBRARIES if name in text]
