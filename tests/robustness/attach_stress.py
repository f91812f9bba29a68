"""Hundreds of attach/detach cycles for each kind of target: harm, refusals, leftovers.

A cycle is one install and one remove of a stand-in hook; with the kinds `hooked-…` of the real one, which measures
steps for up to a tenth of a second in between, also those of a model that inductor has compiled. "harmed" counts
targets that died, froze or computed something wrong (losses are held, bit for bit, against those of a run that nobody
attached to); "refused" the requests that were withdrawn in time; "ack" is the time from a request to its answer, "turn"
how long one turn of the target's own loop took, beside the same of a run without attach. The kind `killed` has
the injector killed at a random moment of each cycle. Where no interpreter is given, ours and one of the other way of
linking are used, if there is one (tests/interpreters.py); kinds that need torch run in ours only.

    python tests/robustness/attach_stress.py [-n CYCLES] [--python PATH ...] [--resume] [KIND ...]
"""

from __future__ import annotations

import ast
import os
import random
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import Figure, Pieces, options, publish  # isort: split

from attach_targets import KINDS, STAND_IN, Victim, leftovers
from interpreters import interpreters

from aitop.attach.entrance import deliver, install, remove
from aitop.attach.refusal import AttachRefused

DEFAULT = [
    *("training", "busy", "c-call", "sleep", "longsleep", "lock", "queue", "select", "epoll"),
    *("allocating", "native-allocating", "importing", "timers", "forking", "vector", "killed"),
    *("hooked-training", "hooked-compiled"),
]
TRAINING = ("training", "hooked-training", "hooked-compiled")
HOOKED_SECONDS = 0.1
PLAIN_SECONDS, PLAIN_MOST_SECONDS = 4.0, 900.0
# Per cent of the requests: one in many is withdrawn where the target does not get to it in time.
MOST_REFUSED = 5.0
HEAD = (
    f"{'kind':18}{'cycles':>7}{'acked':>7}{'refused':>9}{'ack ms p50':>12}{'p99':>8}"
    f"{'turn µs p99 plain':>19}{'attached':>10}{'p99.9 plain':>13}{'attached':>10}"
    f"{'harmed':>8}{'left':>6}{'seconds':>9}"
)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


@dataclass
class Outcome:
    """What a target said at its end: its turns in µs (p50, p99, p99.9, longest), losses, and harm in words."""

    turns: list[str] = field(default_factory=lambda: ["nan"] * 4)
    losses: list[str] = field(default_factory=list)
    harm: list[str] = field(default_factory=list)


@dataclass
class Tally:
    """What the cycles came to: milliseconds to each answer, how many requests were refused."""

    acks: list[float] = field(default_factory=list)
    refused: int = 0
    cycles: int = 0

    def cycle(self, pid: int, *, hook: bool = False) -> None:
        """One install and one remove, of the hook itself or of the stand-in."""
        for action in ("install", "remove"):
            asked = time.monotonic()
            try:
                if not hook:
                    deliver(pid, action, STAND_IN, timeout=5, torch=False)
                elif action == "install":
                    install(pid)
                else:
                    remove(pid)
            except AttachRefused:
                self.refused += 1
            else:
                self.acks.append((time.monotonic() - asked) * 1e3)
            if hook and action == "install":
                time.sleep(random.uniform(0, HOOKED_SECONDS))


def killed_cycle(pid: int) -> None:
    """A child attaches again and again, and is killed at a random moment; it also ends with this program."""
    parent = os.getpid()
    child = os.fork()
    if not child:
        while os.getppid() == parent:
            Tally().cycle(pid)
        os._exit(0)
    try:
        time.sleep(random.uniform(0, 0.02))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def said(code: int, out: str, err: str) -> Outcome:
    """What a target that has ended came to."""
    outcome = Outcome()
    for line in out.splitlines():
        word, _, rest = line.partition(" ")
        if word == "turns":
            outcome.turns = rest.split()
        elif word == "losses":
            outcome.losses = ast.literal_eval(rest)
    last = out.splitlines()[-1] if out else "nothing"
    if code or err or not last.startswith("bad 0 same True"):
        outcome.harm.append(f"{code} {last} {err[-200:]}")
    return outcome


