"""How right the diagnosis is: every scenario watched at every tier, its prediction held against the real fix.

    python tests/bench/verdicts.py                     all scenarios, all tiers, and the gain of every fix
    python tests/bench/verdicts.py respawn leak        only these
    python tests/bench/verdicts.py --tiers 3,2 --no-gains --json FILE --reports FOLDER
    python tests/bench/verdicts.py --gains-only        only what the fixes give
    python tests/bench/verdicts.py --table FILE...     one table of what several runs wrote with --json, run nothing

A script is started once and watched at tier 1, then 2, then 3, since a hook cannot be taken back from what came
before; a healthy one is started anew for each. Run it on a machine with nothing else to do: gains are measured by
running the scripts, and verdicts about cores are true of the cores that are free.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scenarios"))

from expected import BY_NAME, SCENARIOS, Scenario
from launch import Training
from verdict_gains import gain
from verdict_table import Gains, show_gains, show_rows, summarize
from verdict_watch import TIERS, Patience, Row, Watch

LATEST_ATTACH = 3.0
START_SECONDS = 120.0
COARSE = Patience(least=4.0, most=5.0, settled=2.0)
HEALTHY_SECONDS = 9.0

Reports = dict[str, dict[int, dict[str, Any] | None]]


class Bench:
    """The rows, reports and gains so far, and how they are made."""

    def __init__(self, args: argparse.Namespace, chance: random.Random) -> None:
        self.tiers = sorted(map(int, args.tiers.split(",")))
        self.patience = Patience(least=min(7.0, args.seconds), most=args.seconds, settled=4.0)
        self.wants_rows, self.wants_gains = not args.gains_only, not args.no_gains
        self.recordings: Path | None = args.recordings
        if self.recordings is not None:
            self.recordings.mkdir(parents=True, exist_ok=True)
        self.turns, self.turn_seconds = args.turns, args.turn_seconds
        self.moments = {name: [chance.uniform(0, LATEST_ATTACH) for _ in TIERS] for name in BY_NAME}
        self.code = commit()
        self.rows: list[Row] = []
        self.reports: Reports = {}
        self.gains: Gains = {}

    def take(self, scenario: Scenario) -> None:
        """All that is wanted of one scenario."""
        if self.wants_rows:
            healthy = scenario.healthy()
            for tiers in [[tier] for tier in self.tiers] if healthy else [self.tiers]:
                self.watch(scenario, tiers)
        if self.wants_gains and scenario.fixed:
            try:
                plain, fixed = self.gains[scenario.name] = gain(scenario, self.turns, self.turn_seconds)
            except (RuntimeError, AssertionError) as failure:
                print(f"{scenario.name}: no gain measured: {failure}", flush=True)
            else:
                print(f"{scenario.name}: {plain:.2f} → {fixed:.2f} steps/s, {fixed / plain:.2f}×", flush=True)

    def watch(self, scenario: Scenario, tiers: list[int]) -> None:
        """Start the script, attach at a random moment, and watch at one tier after the other."""
        with tempfile.TemporaryDirectory() as folder:
            process = Training(scenario.name, log=Path(folder) / "log")
            try:
                process.wait_steps(1, timeout=START_SECONDS)
                time.sleep(self.moments[scenario.name][tiers[0] - 1])
                for tier in tiers:
                    self.watch_at(scenario, tier, process)
            finally:
                process.stop()

    def watch_at(self, scenario: Scenario, tier: int, process: Training) -> None:
        patience = COARSE if tier == 1 else self.patience
        if scenario.healthy() and tier > 1:
            patience = Patience(least=HEALTHY_SECONDS, most=HEALTHY_SECONDS, settled=0.0)
        watch = Watch(scenario, tier, process.alive)
        if process.alive():
            watch.run(process.pid, patience, self.recording_of(scenario, tier))
        row = watch.row()
        row.code = self.code
        if not process.alive():
            row.note = f"the script has ended with {process.wait()}: {process.output()[-300:]!r}"
        self.rows.append(row)
        self.reports.setdefault(scenario.name, {})[tier] = watch.report()
        what = "right" if row.right else f"WRONG, expected {row.expected}"
        after = f" after {row.seconds:.1f} s" if row.seconds is not None else ""
        alarms = f" FALSE ALARM {', '.join(row.alarms)}" if row.alarms else ""
        line = " WRONG LINE" if row.right_line is False else ""
        print(
            f"{row.name} at tier {tier}: {row.said} {what}{after} {row.where or ''}{line}{alarms} {row.note}",
            flush=True,
        )

    def recording_of(self, scenario: Scenario, tier: int) -> Path | None:
        """A new file for the recording of a watch, None where none is wanted."""
        if self.recordings is None:
            return None
        path = self.recordings / f"{scenario.name}.t{tier}.jsonl.gz"
        path.unlink(missing_ok=True)
        return path

    def write(self, file: Path | None, folder: Path | None) -> None:
        """Rows and gains to a file, the reports into a folder, one a scenario and tier."""
        if file is not None:
            file.write_text(json.dumps({"rows": [asdict(row) for row in self.rows], "gains": self.gains}, indent=1))
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for name, tiers in self.reports.items():
                for tier, report in tiers.items():
                    (folder / f"{name}.tier{tier}.json").write_text(json.dumps(report, indent=1))


def commit() -> str:
    """The commit of the code that is run, with a + where files were changed since; empty where that is not known."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    told = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return told.stdout.strip()


