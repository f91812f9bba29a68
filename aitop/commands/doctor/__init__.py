"""Say what works on this machine and for this process, what does not, and the command that mends it.

Exit code 0 if nothing is at fault, 1 if something is. What is not needed here is no fault.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING

from aitop.commands.options import process_id

if TYPE_CHECKING:
    from aitop.commands.doctor.report import Check

FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--pid --format."""
    parser.add_argument("-p", "--pid", type=process_id, help="also say what can be seen of this process")
    parser.add_argument("--format", choices=FORMATS, default="text", help="what to write (default: text)")


def run(args: argparse.Namespace) -> int:
    """Write one line per check. Returns 1 if something does not work."""
    from aitop.commands.doctor import report

    checks = examine(args.pid)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    text = report.as_json(checks, args.pid) if args.format == "json" else report.as_text(checks, columns)
    sys.stdout.write(text)
    return int(any(check.state == "does-not" for check in checks))


def examine(pid: int | None) -> list[Check]:
    """All checks of the machine, and of process `pid` where there is one."""
    from aitop.commands.doctor import machine, process, rights
    from aitop.commands.doctor.ptrace_trial import try_ptrace
    from aitop.sources.access import read_confinement

    confinement, tried = read_confinement(), try_ptrace()
    checks = [machine.python(), *rights.checks(confinement, tried), rights.attach(), machine.py_spy()]
    descriptors = machine.descriptors()
    checks += [*machine.terminal_checks(), machine.settings_file(), descriptors]
    too_low = [check for check in (machine.file_size(), machine.threads()) if check is not None]
    no_threads = any(check.name == "threads" for check in too_low)
    checks += too_low
    checks += machine.gpu_not_asked("NVML needs a thread of its own") if no_threads else machine.gpu_checks(confinement)
    if pid is None:
        return [*checks, machine.cgroup(os.getpid())]
    short = [*([descriptors] if descriptors.state == "does-not" else []), *too_low]
    short_of = short[-1].name if short else None
    return checks + process.checks(pid, rights.refused(tried, confinement), short_of=short_of)
