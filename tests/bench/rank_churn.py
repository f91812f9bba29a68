"""Kills ranks and loader workers of a real elastic job at random while it is watched:
python tests/bench/rank_churn.py [--minutes 5] [--ranks 2] [--seed 0] [--gloo]

torchrun starts all ranks anew each time. Told at the end: how often, how soon the new ranks' steps were on the screen,
and whatever failed in between. The ranks train with DistributedDataParallel and loader workers, but exchange with
nobody unless --gloo: gloo's ranks may wait in vain for one that was killed while they connect, and that is not what
is to be shown.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import together

from aitop.engine.live import LiveFeed, Options
from aitop.model.snapshot import Snapshot
from aitop.sources.host.target import look

JOB = Path(__file__).parents[1] / "ranks" / "job.py"
PATIENCE_SECONDS = 120.0
NEVER = 10**9
LOOK_SECONDS = 0.2
TAIL_BYTES = 2000
# A rank that dies while the others connect to it leaves gloo waiting for it: they give up, and all begin anew.
MESH_SECONDS = 15


class Awake:
    """Seconds in which this program was let run: looked at often, so that a longer pause means it was stopped."""

    def __init__(self) -> None:
        self.seconds, self._last = 0.0, time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep, and count it with what passed since the last time, a second at most each."""
        while seconds > 0:
            time.sleep(min(seconds, LOOK_SECONDS))
            seconds -= LOOK_SECONDS
            now = time.monotonic()
            self.seconds += min(1.0, now - self._last)
            self._last = now


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


def main() -> None:
    together.end_below()
    parser = argparse.ArgumentParser(description=__doc__)
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
    with tempfile.TemporaryFile() as log:
        job = subprocess.Popen(
            [*command, "--after", str(NEVER), "--world", str(args.ranks), "--patience", str(MESH_SECONDS), *alone],
            stdout=log, stderr=log, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        watched = Watched()
        feed = LiveFeed([look(job.pid)], Options(gpu=False))
        feed.start(watched.take)
        stopper = together.beside(job.pid)
        try:
            told = churn(args.ranks, watched, chance, 60 * args.minutes)
        finally:
            feed.stop()
            stopper.kill()
            stopper.wait()
            # torchrun gives each rank a session of its own: they would outlive it.
            for process in [*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            job.wait()
        log.seek(max(0, log.tell() - TAIL_BYTES))
        if "NOT followed" in told:
            print(log.read().decode(errors="replace"))
    print(told)
    print(f"failures: {dict(watched.failures) or 'none'}\nverdicts, by snapshots: {dict(watched.verdicts)}")


def churn(ranks: int, watched: Watched, chance: random.Random, seconds: float) -> str:
    """Kill one process after the other, each time the view has followed."""
    waits: list[float] = []
    killed: collections.Counter[str] = collections.Counter()
    old: set[int] = set()
    awake, since = Awake(), 0.0
    while awake.seconds < seconds:
        new = watched.stepping() - old
        if len(new) < ranks:
            if awake.seconds - since > PATIENCE_SECONDS:
                return f"{dict(killed)} killed; NOT followed after {len(waits)} times: {watched.told()}"
            awake.sleep(LOOK_SECONDS)
            continue
        waits.append(awake.seconds - since)
        print(f"followed after {waits[-1]:.1f} s", flush=True)
        awake.sleep(chance.uniform(0.0, 6.0))
        old = set(new)
        role = chance.choice(["rank", "loader-worker"])
        processes = watched.newest.host.processes if watched.newest and watched.newest.host else ()
        victim = chance.choice([one.pid for one in processes if one.role == role] or sorted(old))
        if psutil.pid_exists(victim):
            os.kill(victim, signal.SIGKILL)
            killed[role] += 1
        since = awake.seconds
    return (
        f"{dict(killed)} killed; followed {len(waits)} times, after {statistics.median(waits):.1f} s in the median, "
        f"{max(waits):.1f} s at most (torch's own start included)"
    )


if __name__ == "__main__":
    main()