def pieces(files: Sequence[Path]) -> tuple[list[Row], Gains]:
    """Rows and gains that several runs wrote, in the order of the table; what a later file has replaces the former."""
    rows: dict[tuple[str, int], Row] = {}
    gains: Gains = {}
    for file in files:
        written = json.loads(file.read_text())
        rows |= {(row["name"], row["tier"]): Row(**row) for row in written["rows"]}
        gains |= written["gains"]
    order = list(BY_NAME)
    return sorted(rows.values(), key=lambda row: (order.index(row.name), row.tier)), gains


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios (default: all that can run here)")
    parser.add_argument("--tiers", default="1,2,3", help="3 everything, 2 without hook, 1 without stacks as well")
    parser.add_argument("--seconds", type=float, default=15.0, help="the longest to wait for the right verdict")
    parser.add_argument("--turns", type=int, default=3, help="of the script as it is and mended, to measure a gain")
    parser.add_argument("--turn-seconds", type=float, default=1.7, help="how long each turn lasts")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of attaching")
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at a time; more than one spoils all times")
    parser.add_argument("--no-gains", action="store_true", help="do not run the fixes")
    parser.add_argument("--gains-only", action="store_true", help="only run the fixes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write rows and gains to a file")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="keep the report of every watch")
    parser.add_argument("--recordings", type=Path, metavar="FOLDER", help="keep a recording of every watch")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print the table of these files")
    args = parser.parse_args()
    unknown = set(args.names) - set(BY_NAME)
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}")
    if not {"1", "2", "3"} >= set(args.tiers.split(",")):
        parser.error("tiers are 1, 2 and 3")
    return args


def main() -> None:
    args = options()
    if args.table:
        rows, gains = pieces(args.table)
        show_rows(rows, gains)
        summarize(rows, gains)
        return
    bench = Bench(args, random.Random(args.seed))
    chosen = [BY_NAME[name] for name in args.names] or list(SCENARIOS)
    begun = time.monotonic()
    for scenario in chosen:
        if not scenario.runnable():
            print(f"{scenario.name} left out: needs {', '.join(scenario.needs)}")
    # Being ended must end the scripts as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ThreadPoolExecutor(args.jobs) as jobs:
        runs = jobs.map if args.jobs > 1 else map
        for _ in runs(bench.take, [scenario for scenario in chosen if scenario.runnable()]):
            bench.write(args.json, args.reports)
    if bench.gains:
        show_gains(bench.gains)
    if bench.rows:
        show_rows(bench.rows, bench.gains)
        summarize(bench.rows, bench.gains)
    print(f"\n{len(chosen)} scenarios in {(time.monotonic() - begun) / 60:.1f} min")


if __name__ == "__main__":
    main()
