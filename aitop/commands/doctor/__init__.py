"""Say what works on this machine and for this process, what does not, and the command that mends it.

Exit code 0 if nothing is at fault, 1 if something is. What is not needed here is no fault.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import TYPE_CHECKING

from aitop.commands.options import process_id

if TYPE_CHECKING:
    from aitop.commands.doctor.check import Check

FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--pid --format."""
    parser.add_argument("--pid", type=process_id, help="also say what can be seen of this process")
    parser.add_argument("--format", choices=FORMATS, default="text", help="what to write (default: text)")


def run(args: argparse.Namespace) -> int:
    """Write one line a check; 1 if any does not work."""
    from aitop.commands.doctor import report

    checks = examine(args.pid)
    columns = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
    text = report.as_json(checks, args.pid) if args.format == "json" else report.as_text(checks, columns)
    sys.stdout.write(text)
    return int(any(check.state == "does-not" for check in checks))


def examine(pid: int | None) -> list[Check]:
    """All checks of the machine, and of process `pid` where there is one."""
    from aitop.commands.doctor import gpu, limits, place, rights, sampler, settings, target, terminal

    here, tried = place.read_place(), rights.tried_out()
    found = [rights.python(), *rights.checks(here, tried), rights.attach(), sampler.installed(), *terminal.checks()]
    small, few = limits.check_files(), limits.check_threads()
    found += [settings.check(), limits.check_descriptors(), *(check for check in (small, few) if check)]
    found += gpu.checks(here) if few is None else gpu.not_asked("NVML needs a thread of its own")
    if pid is None:
        return [*found, limits.check_own()]
    return found + target.checks(
        pid, rights.refused(tried, here), short_of=next((check.name for check in (few, small) if check), None)
    )