def plain(kind: str, python: str, steps: int) -> Outcome:
    """The same target without attach: for as many steps, or for some seconds where it makes none."""
    victim = Victim(kind, python=python, env={**os.environ, "STEPS": str(steps or 10**9)})
    try:
        if steps:
            return said(*victim.finish(timeout=PLAIN_MOST_SECONDS))
        time.sleep(PLAIN_SECONDS)
        return said(*victim.end(timeout=60))
    finally:
        victim.kill()


def attached(kind: str, cycles: int, python: str, killed: bool) -> tuple[Tally, Outcome, list[str]]:
    """The tally, what the target said, and the files that were left."""
    victim, tally, harm = Victim(kind, python=python), Tally(), []
    try:
        for _ in range(cycles):
            if killed:
                killed_cycle(victim.pid)
            else:
                tally.cycle(victim.pid, hook=kind.startswith("hooked"))
            tally.cycles += 1
            if victim.process.poll() is not None:
                harm.append(f"died {victim.process.returncode}")
                break
        if not harm and not victim.goes_on():
            harm.append("froze")
        if killed:
            tally.cycle(victim.pid)
        outcome = said(*victim.end(timeout=60))
        outcome.harm = harm + outcome.harm
        return tally, outcome, leftovers(victim.pid)
    finally:
        victim.kill()


def stress(kind: str, cycles: int, python: str) -> tuple[bool, int, int, int]:
    """Print the line of a kind; whether it was harmed, how many files were left, requests answered and refused."""
    since = time.monotonic()
    target = "busy" if kind == "killed" else kind
    tally, outcome, left = attached(target, cycles, python, killed=kind == "killed")
    compared = len(outcome.losses)
    without = plain(target, python, compared)
    if outcome.losses != without.losses or (kind in TRAINING and not compared):
        outcome.harm.append(f"other losses within {compared} steps")
    note = f"{compared} losses equal; " if compared and not outcome.harm else ""
    print(
        f"{kind:18}{tally.cycles:7}{len(tally.acks):7}{tally.refused:9}"
        f"{statistics.median(tally.acks) if tally.acks else float('nan'):12.1f}{percentile(tally.acks, 0.99):8.1f}"
        f"{without.turns[1]:>19}{outcome.turns[1]:>10}{without.turns[2]:>13}{outcome.turns[2]:>10}"
        f"{len(outcome.harm):8}{len(left):6}{time.monotonic() - since:9.1f}  {note}{'; '.join(outcome.harm)}",
        flush=True,
    )
    return bool(outcome.harm), len(left), len(tally.acks), tally.refused


def default_pythons() -> list[str]:
    pythons = [sys.executable]
    for linked in ("static", "shared"):
        paths = [path for name, path in interpreters().items() if name.endswith(linked)]
        if paths and sys.executable not in paths:
            pythons.append(paths[0])
    return pythons


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("-n", "--cycles", type=int, default=200)
    parser.add_argument("--python", nargs="+", help="the interpreters of the targets")
    parser.add_argument("--resume", action="store_true", help="go on where the last one was interrupted")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join([*KINDS, 'killed'])}")
    args = parser.parse_args()
    pieces = Pieces(resume=args.resume)
    # By interpreter and kind: whether it was harmed, files left behind, requests answered and refused.
    outcomes: dict[tuple[str, str], tuple[bool, int, int, int]] = {
        (python, kind): tuple(came_to)  # type: ignore[misc]
        for python, kind, *came_to in pieces.read()
    }
    for python in args.python or default_pythons():
        print(f"\n{python}\n{HEAD}", flush=True)
        own_packages = ("import torch", "import numpy")
        kinds = [
            kind
            for kind in args.kinds or DEFAULT
            if python == sys.executable or not any(word in KINDS.get(kind, ("",))[0] for word in own_packages)
        ]
        for kind in kinds:
            if (python, kind) not in outcomes:
                outcomes[python, kind] = stress(kind, args.cycles, python)
                pieces.add([python, kind, *outcomes[python, kind]])
    harmed, left, acks, refused = zip(*outcomes.values(), strict=True)
    asked = sum(acks) + sum(refused)
    spread = f"of {len(outcomes)} kinds of target, {args.cycles} cycles each"
    return publish(
        args,
        [
            Figure("targets harmed", sum(harmed), most=0, spread=spread),
            Figure("files left behind", sum(left), most=0),
            Figure("kinds that answered no request", acks.count(0), most=0),
            Figure("requests refused", 100 * sum(refused) / asked, "%", most=MOST_REFUSED, spread=f"of {asked}"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
