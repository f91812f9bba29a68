"""CPU and memory of `aitop export --all` on a machine with eight jobs.

The jobs are small training runs with two loader workers each that sleep between their steps, so that eight of them fit
a small machine. The first figures leave out the start, in which each job is looked at more closely for some seconds;
what that costs stands beside. A scrape every fifteen seconds is part of it, as are py-spy and all other children.

    python tests/bench/export_cost.py
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
from results import Figure, options, publish

MOST_CORES, MOST_MEGABYTES = 0.02, 80.0
SCRAPE_SECONDS = 15.0
JOB = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self): return 1 << 30
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.randn(64)

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Images(), batch_size=8, num_workers=2):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
    time.sleep(0.2)
"""


class Watched:
    """An exporter of this machine's jobs, and what it uses."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "aitop", "export", "--all", "--prometheus", str(self.port)]
        self.child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.process = psutil.Process(self.child.pid)

    def cpu(self) -> float:
        """CPU seconds up to now, those of its ended children counted in."""
        times = self.process.cpu_times()
        return times.user + times.system + times.children_user + times.children_system

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


def verdicts(text: str) -> int:
    """How many jobs have a verdict."""
    lines = [line for line in text.splitlines() if line.startswith("aitop_verdict_order{")]
    return len({line.partition('job="')[2].partition('"')[0] for line in lines})


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--start", type=int, default=100, help="seconds that are not measured")
    parser.add_argument("--seconds", type=int, default=240, help="seconds that are measured")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(JOB)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        jobs = [subprocess.Popen([sys.executable, str(script)], env=environment) for _ in range(args.jobs)]
        try:
            time.sleep(args.jobs)
            watched = Watched()
            try:
                time.sleep(5)
                begin = watched.run(args.start)[0]
                seen = verdicts(watched.scrape())
                cores, most = watched.run(args.seconds)
            finally:
                watched.stop()
        finally:
            for job in jobs:
                job.kill()
                job.wait()
    spread = f"{begin:.1%} in the first {args.start} s"
    return publish(
        args,
        [
            Figure(f"CPU with {args.jobs} jobs, of a core", cores * 100, "%", most=MOST_CORES * 100, spread=spread),
            Figure("memory", most, "MB", most=MOST_MEGABYTES),
            Figure(f"jobs with a verdict after {args.start} s", seen, f"of {args.jobs}", least=args.jobs),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
