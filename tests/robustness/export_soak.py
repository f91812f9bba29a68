"""Whether memory, files, threads or series of `aitop export --all` grow while jobs come and go for an hour.

Some small training runs stay from beginning to end. Beside them a new one starts every minute and a half, and is killed
two minutes and a half later. The exporter is scraped every 15 s and looked at every 30 s. "ended jobs" counts those in
the scrape that ended more than half a minute ago; those that stay have to be in every scrape from the first minute on.
"series" are the lines of a scrape, which follow the jobs there are. Where the whole bench was stopped for a while, so
that another one could run, that time does not count.

    python tests/robustness/export_soak.py [--minutes M]
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import Figure, options, publish  # isort: split

from export_cost import JOB, SCRAPE_SECONDS, Exporter, in_own_namespace
from soak import Figures

STAYING = 3
NEW_SECONDS, LIFE_SECONDS, LOOK_SECONDS, FORGET_SECONDS = 90.0, 150.0, 30.0, 30.0
# By then a new job has its verdict (export_cost.py), and is in every scrape.
FOUND_SECONDS = 60.0


class Jobs:
    """Training runs of which some stay and others come and go."""

    def __init__(self, folder: Path) -> None:
        self._script = folder / "train.py"
        self._script.write_text(JOB)
        self._staying = [self._start() for _ in range(STAYING)]
        self._passing: list[tuple[float, subprocess.Popen[bytes]]] = []
        self.ended: dict[int, float] = {}
        self.started = STAYING

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(self._script)], env=os.environ | {"OMP_NUM_THREADS": "1"})

    def staying(self) -> set[int]:
        """The pids of those that are there from beginning to end."""
        return {job.pid for job in self._staying}

    def update(self, now: float) -> None:
        """Start and end what is due."""
        if not self._passing or now - self._passing[-1][0] >= NEW_SECONDS:
            self._passing.append((now, self._start()))
            self.started += 1
        while now - self._passing[0][0] >= LIFE_SECONDS:
            _, job = self._passing.pop(0)
            self._kill(job)
            self.ended[job.pid] = now

    @staticmethod
    def _kill(job: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(job.pid).children():
                child.kill()
        job.kill()
        job.wait()

    def kill(self) -> None:
        """End all of them."""
        for job in [*self._staying, *(job for _, job in self._passing)]:
            self._kill(job)


def jobs_of(text: str) -> set[int]:
    """The topmost processes of the jobs in a scrape."""
    return {int(pid) for pid in re.findall(r'[{,]job="[^"]*/(\d+)"', text)}


def soak(exporter: Exporter, jobs: Jobs, minutes: float) -> tuple[Figures, list[int]]:
    """Scrape and look at the exporter for so long; how many of the staying jobs each scrape lacked."""
    over_time, missing = Figures("hour"), list[int]()
    now, look_at, last = 0.0, 0.0, time.monotonic()
    while now < minutes * 60:
        jobs.update(now)
        text = exporter.scrape()
        if now >= FOUND_SECONDS:
            missing.append(len(jobs.staying() - jobs_of(text)))
        if now >= look_at:
            look_at += LOOK_SECONDS
            ended = {pid for pid, when in jobs.ended.items() if now - when > FORGET_SECONDS}
            over_time.add(
                now / 3600,
                memory_MB=exporter.process.memory_info().rss / 1e6,
                files=float(exporter.process.num_fds()),
                threads=float(exporter.process.num_threads()),
                children=float(len(exporter.process.children(recursive=True))),
                series=float(sum(not line.startswith("#") for line in text.splitlines())),
                ended_jobs=float(len(jobs_of(text) & ended)),
            )
            print({name: round(values[-1], 1) for name, values in over_time.read.items()}, flush=True)
        time.sleep(SCRAPE_SECONDS)
        before, last = last, time.monotonic()
        now += min(last - before, 2 * SCRAPE_SECONDS)
    return over_time, missing


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    args = parser.parse_args()
    in_own_namespace()
    with tempfile.TemporaryDirectory() as folder:
        exporter, jobs = Exporter(), Jobs(Path(folder))
        try:
            exporter.wait()
            over_time, missing = soak(exporter, jobs, args.minutes)
        finally:
            exporter.stop()
            jobs.kill()
    growing, memory = over_time.growing(), max(over_time.read["memory MB"])
    print(f"{jobs.started} jobs, {STAYING} of them for the whole time")
    what = f"figures that grow in {args.minutes:g} min while {jobs.started} jobs come and go"
    return publish(
        args,
        [
            Figure(what, len(growing), most=0, spread=", ".join(growing)),
            Figure("most memory", memory, "MB", most=80.0),
            Figure("ended jobs seen in a scrape, at the most", max(over_time.read["ended jobs"]), most=0),
            Figure(
                "staying jobs that a scrape lacked, at the most",
                max(missing, default=None),
                most=0,
                spread=f"of {STAYING}, {len(missing)} scrapes",
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
