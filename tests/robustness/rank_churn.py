"""Kills ranks and loader workers of a real elastic job at random while it is watched.

torchrun starts all ranks anew each time, and their steps have to be in the snapshots again. The ranks train with
DistributedDataParallel and loader workers, but exchange with nobody unless --gloo: gloo's ranks may wait in vain for
one that was killed while they connect, and that is not what is to be shown.

    python tests/robustness/rank_churn.py [--minutes 5] [--ranks 2] [--seed 0] [--gloo]
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import Figure, options, publish  # isort: split

from aitop.engine.live import LiveFeed, Options
from aitop.model.snapshot import Snapshot
from aitop.sources.target import look

JOB = Path(__file__).parents[1] / "e2e" / "ranks" / "job.py"
PATIENCE_SECONDS = 120.0
NEVER = 10**9
LOOK_SECONDS = 0.2
# A rank that dies while the others connect to it leaves gloo waiting for it: they give up, and all begin anew.
MESH_SECONDS = 15


class Watched:
    """The newest snapshot, and what failed in any of them."""

    def __init__(self) -> None:
        self.newest: Snapshot | None = None
        self.failures: collections.Counter[str] = collections.Counter()
        self.verdicts: collections.Counter[str] = collections.Counter()

    def take(self, snapshot: Snapshot) -> None:
        self.newest = snapshot
        self.failures.update(one.reason for one in snapshot.diagnosis.abstained if "this rule failed" in one.reason)
        self.failures.update([snapshot.target.ended] if snapshot.target.ended else [])
        self.verdicts.update(f"{one.id}/{one.subtype}" for one in snapshot.diagnosis.verdicts)

    def told(self) -> str:
        """What the newest snapshot has of ranks and sources."""
        ranks = self.newest.ranks if self.newest else None
        sources = self.newest.sources if self.newest else {}
        seen = [(one.rank, one.pid, one.step) for one in (ranks.ranks if ranks else ())]
        return f"{seen} {[(name, one.state, one.reason) for name, one in sources.items()]}"

    def stepping(self) -> set[int]:
        """The pids of the ranks that have steps."""
        ranks = self.newest.ranks if self.newest else None
        return {one.pid for one in (ranks.ranks if ranks else ()) if one.step is not None}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gloo", action="store_true", help="let the ranks exchange")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    run = ["-m", "torch.distributed.run", "--max-restarts", "1000", "--nproc-per-node", str(args.ranks)]
    # The job with loader workers; its fault never sets in.
    command = [sys.executable, *run, "--master-port", str(chance.randint(20_000, 29_000)), str(JOB), "worker"]
    alone = [] if args.gloo else ["--alone"]
    job = subprocess.Popen(
        [*command, "--after", str(NEVER), "--world", str(args.ranks), "--patience", str(MESH_SECONDS), *alone],
        stdout=subprocess.DEVNULL, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    watched, churn = Watched(), Churn(args.ranks)
    feed = LiveFeed([look(job.pid)], Options(gpu=False))
    feed.start(watched.take)
    try:
        churn.run(watched, chance, 60 * args.minutes)
    finally:
        feed.stop()
        # torchrun gives each rank a session of its own: they would outlive it.
        for process in [*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        job.wait()
    print(f"verdicts, by snapshots: {dict(watched.verdicts)}")
    killed = ", ".join(f"{count} of role {role} killed" for role, count in churn.killed.items())
    waits = churn.waits or [PATIENCE_SECONDS]
    worst = f"worst {max(waits):.1f}, torch's own start included"
    failures = ", ".join(map(str, watched.failures))
    return publish(
        args,
        [
            Figure("times that the new ranks were not followed", int(churn.lost), most=0, spread=killed),
            Figure("until the new ranks' steps are there, median", statistics.median(waits), "s", spread=worst),
            Figure("rules or targets that failed", len(watched.failures), most=0, spread=failures),
        ],
    )


class Churn:
    """Kills one process after the other, each time the view has followed."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.waits: list[float] = []
        self.killed: collections.Counter[str] = collections.Counter()
        self.lost = False

    def run(self, watched: Watched, chance: random.Random, seconds: float) -> None:
        old: set[int] = set()
        began = since = time.monotonic()
        while time.monotonic() - began < seconds:
            new = watched.stepping() - old
            waited = time.monotonic() - since
            if len(new) < self._ranks:
                if waited > PATIENCE_SECONDS:
                    print(f"NOT followed: {watched.told()}")
                    self.lost = True
                    return
                time.sleep(LOOK_SECONDS)
                continue
            self.waits.append(waited)
            print(f"followed after {waited:.1f} s", flush=True)
            time.sleep(chance.uniform(0.0, 6.0))
            old = set(new)
            role = chance.choice(["rank", "loader-worker"])
            processes = watched.newest.host.processes if watched.newest and watched.newest.host else ()
            victim = chance.choice([one.pid for one in processes if one.role == role] or sorted(old))
            if psutil.pid_exists(victim):
                os.kill(victim, signal.SIGKILL)
                self.killed[role] += 1
            since = time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
