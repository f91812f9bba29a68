"""Runs a command of the user's when a verdict appears: `--on VERDICT[:SEVERITY] --exec CMD`.

The shell (`/bin/sh -c`) runs it, as cron and `watch` do, with the report as JSON on its standard input. Nothing that
aitop has read is put into the command: `AITOP_VERDICT`, `AITOP_SEVERITY` and `AITOP_PID` in its environment are words
and numbers of aitop's own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from aitop.commands import how_ended, say
from aitop.errors import WrongUsageError
from aitop.model.verdict import SEVERITY_ORDER, Severity, Verdict

if TYPE_CHECKING:
    from aitop.model.snapshot import Snapshot

# Seconds after which the same verdict may run the command again.
DWELL_SECONDS = 600.0
# Seconds that a running command gets at the end to finish, and after SIGTERM.
FINISH_SECONDS, KILL_SECONDS = 30.0, 1.0
ANY = "any"
METAVAR = "VERDICT[:SEVERITY]"


class Trigger(NamedTuple):
    """A verdict's id (or `any`), and the least severity that counts."""

    verdict: str
    severity: Severity

    def matches(self, verdict: Verdict) -> bool:
        """Whether the verdict is one to run the command for."""
        bad_enough = SEVERITY_ORDER[verdict.severity] <= SEVERITY_ORDER[self.severity]
        return bad_enough and self.verdict in (ANY, verdict.id)


def trigger(text: str) -> Trigger:
    """Parse VERDICT[:SEVERITY]. Raises argparse's error where there is no such verdict or severity."""
    from aitop.diagnosis.catalogue import IDS, no_such

    name, colon, severity = text.partition(":")
    if name != ANY and name not in IDS:
        raise argparse.ArgumentTypeError(no_such(name))
    if colon and severity not in SEVERITY_ORDER:
        raise argparse.ArgumentTypeError(f"{severity!r} is none of {', '.join(SEVERITY_ORDER)}")
    if colon:
        return Trigger(name, cast("Severity", severity))
    # A verdict that is named counts however severe it is. `any` leaves out "info", as some of these say all is well.
    return Trigger(name, "warning" if name == ANY else "info")


def add_alert_options(parser: argparse.ArgumentParser) -> None:
    """--on and --exec."""
    group = parser.add_argument_group("alerts")
    group.add_argument(
        "--on",
        type=trigger,
        action="append",
        default=[],
        metavar=METAVAR,
        help="run the command of --exec when there is this verdict (or `any`), at least this severe; may be repeated",
    )
    group.add_argument(
        "--exec",
        dest="command_of_alert",
        metavar="CMD",
        help="what the shell runs then, at most once in 10 minutes for a verdict, with the JSON report on its stdin",
    )


def alert_of(args: argparse.Namespace) -> Alert | None:
    """The alert that was asked for, None without one. Raises WrongUsageError."""
    command: str | None = args.command_of_alert
    if command is None and not args.on:
        return None
    if command is None or not args.on:
        raise WrongUsageError("--on VERDICT and --exec CMD need each other")
    if not command.strip():
        raise WrongUsageError("--exec needs a command")
    _refuse_foreign(command)
    return Alert(args.on, command)


class Alert:
    """Runs the command for verdicts of Snapshots. Only `finish` waits for it."""

    def __init__(self, triggers: list[Trigger], command: str) -> None:
        self._triggers, self._command = triggers, command
        self._ran: dict[str, float] = {}
        # What the command is still to run for, by the verdict's id.
        self._waiting: dict[str, tuple[Snapshot, Verdict]] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def consider(self, snapshot: Snapshot) -> None:
        """Run the command if a verdict of the Snapshot matches a trigger and it did not run for that verdict lately.

        Only one runs at a time. The others wait for their turn, even if the verdict is gone by then.
        """
        now = time.monotonic()
        for verdict in snapshot.diagnosis.verdicts:
            ran = self._ran.get(verdict.id)
            lately = ran is not None and now - ran < DWELL_SECONDS
            if not lately and any(trigger.matches(verdict) for trigger in self._triggers):
                self._waiting[verdict.id] = snapshot, verdict
        self._next()

    def _next(self) -> None:
        """Run the command for the first verdict that waits, unless it runs now."""
        self._reap()
        while self._process is None and self._waiting:
            name = next(iter(self._waiting))
            self._ran[name] = time.monotonic()
            self._start(*self._waiting.pop(name))

    def finish(self, snapshot: Snapshot | None = None) -> None:
        """Run the command for what still waits, one after the other; FINISH_SECONDS in all."""
        deadline = time.monotonic() + FINISH_SECONDS
        try:
            if snapshot is not None:
                self.consider(snapshot)
            while (process := self._process) is not None and time.monotonic() < deadline:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
                self._next()
        finally:
            self.stop()

    def stop(self) -> None:
        """End a running command, and the processes that it started."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)

    def _start(self, snapshot: Snapshot, verdict: Verdict) -> None:
        from aitop.outputs.report import as_json, report_of

        variables = {
            "AITOP_VERDICT": verdict.id,
            "AITOP_SEVERITY": verdict.severity,
            "AITOP_PID": str(snapshot.target.pid),
        }
        try:
            # In a file, not a pipe: writing it all never blocks, whether or not the command reads it.
            with tempfile.TemporaryFile() as report:
                report.write(as_json(report_of(snapshot)).encode())
                report.seek(0)
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", self._command],
                    stdin=report,
                    # stderr: our own stdout is for the report.
                    stdout=2,
                    env={**os.environ, **variables},
                    start_new_session=True,
                )
        except OSError as error:
            say(f"the command of --exec did not start: {error.strerror or error}")

    def _reap(self) -> None:
        """Forget a command that has ended, and say how if it failed."""
        if self._process is None or (code := self._process.poll()) is None:
            return
        self._process = None
        if code:
            say(f"the command of --exec {how_ended(code)}: {self._command}")


def _refuse_foreign(command: str) -> None:
    """Raise WrongUsageError where root would run a program, or have one read a file, that somebody else can change."""
    if os.geteuid() != 0:
        return
    try:
        words = shlex.split(command)
    except ValueError:
        # The shell will say what is wrong with it.
        return
    for word in words:
        # A shell or Python also runs a file that is not executable.
        path = shutil.which(word) or (word if os.path.isfile(word) else None)
        if path is not None and (place := _foreign(Path(path))) is not None:
            raise WrongUsageError(
                f"--exec: {place} can be changed by others than root, and aitop runs as root: "
                "run aitop as its owner, or give it to root"
            )


def _foreign(path: Path) -> Path | None:
    """The file, or a folder that it or the target of its links is in, that others than root can change; else None."""
    named, target = path.absolute(), path.resolve()
    for place in (named, target, *named.parents, *target.parents):
        status = place.stat()
        # In a sticky folder such as /tmp only the owner of a file can replace it.
        open_to_all = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (
            stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        )
        if status.st_uid != 0 or open_to_all:
            return place
    return None
