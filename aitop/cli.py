"""The command line: which verb, and which exit code for whatever happens. Verbs are in commands/, one a file."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from aitop import __version__
from aitop.commands import completion, config, monitor, say
from aitop.commands.options import settle
from aitop.errors import INTERRUPTED, AitopError

DESCRIPTION = "See why a training run or a model server is not faster, and what would make it so."
EXAMPLES = """\
examples:
  aitop                                        choose one of the AI processes found here
  aitop --pid 4242                             watch a training run, as it is, with its loader workers
  aitop demo                                   start a small run with a planted fault and watch it
  aitop run -- python train.py                 start a run with the hook in from the first step
  aitop diagnose --pid 4242 --format json      look for 15 s, then report (for scripts and CI)
  aitop explain input-bound                    what a verdict means, how to be sure of it, and how to fix it
  aitop profile --pid 4242 -o trace.json       torch.profiler around 5 steps of it, and a trace for Perfetto
  aitop export --all --prometheus 9464         what costs the jobs here their time, as metrics
  aitop fleet --prometheus http://HOST:9090    the jobs of a whole cluster, by what they waste
  aitop doctor --pid 4242                      what works here, what does not, and how to mend it

exit codes:
  0 done · 1 --fail-on reached, or aitop failed · 2 wrong usage · 3 no such process, or it ended too soon
  4 not permitted · 5 not enough evidence in the time given · 6 unreadable recording · 130 interrupted
"""
VERBS = {
    "run": "start a command with the hook in, then watch it",
    "demo": "start a bundled run and watch it",
    "diagnose": "look for a while without a screen, then report",
    "explain": "say what a verdict means, how to be sure of it, and how to fix it",
    "profile": "run torch.profiler in the process for a few steps",
    "record": "look without a screen and keep everything that was seen",
    "replay": "play a recording on the same screen",
    "compare": "say whether a run is faster than an earlier one, and why",
    "export": "export what costs the jobs of this machine their time, as metrics",
    "fleet": "show the jobs of a whole cluster by what they waste, from Prometheus",
    "doctor": "say what works here, what does not, and how to mend it",
    "config": "say what is set, and in which file",
}
"""The verbs, each a module of commands/, and what it does."""
WITHOUT_SETTINGS = ("compare", "config", "doctor", "explain")
"""Verbs that work even if the settings file is invalid."""
PIPE_CLOSED = 128 + signal.SIGPIPE
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of writing to stdout: disk full, quota used up, file too large. Recordings and reports name theirs."""
NO_MORE_THREADS = "can't start new thread"
"""What Python says of itself then."""


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The whole command line; with `words` only the verbs among them have options: the others are not imported.

    Options without a verb are those of the monitor.
    """
    parser = argparse.ArgumentParser(
        prog="aitop",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"aitop {__version__}")
    completion.add_arguments(parser)
    monitor.add_arguments(parser)
    parser.set_defaults(run=monitor.run)
    verbs = parser.add_subparsers(title="other verbs", dest="verb", metavar="VERB")
    for name, summary in VERBS.items():
        verb = verbs.add_parser(name, help=summary, allow_abbrev=False)
        if words is None or name in words:
            module = importlib.import_module(f"aitop.commands.{name}")
            verb.description = module.__doc__
            module.add_arguments(verb)
            verb.set_defaults(run=module.run)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `run(args)` of the result does the work. Wrong usage exits with 2 (SystemExit).

    Options that are not given come from the settings file. Raises WrongUsageError if that file is invalid.
    """
    options, command = split_command(arguments)
    completes = any(word.startswith(completion.OPTION) for word in options)
    parser = build_parser(None if completes else options)
    if options and options[0].isdecimal():
        parser.error(f"to watch process {options[0]}: aitop --pid {options[0]}")
    args = parser.parse_args(options)
    if args.verb and options[0] != args.verb:
        parser.error(f"the options of {args.verb} stand behind it: aitop {args.verb} {options[0]} …")
    if args.verb == "run":
        # The command begins at the first word that is no option of ours, or at the first --.
        args.command = [*args.command, "--", *command] if args.command and command else args.command or command
    elif command is not None:
        parser.error("only `aitop run` takes a command after --")
    if args.verb not in WITHOUT_SETTINGS:
        settle(args, config.read())
    return args


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """aitop's own arguments, and the command after the first `--` (None without one)."""
    own = list(arguments)
    if "--" not in own:
        return own, None
    cut = own.index("--")
    return own[:cut], own[cut + 1 :]


def run(arguments: Sequence[str]) -> int:
    """Do what the command line asks; every failure becomes one sentence on stderr and an exit code."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        try:
            args = parse(arguments)
            return int(args.run(args))
        finally:
            # Flush here, so that a write error (full disk, closed pipe) is reported instead of the verb's result.
            sys.stdout.flush()
    except AitopError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except Exception as error:
        return _unexpected(error)


def catch_signals() -> None:
    """Make a polite end (SIGTERM) and a closed terminal (SIGHUP) unwind like an error. For the main thread only.

    A signal that whoever started us has ignored, as `nohup` does, stays ignored: here, and in what we start.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _terminate)


def _open_closed_streams() -> None:
    """Send stdout and stderr nowhere if whoever started us has closed them: no file that we open gets their number."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115 - for as long as we run


def _unexpected(error: Exception) -> int:
    if os.environ.get("AITOP_DEBUG"):
        import traceback  # wanted by few

        traceback.print_exc()
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        say("as many files are open as may be: raise the limit with `ulimit -n 4096`, and try again")
        return AitopError.exit_code
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        say(f"cannot write what was asked for: {error.strerror}")
        _drop_output()
        return AitopError.exit_code
    if isinstance(error, RuntimeError) and str(error) == NO_MORE_THREADS:
        say("the system lets aitop start no more threads: see `ulimit -u`, or the container's limit of processes")
        return AitopError.exit_code
    say(
        f"this is a fault in aitop, not in your process: {type(error).__name__}: {error}; "
        "please report it with what AITOP_DEBUG=1 prints"
    )
    return AitopError.exit_code


def _drop_output() -> None:
    """Send what is left in the buffer of stdout nowhere: it must not fail a second time at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """A signal asked us to go: unwind like an error, so that hooks and sources are taken down."""
    sys.exit(128 + number)
