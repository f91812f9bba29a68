"""Start a small bundled training run or server on the CPU, with a planted fault or mended, and watch it.

Without a terminal the run is watched for ten seconds and a report is written. The run is ended when the watching ends.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from aitop.commands import how_ended
from aitop.commands.options import add_record_option, add_screen_options, add_watch_options
from aitop.errors import AitopError, NoTargetError, WrongUsageError
from aitop.sources import procfs

FOLDER = Path(__file__).parents[1] / "workloads"
DEFAULT = "slow-loader"
METAVAR = "NAME"
FIRST_STEP_SECONDS = 120.0
LOOK_SECONDS = 0.05
REPORT_SECONDS = 10.0
END_SECONDS = 3.0
AGAIN = "start the demo again, and see what is missing with `aitop doctor`"
PR_SET_PDEATHSIG = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """NAME --list --fixed --record and the options of watching."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("name", nargs="?", default=DEFAULT, metavar=METAVAR, help=f"which run (default: {DEFAULT})")
    parser.add_argument("--list", action="store_true", help="list the runs there are")
    parser.add_argument("--fixed", action="store_true", help="run it with its fault mended")
    add_record_option(parser)
    add_watch_options(parser)
    add_screen_options(parser)


def run(args: argparse.Namespace) -> int:
    """Start the run, watch it until the user quits (or write a report), end it."""
    if args.list:
        for name, path in workloads().items():
            print(f"{name:<16}{summary(path)}")
        return 0
    script = workloads().get(args.name)
    if script is None:
        raise WrongUsageError(f"there is no demo called {args.name}: choose from {', '.join(workloads())}")
    check_torch()
    with running(script, ["--fixed"] if args.fixed else []) as pid:
        code = look_at(pid, args)
    if not args.fixed:
        print(f"The run has been ended. The same without its fault: aitop demo {args.name} --fixed", file=sys.stderr)
    return code


def workloads() -> dict[str, Path]:
    """The bundled scripts by name."""
    scripts = sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")
    return {script.stem.replace("_", "-"): script for script in scripts}


def summary(script: Path) -> str:
    """The first line of the script's docstring; the file is parsed, not imported."""
    return (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def check_torch() -> None:
    """Raise a WrongUsageError where this Python cannot run the scripts."""
    missing = [name for name in ("torch", "numpy") if importlib.util.find_spec(name) is None]
    if missing:
        needs = f"the demo runs torch and needs {' and '.join(missing)}"
        raise WrongUsageError(f"{needs}; in aitop's clone: pip install '.[demo]'")


@contextlib.contextmanager
def running(script: Path, arguments: list[str]) -> Iterator[int]:
    """Run the script with this Python; yield its pid after its first step or answer. It ends with the block or us."""
    prctl = ctypes.CDLL(None).prctl
    with tempfile.TemporaryFile("w+b") as output:
        child = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # The kernel ends it even if we are killed.
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0),  # noqa: PLW1509 - no threads yet
        )
        try:
            _wait_for_line(child, output.fileno(), script.name)
            yield child.pid
        finally:
            _end(child)


def look_at(pid: int, args: argparse.Namespace) -> int:
    """The screen; without a terminal, watch for a while and write the report as text."""
    from aitop.commands.diagnose import conclude
    from aitop.commands.headless import watching
    from aitop.commands.monitor import check_terminal, watch
    from aitop.sources.host.target import look

    try:
        check_terminal("")
    except WrongUsageError:
        print(f"No terminal: watching process {pid} for {REPORT_SECONDS:g} s, then reporting.", file=sys.stderr)
        with watching([look(pid)], args.settings, args.record) as watcher:
            watcher.wait(REPORT_SECONDS)
        if watcher.recording_failed is not None:
            raise AitopError(watcher.recording_failed) from None
        return conclude(watcher.snapshot, pid, "text", None, remedy=AGAIN)
    return watch([look(pid)], args)


def _wait_for_line(child: subprocess.Popen[bytes], output: int, name: str) -> None:
    """Return when the script has printed a whole line; NoTargetError if it ends before, or takes too long."""
    deadline = time.monotonic() + FIRST_STEP_SECONDS
    while True:
        ended = child.poll() is not None
        printed = os.pread(output, 1 << 16, 0).decode(errors="replace")
        if ended:
            last = printed.strip().rpartition("\n")[2] or "it printed nothing"
            raise NoTargetError(f"the demo {name} {how_ended(child.returncode)} before its first step: {last}")
        if "\n" in printed:
            return
        if time.monotonic() > deadline:
            raise NoTargetError(f"the demo {name} made no step in {FIRST_STEP_SECONDS:g} s")
        time.sleep(LOOK_SECONDS)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and the processes that it started, with SIGTERM and then SIGKILL. Bounded in time."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        deadline = time.monotonic() + END_SECONDS
        while _lives(child.pid) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
    child.wait()


def _lives(group: int) -> bool:
    """Return whether a process of the group runs. Zombies do not count: the init of a container may leave them."""
    for pid in procfs.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == group and (stat := procfs.stat(pid)) is not None and stat.state not in "ZX":
                return True
    return False
