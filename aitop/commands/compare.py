"""Compare two runs, each a recording or a JSON report: which is faster, by how much more than noise, and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from aitop.commands import say
from aitop.commands.diagnose import check_writable, write_report
from aitop.errors import NotEnoughEvidenceError, UnreadableRecordingError, WrongUsageError

if TYPE_CHECKING:
    from aitop.model.run import Run, RunComparison

LARGEST_REPORT = 64 * 1024 * 1024
WRITTEN = "what `aitop record` or `aitop diagnose --format json` has written"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """BEFORE AFTER --format -o --fail-on."""
    parser.add_argument("before", type=Path, metavar="BEFORE", help=f"the run to compare with: {WRITTEN}")
    parser.add_argument("after", type=Path, metavar="AFTER", help="the run after the change: the same")
    parser.add_argument(
        "--format", choices=("text", "json", "html"), default="text", help="what to write (default: text)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of stdout")
    parser.add_argument("--fail-on", choices=("regression",), help="exit with 1 if the run after the change is slower")


def run(args: argparse.Namespace) -> int:
    """Write the comparison. Returns 1 where --fail-on is reached; raises NotEnoughEvidenceError without an interval."""
    from aitop.diagnosis.run_comparison import compare_runs

    check_writable(args.output)
    before, after = read_run(args.before), read_run(args.after)
    check_same_work(before, after)
    compared = compare_runs(before, after)
    write_report(render(compared, args.format), args.output)
    if compared.change.range is None:
        raise NotEnoughEvidenceError(f"whether it is faster cannot be told: {compared.change.reason}")
    return int(args.fail_on == "regression" and compared.change.verdict == "slower")


def render(compared: RunComparison, form: str) -> str:
    """The comparison as text, json or html."""
    if form == "json":
        from aitop.outputs.report import as_json

        return as_json(compared)
    if form == "html":
        from aitop.outputs.html.comparison import comparison_html

        return comparison_html(compared)
    from aitop.diagnosis.comparison_words import comparison_text

    return comparison_text(compared)


def read_run(path: Path) -> Run:
    """The run in a recording or a JSON report. Raises UnreadableRecordingError or NotEnoughEvidenceError."""
    from msgspec.structs import replace

    from aitop.diagnosis.run_summary import run_of
    from aitop.engine.replay import last_snapshot
    from aitop.sources.replay import Recording

    reported = _reported(path)
    if reported is not None:
        return replace(reported, file=path.name)
    recording = Recording(path)
    snapshot = last_snapshot(recording)
    if snapshot is None:
        raise NotEnoughEvidenceError(f"the recording {path} ends before its first second is over: record for longer")
    if recording.skipped:
        say(f"{recording.skipped} lines of {path} could not be read and were left out")
    return run_of(snapshot, path.name)


def _reported(path: Path) -> Run | None:
    """The run that a JSON report is about; None where the file is no report. Raises UnreadableRecordingError."""
    import msgspec

    from aitop.model.run import Run

    try:
        with path.open("rb") as opened:
            head = msgspec.json.decode(opened.read(LARGEST_REPORT), type=dict[str, msgspec.Raw])
    except (OSError, ValueError, RecursionError):
        return None
    if "schema" not in head:
        return None
    try:
        run = msgspec.json.decode(head["run"], type=Run)
    except (KeyError, ValueError, RecursionError):
        run = None
    if run is None or not run.is_sound:
        raise UnreadableRecordingError(
            f"{path} is damaged, or a report of an older aitop: it does not say enough of its run"
        )
    return run


def check_same_work(before: Run, after: Run) -> None:
    """Raise WrongUsageError for runs of different kinds of work; say so where the scripts differ."""
    kinds = {before.kind, after.kind} - {"unknown"}
    units = {run.units.kind for run in (before, after) if run.units is not None}
    for differing in (kinds, units):
        if len(differing) > 1:
            words = " and ".join(sorted(differing))
            raise WrongUsageError(f"{before.file} and {after.file} do different work: {words}")
    scripts = [run.script for run in (before, after) if run.script]
    if len(set(scripts)) > 1:
        say(f"these are runs of two scripts: {' and '.join(scripts)}")
