"""CPU and memory of `aitop export --all` on a machine with eight jobs, and how soon new jobs are judged.

The jobs are small training runs with two loader workers each that sleep between their steps, so that eight of them fit
a small machine. They start while the exporter runs, as in real use. The first figure is how long after its start the
last of them has a verdict with a share of its time, which only its stacks can give. The CPU leaves out the start, in
which each job is looked at more closely; what that costs stands beside. A scrape every five or fifteen seconds is part
of it, as are py-spy and all other children. The last figures are with the hook in all jobs, which is no default. Where
it may, the bench runs in a pid namespace of its own: jobs of others on this machine are not its subject.

    python tests/bench/export_cost.py
    python tests/bench/export_cost.py --resume                      go on where this was interrupted
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

import psutil
from results import Figure, Pieces, options, publish

MOST_CORES, MOST_HOOKED_CORES, MOST_MEGABYTES, MOST_SECONDS = 0.02, 0.05, 80.0, 60.0
SCRAPE_SECONDS, LOOK_SECONDS = 15.0, 5.0
JOB = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self): return 1 << 30
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.randn(64)

if __name__ == "__main__":  # the workers import this file where they are not forked
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Images(), batch_size=8, num_workers=2):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        time.sleep(0.2)
"""


class Exporter:
    """An exporter of this machine's jobs, and what it uses."""

    def __init__(self, *arguments: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "aitop", "export", "--all", "--prometheus", str(self.port), *arguments]
        self.child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.process = psutil.Process(self.child.pid)

    def cpu(self) -> float:
        """CPU seconds up to now, those of its ended children counted in."""
        times = self.process.cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def wait(self) -> None:
        """Return once it answers."""
        deadline = time.monotonic() + 30
        while True:
            try:
                self.scrape()
                return
            except OSError:
                if self.child.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def scrape(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return answer.read().decode()

    def run(self, seconds: float) -> tuple[float, float]:
        """Scrape it for so long: the cores it took, and its memory (megabytes) at the most."""
        begin, before, most = time.monotonic(), self.cpu(), 0.0
        while (left := begin + seconds - time.monotonic()) > 0:
            time.sleep(min(SCRAPE_SECONDS, left))
            self.scrape()
            most = max(most, self.process.memory_info().rss / 1e6)
        return (self.cpu() - before) / (time.monotonic() - begin), most

    def stop(self) -> None:
        self.child.send_signal(signal.SIGTERM)
        self.child.wait(20)

    def until_judged(self, jobs: set[int], seconds: float) -> dict[int, float]:
        """Scrape it for so long: after how many seconds each of the jobs (their pids) had a verdict."""
        begin, judged = time.monotonic(), dict[int, float]()
        while (now := time.monotonic() - begin) < seconds:
            time.sleep(min(LOOK_SECONDS, seconds - now))
            for pid in with_verdict(self.scrape()) & jobs:
                judged.setdefault(pid, time.monotonic() - begin)
        return judged


def with_verdict(text: str) -> set[int]:
    """The jobs that have a verdict with a share of their time, by pid."""
    lines = (line for line in text.splitlines() if line.startswith("aitop_verdict_share{"))
    return {int(job[1]) for line in lines if (job := re.search(r'job="[^"]*/(\d+)"', line))}


def in_own_namespace() -> None:
    """Start this program anew in a pid namespace of its own, where that is allowed."""
    program, inside = shutil.which("unshare"), "AITOP_BENCH_ALONE"
    if program is None or inside in os.environ:
        return
    unshare = [program, "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        return
    os.execve(program, [*unshare, sys.executable, *sys.argv], os.environ | {inside: "1"})


class Cost(NamedTuple):
    """Seconds until each job was judged, CPU seconds of the start, then cores, and megabytes at the most."""

    judged: list[float]
    start: float
    cores: float
    memory: float


def measure(jobs: int, start: float, seconds: float, *arguments: str) -> Cost:
    """What an exporter with these arguments takes beside so many new jobs."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(JOB)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        exporter, running = Exporter(*arguments), []
        try:
            exporter.wait()
            before = exporter.cpu()
            running += [subprocess.Popen([sys.executable, str(script)], env=environment) for _ in range(jobs)]
            judged = exporter.until_judged({job.pid for job in running}, start)
            begin = exporter.cpu() - before
            return Cost(list(judged.values()), begin, *exporter.run(seconds))
        finally:
            exporter.stop()
            for job in running:
                job.kill()
                job.wait()


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--start", type=int, default=100, help="seconds that are not measured")
    parser.add_argument("--seconds", type=int, default=240, help="seconds that are measured")
    parser.add_argument("--resume", action="store_true", help="go on where an interrupted run of this commit ended")
    args = parser.parse_args()
    in_own_namespace()
    pieces = Pieces(resume=args.resume)
    for words in ((), ("--hook",))[len(pieces.read()) :]:
        pieces.add(measure(args.jobs, args.start, args.seconds, *words))
    usual, hooked = (Cost(*piece) for piece in pieces.read())
    usual_start, hooked_start = (
        f"the first {args.start} s: {cost.start / args.jobs:.2f} CPU seconds a job" for cost in (usual, hooked)
    )
    slowest = max(usual.judged) if len(usual.judged) == args.jobs else None
    what = f"CPU with {args.jobs} jobs, of a core"
    return publish(
        args,
        [
            Figure("until the last new job has a verdict", slowest, "s", most=MOST_SECONDS),
            Figure(f"jobs with a verdict after {args.start} s", len(usual.judged), f"of {args.jobs}", least=args.jobs),
            Figure(what, usual.cores * 100, "%", most=MOST_CORES * 100, spread=usual_start),
            Figure("memory", usual.memory, "MB", most=MOST_MEGABYTES),
            Figure(
                f"{what}, with `--hook`", hooked.cores * 100, "%", most=MOST_HOOKED_CORES * 100, spread=hooked_start
            ),
            Figure("memory with `--hook`", hooked.memory, "MB", most=MOST_MEGABYTES),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
