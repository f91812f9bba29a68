"""`aitop` and `aitop --pid`: the live screen."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from aitop.commands import say
from aitop.commands.options import add_record_option, add_screen_options, add_watch_options, process_id, prometheus
from aitop.errors import AitopError, NoTargetError, WrongUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aitop.engine.live import LiveFeed
    from aitop.engine.recorder import Recorder
    from aitop.model.host import ProcessId
    from aitop.model.job import Candidate
    from aitop.model.settings import Settings
    from aitop.model.snapshot import Target
    from aitop.sources.prometheus.fleet import FleetReader

# Lines of a source file that is shown whole.
LONGEST_FILE = 100_000
# How many of the jobs here are named where they cannot be chosen from a list, and characters of each one's command.
MOST_NAMED, MOST_OF_COMMAND = 5, 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--pid, --record and the options of watching."""
    parser.add_argument(
        "-p",
        "--pid",
        type=process_id,
        nargs="+",
        metavar="PID",
        help="the process to watch, with its children (a launcher's pid means all its ranks)",
    )
    add_record_option(parser)
    add_watch_options(parser)
    add_screen_options(parser)


def run(args: argparse.Namespace) -> int:
    """Show the screen for the processes named, or for the one picked from a list."""
    check_terminal("`aitop diagnose --pid PID` writes a report without one", tuple if args.pid else find)
    from aitop.sources.host.target import look

    pids = args.pid or pick_pids(args.settings)
    return watch([look(pid) for pid in pids], args) if pids else 0


def watch(targets: Sequence[Target], args: argparse.Namespace) -> int:
    """The screen on live processes, recorded if asked for; the exit code."""
    from aitop.engine.feed import LazyFeed
    from aitop.engine.recorder import Recorder
    from aitop.outputs.recording import RecordingWriter
    from aitop.ui.app import MonitorApp

    recorder = Recorder(lambda path, new: RecordingWriter(path, targets[0], new=new), args.record)

    def make() -> LiveFeed:
        from aitop.engine.live import LiveFeed

        return LiveFeed(targets, args.settings, recorder)

    if args.settings.editor:
        os.environ["VISUAL"] = args.settings.editor
    feed, knows = LazyFeed(make), cluster(args.settings)
    app = MonitorApp(feed, None, source_around, args.settings, recorder, cluster=knows)
    code = app.show()
    if feed.failed is not None:
        say(feed.failed)
    return code if _all_kept(recorder) and feed.failed is None else AitopError.exit_code


def cluster(settings: Settings) -> FleetReader | None:
    """The reader that knows the job's ranks on other machines; None where no Prometheus server is set."""
    if settings.prometheus is None:
        return None
    from aitop.sources.prometheus.fleet import FleetReader

    return FleetReader(prometheus(settings.prometheus))


def _all_kept(recorder: Recorder) -> bool:
    """Say where the recordings are and which have stopped early. Returns False if one has."""
    recorder.close()
    for recording in recorder.made:
        words = recording.failed or f"recorded {recording.path}; look at it with: aitop replay {recording.path}"
        say(words)
    return not any(recording.failed for recording in recorder.made)


def source_around(process: ProcessId, file: str, line: int) -> list[tuple[int, str]] | None:
    """The numbered lines of a file of a process around `line` (0: all of them), as the process sees the file."""
    from aitop.sources.code.lines import SourceCode

    code = SourceCode(process)
    return code.around(file, line) if line else code.around(file, 1, after=LONGEST_FILE)


def pick_pids(settings: Settings) -> list[int]:
    """Let the user choose one of the AI processes found here; empty where none was wanted."""
    from aitop.ui.app import PickerApp

    if not find():
        raise NoTargetError(
            "no process here has torch, JAX or TensorFlow loaded or uses a GPU: "
            "try `aitop demo`, or name a process with `aitop --pid PID`"
        )
    pid = PickerApp(find, settings).choose()
    return [] if pid is None else [pid]


def find() -> list[Candidate]:
    """The AI processes of this machine, GPU users among them."""
    from aitop.sources.devices import device_users
    from aitop.sources.host.discovery import candidates

    return list(candidates(gpu_users=device_users()))


def _shortened(command: str) -> str:
    return command if len(command) <= MOST_OF_COMMAND else f"{command[:MOST_OF_COMMAND]}…"


def check_terminal(instead: str, jobs: Callable[[], Sequence[Candidate]] = tuple) -> None:
    """Where there is no terminal to draw on, raise a WrongUsageError that says what to do `instead`.

    It names the `jobs`, from which the screen would have let the user choose.
    """
    # The screen is drawn through stderr; stdout counts too, as a pipe has no use for what a picker chose.
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if any(stream is None or not stream.isatty() for stream in streams):
        problem = "the screen needs a terminal, and input, output or stderr is not one"
    elif os.environ.get("TERM") == "dumb":
        problem = "this terminal (TERM=dumb) cannot show the screen"
    else:
        return
    named = [f"{job.pid} ({_shortened(job.command)})" for job in jobs()[:MOST_NAMED]]
    raise WrongUsageError(f"{problem}: {instead}" + (f"; found here: {', '.join(named)}" if named else ""))
