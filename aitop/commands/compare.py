"""Compare two runs, each a recording or a JSON report: which is faster, by how much more than noise, and why."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aitop.commands.diagnose import check_writable, write_report
from aitop.errors import NotEnoughEvidenceError, WrongUsageError
from aitop.model.text import printable

if TYPE_CHECKING:
    from aitop.model.run import Run

FORMATS = ("text", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """BEFORE AFTER --format -o --fail-on."""
    written = "what `aitop record` or `aitop diagnose --format json` has written"
    parser.add_argument("before", type=Path, metavar="BEFORE", help=f"the run to compare with: {written}")
    parser.add_argument("after", type=Path, metavar="AFTER", help="the run after the change: the same")
    parser.add_argument("--format", choices=FORMATS, default="text", help="what to write (default: text)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of stdout")
    parser.add_argument("--fail-on", choices=("regression",), help="exit with 1 if the run after the change is slower")


def run(args: argparse.Namespace) -> int:
    """Write the comparison; 1 where --fail-on is reached, NotEnoughEvidenceError where no ratio could be told."""
    from aitop.diagnosis.run_comparison import compare_runs
    from aitop.outputs.comparison import comparison_json, comparison_text

    check_writable(args.output)
    before, after = _read(args.before), _read(args.after)
    _check(before, after)
    compared = compare_runs(before, after)
    writers = {"text": comparison_text, "json": comparison_json}
    write_report(writers[args.format](before, after, compared), args.output)
    change = compared.change
    if change.low is None:
        raise NotEnoughEvidenceError(f"whether it is faster cannot be told: {change.reason}")
    return int(args.fail_on == "regression" and change.outcome == "slower")


def _read(path: Path) -> Run:
    from aitop.engine.run_summary import run_of
    from aitop.outputs.report_run import run_of_report
    from aitop.sources.replay import Recording

    report = run_of_report(path, path.name)
    if report is not None:
        return report
    recording = Recording(path)
    found = run_of(recording, path.name)
    if found is None:
        raise NotEnoughEvidenceError(f"the recording {path} ends before its first second is over: record for longer")
    if recording.skipped:
        name = printable(str(path))
        print(f"aitop: {recording.skipped} lines of {name} could not be read and were left out", file=sys.stderr)
    return found


def _check(before: Run, after: Run) -> None:
    """Refuse runs of different work, and say where two scripts are compared."""
    kinds, units = {before.kind, after.kind} - {"unknown"}, {before.unit, after.unit} - {None, "second"}
    for differing in (kinds, units):
        if len(differing) > 1:
            first, second = (before.kind, after.kind) if differing is kinds else (before.unit, after.unit)
            raise WrongUsageError(f"{before.file} and {after.file} do different work: {first} and {second}")
    scripts = [Path(one.script).name for one in (before, after) if one.script]
    if len(set(scripts)) > 1:
        print(f"aitop: these are runs of two scripts: {printable(' and '.join(scripts))}", file=sys.stderr)
