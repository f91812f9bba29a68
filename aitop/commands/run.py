"""Start a command with the step hook in from the first step, then watch it.

With the screen, the command's output goes to a log file whose last lines are shown when the screen closes. Quitting
the screen leaves a command that still runs alone, and says its pid and its log. With --headless there is no screen:
output passes through, Ctrl-C reaches the command, and a report goes to stderr when it ends. The exit code is the
command's own, once it has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING

from aitop.commands import how_ended, say
from aitop.commands.alert import add_alert_options, alert_of
from aitop.commands.diagnose import check_writable
from aitop.commands.options import add_record_option, add_screen_options, add_watch_options
from aitop.errors import OwnFailureError, WrongUsageError

if TYPE_CHECKING:
    from aitop.commands.alert import Alert
    from aitop.model.snapshot import Target

LOG_LINES_SHOWN, LOG_BYTES_SHOWN = 20, 64 << 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """CMD --headless --record, alerts and the options of watching. CMD may also stand behind `--`: see `cli.parse`."""
    parser.usage = "aitop run [options] [--] CMD ..."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD ...", help="the command with its arguments")
    parser.add_argument("--headless", action="store_true", help="no screen: watch, and report on stderr at the end")
    add_record_option(parser)
    add_alert_options(parser)
    add_watch_options(parser)
    add_screen_options(parser)


def run(args: argparse.Namespace) -> int:
    """Start the command and watch it. Returns its own exit code if it has ended, else 0."""
    if not args.command:
        raise WrongUsageError("there is nothing to run: name a command, as in `aitop run -- python train.py`")
    alert = alert_of(args)
    if alert is not None and not args.headless:
        raise WrongUsageError("--on and --exec need --headless: on the screen you see the verdict yourself")
    if args.record is not None:
        from aitop.outputs.recording import check_empty

        # Before the command runs, for which it would be too late.
        check_writable(args.record)
        check_empty(args.record)
    environment = dict(os.environ)
    if args.settings.hook and not args.settings.passive:
        environment = with_hook(environment)
    return _headless(args, environment, alert) if args.headless else _on_screen(args, environment)


def with_hook(environment: dict[str, str]) -> dict[str, str]:
    """The environment in which Python finds the hook's sitecustomize before any other (see hook/site)."""
    import aitop

    site = str(Path(aitop.__file__).parent / "hook" / "site")
    others = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder != site]
    path = os.pathsep.join([site, *others]) if any(others) else site
    return {**environment, "AITOP_RUN": "1", "PYTHONPATH": path}


def _on_screen(args: argparse.Namespace, environment: dict[str, str]) -> int:
    from aitop.commands.monitor import check_terminal, watch

    check_terminal("`aitop run --headless -- CMD ...` does without")
    with tempfile.NamedTemporaryFile("wb", prefix="aitop-run-", suffix=".log", delete=False) as log:
        try:
            child = _start(args.command, environment, log)
        except WrongUsageError:
            os.unlink(log.name)
            raise
    try:
        code = watch([_target(child.pid, args.command)], args)
    finally:
        _farewell(child, args.command, Path(log.name))
    return code if child.poll() is None else _exit_code(child)


def _headless(args: argparse.Namespace, environment: dict[str, str], alert: Alert | None) -> int:
    from aitop.commands.diagnose import render
    from aitop.commands.headless import Watcher, watching

    child = _start(args.command, environment, None)
    watcher: Watcher | None = None
    try:
        look = watching([_target(child.pid, args.command)], args.settings, args.record, alert)
        with contextlib.suppress(OwnFailureError), look as watcher:
            watcher.wait(None)
        child.wait()
    except KeyboardInterrupt:
        # The terminal has sent SIGINT to the command, too, which may take its time to save its work.
        child.wait()
    except BaseException:
        child.terminate()
        raise
    if watcher is not None and watcher.snapshot is not None:
        sys.stderr.write("\n" + render(watcher.snapshot, "text"))
    for failure in (watcher.recording_failed, watcher.failed) if watcher is not None else ():
        if failure is not None:
            say(failure)
    return _exit_code(child)


def _start(command: list[str], environment: dict[str, str], log: IO[bytes] | None) -> subprocess.Popen[bytes]:
    try:
        if log is None:
            return subprocess.Popen(command, env=environment)
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise WrongUsageError(f"cannot start {command[0]}: {reason}") from None


def _target(pid: int, command: list[str]) -> Target:
    """The child as a target. It has only just started, so it is accepted even if it is no Python yet (a shell, say)."""
    from aitop.errors import AitopError
    from aitop.model.snapshot import Target
    from aitop.sources import procfs
    from aitop.sources.host.target import look

    try:
        return look(pid)
    except AitopError:
        stat = procfs.stat(pid)
        return Target(pid=pid, command=shlex.join(command), started=procfs.started(stat.start) if stat else None)


def _farewell(child: subprocess.Popen[bytes], command: list[str], log: Path) -> None:
    """Say whether the command still runs or how it ended, and where its output is."""
    if child.poll() is None:
        print(
            f"{shlex.join(command)} goes on running as process {child.pid}, its output in {log}.\n"
            f"Watch it again: aitop --pid {child.pid}    End it: kill {child.pid}",
            file=sys.stderr,
        )
        return
    where = f"all of its output is in {log}"
    try:
        with log.open("rb") as file:
            # The log may be large.
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES_SHOWN))
            sys.stdout.writelines(deque(io.TextIOWrapper(file, errors="replace"), LOG_LINES_SHOWN))
    except OSError as error:
        where = f"its output cannot be read from {log}: {error.strerror}"
    print(f"{shlex.join(command)} {how_ended(child.returncode)}; {where}.", file=sys.stderr)


def _exit_code(child: subprocess.Popen[bytes]) -> int:
    code = child.poll()
    if code is None:
        return 0
    return 128 - code if code < 0 else code
