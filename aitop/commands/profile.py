"""Run torch.profiler in the process for a few steps: the dearest operators, and a trace that Perfetto opens."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aitop.commands.diagnose import check_writable, write_file
from aitop.commands.options import process_id
from aitop.errors import AitopError, NoTargetError, NotEnoughEvidenceError, NotPermittedError
from aitop.model.settings import Options
from aitop.model.snapshot import Snapshot

MOST_STEPS = 100
HOOK_PATIENCE_SECONDS = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--pid --steps -o."""
    parser.add_argument(
        "-p", "--pid", type=process_id, required=True, help="the process to profile (of several ranks: rank 0)"
    )
    parser.add_argument("--steps", type=steps, default=5, metavar="N", help="how many steps (default: 5)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="also write the Chrome trace (open it at ui.perfetto.dev)"
    )


def steps(text: str) -> int:
    """A number of steps that a profile can be made of."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_STEPS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps from 1 to {MOST_STEPS}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Put the hook in, profile, and take the hook out. Raises an AitopError where that is not possible."""
    from aitop.commands.headless import watching
    from aitop.engine.torch_profile import take_profile
    from aitop.outputs.profile import profile_text
    from aitop.sources.host.target import look

    check_writable(args.output)
    target, options = look(args.pid), Options(gpu=False, stacks=False, metrics=False, interval=0.25)
    with watching([target], options) as watcher:
        watcher.wait(HOOK_PATIENCE_SECONDS, f"Waiting for the steps of {args.pid} …", until=has_steps)
        try:
            pid = stepping_pid(watcher.snapshot, args.pid)
            taken = take_profile(pid, args.steps, wanted=lambda: not watcher.ended)
        except AitopError:
            # How the watching ended is the reason then.
            if not watcher.ended:
                raise
            taken = None
    if taken is None:
        ended = watcher.snapshot and watcher.snapshot.target.ended
        raise NoTargetError(f"{ended}, before its steps could be profiled")
    if args.output is not None:
        write_file(args.output, taken.trace)
    sys.stdout.write(profile_text(taken.profile))
    return 0


def has_steps(snapshot: Snapshot) -> bool:
    """Whether the hook is in and has reported steps."""
    return snapshot.steps is not None and snapshot.steps.basis == "hook" and bool(snapshot.steps.recent)


def stepping_pid(snapshot: Snapshot | None, pid: int) -> int:
    """The process whose steps are seen. Raises an AitopError with the reason where none are."""
    if snapshot is not None and has_steps(snapshot) and snapshot.steps is not None:
        return snapshot.steps.pid or pid
    hook = snapshot.sources.get("hook") if snapshot is not None else None
    if hook is not None and hook.state == "denied":
        raise NotPermittedError(f"{hook.reason}", hook.remedy)
    if hook is not None and hook.state != "ok" and hook.reason:
        raise AitopError(f"no profile without the hook: {hook.reason}", hook.remedy)
    raise NotEnoughEvidenceError(f"process {pid} made no step in {HOOK_PATIENCE_SECONDS:.0f} s: nothing to profile")
