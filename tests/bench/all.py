"""Every bench that has a peer or a bar, side by side, as one Markdown table: `python tests/bench/all.py -o bench.md`.

    python tests/bench/all.py --quick                     a rougher table in about a third of the time
    python tests/bench/all.py hook attach                 only these; the others stay as they are in --results
    python tests/bench/all.py --merge day1.json day2.json --no-run     the table of earlier runs

Benches run one after the other, each in a process of its own; run it on a machine with nothing else to do. What they
found is kept as JSON in --results, bench by bench, and the table is made of all that is there: they can be run apart,
and again one by one. Peers that this Python cannot import are said to be missing; none is where memray, nvitop,
traceml-ai and gdb are installed. Exit code 1 where a bench failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from all_table import to_markdown

FOLDER = Path(__file__).resolve().parent
LONGEST, ENDS_IN = 900.0, 30.0
# How a bench ends that has its figures, and one of them is worse than it may be.
MISSED_BAR = 4
PACKAGES = ("aitop-live", "torch", "py-spy", "nvitop", "traceml-ai", "memray")


@dataclass(frozen=True)
class Bench:
    """A script of this folder and how it is told to be quick or not; all of them write figures with --json."""

    script: str
    usual: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    by_name_only: bool = False


BENCHES = {
    "hook": Bench(
        "hook_cost.py",
        ("--rounds", "7", "--seconds", "1", "--steps", "0"),
        ("--rounds", "2", "--seconds", "0.7", "--steps", "0"),
    ),
    "steps": Bench("hook_cost_steps.py", ("--seconds", "60"), ("--seconds", "25")),
    "everything": Bench("everything_cost.py", ("--seconds", "20"), ("--seconds", "6", "--model", "mlp")),
    "monitor": Bench("monitor_cost.py", (), ("--start", "12", "--seconds", "8")),
    "first-frame": Bench("first_frame.py", (), ("--rounds", "2")),
    "attach": Bench("attach_peers.py", ("-n", "12"), ("-n", "3")),
    "tree": Bench("tree_cost.py"),
    "hour": Bench("monitor_hour.py", (), ("--minutes", "16")),
    "verdicts": Bench("verdicts.py", ("--tiers", "3,2", "--turns", "2"), ("--tiers", "3", "--no-gains"), True),
}


def machine() -> dict[str, str]:
    """What it is, as far as figures depend on it."""
    model = "unknown processor"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0))
    found = {"machine": f"{cores} cores of {model}, {_memory()}", "system": f"Linux {platform.release()}"}
    return {**found, "python": platform.python_version(), "gpu": _gpus()}


def versions() -> dict[str, str | None]:
    """Of aitop, torch and the peers; None for what is not there."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    gdb = shutil.which("gdb")
    said = subprocess.run([gdb, "--version"], capture_output=True, text=True, check=False).stdout if gdb else ""
    found["gdb"] = said.splitlines()[0].split()[-1] if said else None
    return found


def _memory() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{pages / 2**30:.0f} GiB"


def _gpus() -> str:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return "none (NVML is played by the fake one of the tests)"
    asked = [smi, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return "; ".join(done.stdout.strip().splitlines()) or "none that answers"


def take(name: str, quick: bool) -> dict[str, Any]:
    """Run a bench: what it found, when, and how long it took. Raises RuntimeError with its last words."""
    bench = BENCHES[name]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "figures.json")
        arguments = bench.quick if quick and bench.quick else bench.usual
        command = [sys.executable, str(FOLDER / bench.script), *arguments, "--json", str(place)]
        print(f"{name}: {' '.join(command[1:-2])}", flush=True)
        began = time.monotonic()
        try:
            code, said = run_to_end(command, None if bench.by_name_only else LONGEST)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no end in {LONGEST:g} s") from None
        if code not in (0, MISSED_BAR) or not place.exists():
            raise RuntimeError(f"exit code {code}: {said.strip()[-600:]}")
        when = time.strftime("%Y-%m-%d %H:%M")
        told = {"when": when, "quick": quick, "seconds": round(time.monotonic() - began), "versions": versions()}
        return {**told, "figures": json.loads(place.read_text())}


def run_to_end(command: Sequence[str], limit: float | None) -> tuple[int, str]:
    """Its exit code and what it complained of.

    Where it takes longer than `limit` seconds, or we are told to end, it is interrupted and not killed: what it has
    started must not go on beside the next one.
    """
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            said = process.communicate(timeout=limit)[1]
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=ENDS_IN)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return process.returncode, said


def read(files: Sequence[Path]) -> dict[str, Any]:
    """The results of these files, later ones before earlier ones; SystemExit where they are of several machines."""
    merged: dict[str, Any] = {"machine": {}, "benches": {}}
    for file in files:
        try:
            found = json.loads(file.read_text())
            found["benches"], found["machine"]["machine"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise SystemExit(f"{file} holds no results: {error!r}") from None
        if merged["machine"] and merged["machine"]["machine"] != found["machine"]["machine"]:
            raise SystemExit(f"{file} is of another machine: {found['machine']['machine']}")
        merged["machine"] = found["machine"]
        merged["benches"] |= found["benches"]
    return merged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(name + " (only where it is named)" * bench.by_name_only for name, bench in BENCHES.items())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benches: {names}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: rougher figures")
    parser.add_argument("--no-run", action="store_true", help="only make the table of what is there")
    parser.add_argument("--results", type=Path, default=Path("bench-results.json"), help="where figures are kept")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], metavar="FILE", help="results of other runs")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the table (default: stdout)")
    args = parser.parse_args()
    if unknown := set(args.names) - set(BENCHES):
        parser.error(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    results = read([*args.merge, *([args.results] if args.results.exists() else [])])
    results["machine"] = machine() if not args.no_run else results["machine"]
    failed = []
    chosen = args.names or [name for name, bench in BENCHES.items() if not bench.by_name_only]
    for name in () if args.no_run else chosen:
        try:
            results["benches"][name] = take(name, args.quick)
        except RuntimeError as error:
            failed.append(f"{name}: {error}")
            print(f"FAILED {failed[-1]}", file=sys.stderr, flush=True)
        args.results.write_text(json.dumps(results, indent=1))
    table = to_markdown(results)
    if args.output is None:
        print(table)
    else:
        args.output.write_text(table)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
