"""Watch a process for a while without a screen, then report what costs time."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from aitop.commands import say
from aitop.commands.alert import add_alert_options, alert_of
from aitop.commands.monitor import source_around
from aitop.commands.options import add_record_option, add_watch_options, duration, process_id
from aitop.errors import INTERRUPTED, AitopError, NoTargetError, NotEnoughEvidenceError, WrongUsageError
from aitop.model.snapshot import Snapshot
from aitop.model.verdict import SEVERITY_ORDER, Severity

if TYPE_CHECKING:
    from aitop.diagnosis.fix_edit import SourceAround
    from aitop.model.run import Run, RunComparison

FORMATS = ("text", "json", "html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--pid --for --format -o --fail-on --record, alerts and the options of watching."""
    parser.add_argument("-p", "--pid", type=process_id, required=True, help="the process to look at, with its children")
    parser.add_argument(
        "--for", dest="seconds", type=duration, default=15.0, metavar="T", help="how long to look (default: 15s)"
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="what to write (default: text)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of stdout")
    parser.add_argument(
        "--fail-on",
        choices=("warning", "critical", "stalled", "regression"),
        help="exit with 1 if there is a verdict this bad or worse; stalled: if nothing gets on, though there is work; "
        "regression: if the run has become slower while it was watched, or is slower than the one of --baseline",
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="compare with this run: a recording or a JSON report"
    )
    add_record_option(parser)
    add_alert_options(parser)
    add_watch_options(parser)


def run(args: argparse.Namespace) -> int:
    """Watch and write the report. Returns 1 where --fail-on is reached or --record failed, 130 where interrupted.

    Raises NotEnoughEvidenceError where nothing was sampled.
    """
    from aitop.commands.compare import read_run
    from aitop.commands.headless import Watcher, watching
    from aitop.sources.host.target import look

    check_writable(args.output)
    alert = alert_of(args)
    baseline = read_run(args.baseline) if args.baseline is not None else None
    target = look(args.pid, even_stopped=True)
    watcher: Watcher | None = None
    interrupted = False
    try:
        with watching([target], args.settings, args.record, alert) as watcher:
            watcher.wait(args.seconds, f"Watching {args.pid} for {args.seconds:g} s …", until=hangs)
    except KeyboardInterrupt:
        # What was seen may be of hours.
        if watcher is None or watcher.snapshot is None or not has_answer(watcher.snapshot):
            raise
        interrupted = True
    if watcher.recording_failed is not None:
        say(watcher.recording_failed)
    fail_on = None if interrupted else args.fail_on
    code = conclude(watcher.snapshot, args.pid, args.format, args.output, fail_on, baseline=baseline)
    if interrupted:
        return INTERRUPTED
    return code if watcher.recording_failed is None else AitopError.exit_code


def hangs(snapshot: Snapshot) -> bool:
    """Whether the verdict is a hang: then there is no need to watch any longer."""
    primary = snapshot.diagnosis.primary
    return primary is not None and primary.id == "hang"


def conclude(
    snapshot: Snapshot | None,
    pid: int,
    form: str,
    output: Path | None,
    fail_on: Severity | Literal["stalled", "regression"] | None = None,
    *,
    baseline: Run | None = None,
    remedy: str | None = None,
) -> int:
    """Write the report of the last snapshot and return the exit code. Raises an AitopError where nothing could be said.

    A ledger is an answer even without a verdict: it says where the time goes. `remedy` is what to do where there was no
    answer, if that is not what `diagnose` advises.
    """
    remedy = remedy or f"look longer with --for, and see what is missing with `aitop doctor --pid {pid}`"
    answered = snapshot is not None and has_answer(snapshot)
    if not answered and snapshot is not None and snapshot.target.ended is not None:
        raise NoTargetError(f"{snapshot.target.ended}, before anything could be said about it")
    if snapshot is None:
        raise NotEnoughEvidenceError(f"nothing was seen of process {pid} in the time given", remedy)
    if baseline is not None:
        snapshot = replace(snapshot, before=baseline)
    write_report(render(snapshot, form, source_around), output)
    if not answered:
        raise NotEnoughEvidenceError(f"process {pid} gave nothing to sample in the time given", remedy)
    if fail_on == "regression":
        from aitop.diagnosis.run_comparison import compared

        # Without a baseline, the report may compare with the script's last run, which nobody chose to be measured by.
        return _regressed(snapshot, compared(snapshot) if baseline is not None else None)
    if fail_on == "stalled":
        return int(any(verdict.id == "hang" for verdict in snapshot.diagnosis.verdicts))
    limit = SEVERITY_ORDER[fail_on] if fail_on else -1
    return int(any(SEVERITY_ORDER[verdict.severity] <= limit for verdict in snapshot.diagnosis.verdicts))


def _regressed(snapshot: Snapshot, comparison: RunComparison | None) -> int:
    """Return 1 if the run became slower while it was watched, or is slower than the baseline of `comparison`, else 0.

    Raises NotEnoughEvidenceError where that could not be judged.
    """
    from aitop.diagnosis.conditions.regression import long_enough

    if any(verdict.id == "regression" and verdict.severity != "info" for verdict in snapshot.diagnosis.verdicts):
        return 1
    if comparison is None and not long_enough(snapshot.past):
        raise NotEnoughEvidenceError(
            "whether it has become slower cannot be told so soon: look longer with --for, or name a --baseline"
        )
    if comparison is not None and comparison.change.range is None:
        raise NotEnoughEvidenceError(
            f"whether it is slower than the baseline cannot be told: {comparison.change.reason}"
        )
    return int(comparison is not None and comparison.change.verdict == "slower")


def has_answer(snapshot: Snapshot) -> bool:
    """Whether there is a verdict, or at least a ledger that says where the time goes."""
    return bool(snapshot.diagnosis.verdicts) or any(ledger.entries for ledger in snapshot.ledgers)


def render(snapshot: Snapshot, form: str, source_around: SourceAround | None = None) -> str:
    """The report of a snapshot as text, json or html; html shows the user's source where that can be read."""
    if form == "json":
        from aitop.outputs.report import as_json, report_of

        return as_json(report_of(snapshot))
    if form == "html":
        from aitop.outputs.html.page import to_html

        return to_html(snapshot, source_around)
    from aitop.outputs.text import to_text

    return to_text(snapshot)


def write_report(text: str, output: Path | None) -> None:
    """Write to stdout, or to the file that was asked for."""
    if output is None:
        sys.stdout.write(text)
    else:
        write_file(output, text.encode())


def write_file(output: Path, data: bytes) -> None:
    """Write to a file that the user named. Raises WrongUsageError."""
    from aitop.output_file import write_output

    try:
        write_output(output, data)
    except OSError as error:
        raise WrongUsageError(f"cannot write {output}: {error.strerror or error}") from None


def check_writable(output: Path | None) -> None:
    """Raise WrongUsageError if the report cannot be written: before the watching, not only after it."""
    if output is None:
        return
    try:
        os.stat(output)
    except (FileNotFoundError, PermissionError):
        place = output.parent
    except OSError as error:
        raise WrongUsageError(f"cannot write {output}: {error.strerror}") from error
    else:
        place = output
    if os.path.isdir(output) or not os.access(place, os.W_OK):
        raise WrongUsageError(f"cannot write {output}: no such directory, or not yours to write to")
