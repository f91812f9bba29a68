"""Renews the recordings behind the pictures from live runs: `python screenshots/record.py [NAME ...] [-o FOLDER]`.

Each takes half a minute on a quiet machine. Scripts run under the names that their users would give them; paths of this
machine are replaced as in the recordings of the verdicts.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

TESTS = Path(__file__).parents[1] / "tests"
WORKLOADS = Path(__file__).parents[1] / "aitop" / "workloads"
sys.path[:0] = [str(TESTS / "accuracy"), str(TESTS / "accuracy" / "scenarios")]

from trim import NeutralPaths, slim  # noqa: E402

from aitop.sources.replay import read_recording  # noqa: E402

JOB = TESTS / "e2e" / "ranks" / "job.py"
FAKE_NVML = TESTS / "fakes" / "nvml" / "run.py"
HOME = "/home/ana/train"


class Run(NamedTuple):
    """A run to record: its script, how it is started after `python`, for how many seconds, on which simulated GPU."""

    script: Path
    command: str
    seconds: int
    device: str | None = None


RANKS = "-m torch.distributed.run --nproc-per-node 4 job.py"
RUNS = {
    "slow-loader": Run(WORKLOADS / "slow_loader.py", "slow_loader.py", 24),
    "simulated-gpu": Run(WORKLOADS / "slow_loader.py", "slow_loader.py", 24, "h200-starved"),
    "healthy": Run(WORKLOADS / "healthy.py", "healthy.py", 20),
    "serve": Run(WORKLOADS / "serve.py", "serve.py", 42),
    "straggler": Run(JOB, f"{RANKS} input --after 20 --world 4", 20),
    "hang": Run(JOB, f"{RANKS} skip --after 300 --world 4", 28),
}


def record(name: str, run: Run, out: Path) -> None:
    """Start the run, record it from its first output on, and write that without paths of this machine."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, raw = Path(scratch) / "train", Path(scratch) / f"{name}.jsonl"
        folder.mkdir()
        shutil.copy(run.script, folder)
        shutil.copytree(WORKLOADS / "clients", folder / "clients")
        started = subprocess.Popen(
            ["python", *run.command.split()],
            executable=sys.executable,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            assert started.stdout is not None and started.stdout.readline(), f"{name} ended at once"
            watch = ["-m", "aitop", "record", "--pid", str(started.pid), "-o", str(raw), "--for", f"{run.seconds}s"]
            simulated = [str(FAKE_NVML), run.device, "--", sys.executable] if run.device else []
            own = os.environ | {"TARGET_PID": str(started.pid)}
            subprocess.run([sys.executable, *simulated, *watch], check=True, stdout=subprocess.DEVNULL, env=own)
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        keep(raw, str(folder), out / f"{name}.jsonl.gz")


def keep(raw: Path, folder: str, out: Path) -> None:
    """Write the recording as small as it can be, with neutral paths."""
    header, events = read_recording(raw)
    neutral = NeutralPaths("")
    parts = [slim(part, 4, lambda text: neutral(text.replace(folder, HOME))) for part in (header, *events)]
    with gzip.GzipFile(out, "wb", compresslevel=9, mtime=0) as file:
        file.write(b"".join(msgspec.json.encode(part) + b"\n" for part in parts))
    print(f"{out.name}: {out.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which (default: all): {', '.join(RUNS)}")
    parser.add_argument("-o", "--into", type=Path, default=TESTS / "recordings", metavar="FOLDER")
    args = parser.parse_args()
    for name in args.names or RUNS:
        record(name, RUNS[name], args.into)


if __name__ == "__main__":
    main()
