"""How right the diagnosis is: every scenario watched at every tier, its prediction held against the real fix.

    python tests/bench/verdicts.py                     all scenarios, all tiers, and the gain of every fix
    python tests/bench/verdicts.py respawn leak        only these
    python tests/bench/verdicts.py --tiers 3,2 --no-gains --json FILE --reports FOLDER
    python tests/bench/verdicts.py --tiers 3,2 --no-gains --recordings FOLDER    what tests/accuracy judges
    python tests/bench/verdicts.py --mended            also watch the scripts with their fix: no warning may be left
    python tests/bench/verdicts.py --gains-only        only what the fixes give
    python tests/bench/verdicts.py --table FILE...     one table of what several runs wrote with --json, run nothing

Each tier has a process of its own and the same time, whatever is shown. Exits with 4 where a bar is missed. Run it on
a machine with nothing else to do: gains are measured by running the scripts, and verdicts about cores are true of the
cores that are free.
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
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "accuracy"))

from expected import BY_NAME, SCENARIOS, Scenario
from launch import Training
from recorded import recording_name
from verdict_gains import gain
from verdict_table import Gains, show_bars, show_gains, show_rows
from verdict_watch import TIERS, Row, Watch

LATEST_ATTACH = 3.0
START_SECONDS = 120.0
MISSED_BAR = 4

Reports = dict[str, dict[int, dict[str, Any] | None]]


class Bench:
    """The rows, reports and gains so far, and how they are made."""

    def __init__(self, args: argparse.Namespace, chance: random.Random) -> None:
        self.tiers = sorted(map(int, args.tiers.split(",")))
        self.seconds: float = args.seconds
        self.wants_rows, self.wants_gains, self.wants_mended = not args.gains_only, not args.no_gains, args.mended
        self.recordings: Path | None = args.recordings
        if self.recordings is not None:
            self.recordings.mkdir(parents=True, exist_ok=True)
        self.turns, self.turn_seconds = args.turns, args.turn_seconds
        self.moments = {name: [chance.uniform(0, LATEST_ATTACH) for _ in TIERS] for name in BY_NAME}
        self.code, self.when = commit(), time.strftime("%Y-%m-%d %H:%M")
        self.rows: list[Row] = []
        self.reports: Reports = {}
        self.gains: Gains = {}

    def take(self, scenario: Scenario) -> None:
        """All that is wanted of one scenario."""
        if self.wants_rows:
            for tier in self.tiers:
                self.watch(scenario, tier)
                if self.wants_mended and scenario.fixed:
                    self.watch(scenario.mended(), tier, scenario.fix)
        if self.wants_gains and scenario.fixed:
            try:
                plain, fixed = self.gains[scenario.name] = gain(scenario, self.turns, self.turn_seconds)
            except (RuntimeError, AssertionError) as failure:
                print(f"{scenario.name}: no gain measured: {failure}", flush=True)
            else:
                print(f"{scenario.name}: {plain:.2f} → {fixed:.2f} steps/s, {fixed / plain:.2f}×", flush=True)

    def watch(self, scenario: Scenario, tier: int, fix: Sequence[str] = ()) -> None:
        """Start the script, mended where a fix is given, attach at a random moment, and watch at one tier.

        A script that does not start has a row as well, which is not right.
        """
        with tempfile.TemporaryDirectory() as folder:
            process = Training(scenario.name, *fix, log=Path(folder) / "log")
            try:
                process.wait_steps(1, timeout=START_SECONDS)
                time.sleep(self.moments[scenario.name][tier - 1])
                watch = self.watch_process(scenario, tier, process, recorded=not fix)
                ended = "" if process.alive() else f"the script has ended: {process.output()[-300:]!r}"
            except AssertionError as failure:
                watch, ended = Watch(scenario, tier, process.alive), f"not started: {failure}"[-300:]
            finally:
                process.stop()

        row = watch.row()
        row.code, row.mended, row.note = self.code, bool(fix), ended
        self.rows.append(row)
        name = f"{scenario.name}.mended" if fix else scenario.name
        self.reports.setdefault(name, {})[tier] = watch.report()
        show_row_in_words(name, row)

    def watch_process(self, scenario: Scenario, tier: int, process: Training, *, recorded: bool) -> Watch:
        """Watch a script, unless it has ended meanwhile."""
        watch = Watch(scenario, tier, process.alive)
        if process.alive():
            watch.run(process.pid, self.seconds, self.recording_of(scenario, tier) if recorded else None)
        return watch

    def recording_of(self, scenario: Scenario, tier: int) -> Path | None:
        """A new file for the recording of a watch, None where none is wanted."""
        if self.recordings is None:
            return None
        path = self.recordings / recording_name(scenario.name, tier)
        path.unlink(missing_ok=True)
        return path

    def write(self, file: Path | None, folder: Path | None) -> None:
        """Rows and gains to a file, the reports into a folder, one a scenario and tier."""
        if file is not None:
            rows = [asdict(row) for row in self.rows]
            file.write_text(json.dumps({"when": self.when, "rows": rows, "gains": self.gains}, indent=1))
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for name, tiers in self.reports.items():
                for tier, report in tiers.items():
                    (folder / f"{name}.tier{tier}.json").write_text(json.dumps(report, indent=1))


def show_row_in_words(name: str, row: Row) -> None:
    """One line as soon as a script was watched."""
    what = "right" if row.right else f"WRONG, expected {row.expected}"
    after = f" after {row.seconds:.1f} s" if row.seconds is not None else ""
    alarms = f" UNTRUE WARNING {', '.join(row.alarms)}" if row.alarms else ""
    line = " WRONG LINE" if row.right_line is False else ""
    print(f"{name} at tier {row.tier}: {row.said} {what}{after} {row.where or ''}{line}{alarms} {row.note}", flush=True)


def commit() -> str:
    """The commit of the code that is run, with a + where files were changed since; empty where that is not known."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    told = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return told.stdout.strip()


def pieces(files: Sequence[Path]) -> tuple[list[Row], Gains]:
    """Rows and gains that several runs wrote, in the order of the table; what a later file has replaces the former."""
    rows: dict[tuple[str, int, bool], Row] = {}
    gains: Gains = {}
    for file in files:
        written = json.loads(file.read_text())
        rows |= {(row.name, row.tier, row.mended): row for row in (Row(**fields) for fields in written["rows"])}
        gains |= written["gains"]
    order = list(BY_NAME)
    return sorted(rows.values(), key=lambda row: (order.index(row.name), row.mended, row.tier)), gains


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios (default: all that can run here)")
    parser.add_argument("--tiers", default="1,2,3", help="3 everything, 2 without hook, 1 without stacks as well")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long to watch")
    parser.add_argument("--turns", type=int, default=3, help="of the script as it is and mended, to measure a gain")
    parser.add_argument("--turn-seconds", type=float, default=1.7, help="how long each turn lasts")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of attaching")
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at a time; more than one spoils all times")
    parser.add_argument("--no-gains", action="store_true", help="do not run the fixes")
    parser.add_argument("--mended", action="store_true", help="also watch the scripts with their fix")
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


def main() -> int:
    args = options()
    if args.table:
        rows, gains = pieces(args.table)
        show_rows(rows, gains)
        return 0 if show_bars(rows, gains) else MISSED_BAR
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
    reached = True
    if bench.rows:
        show_rows(bench.rows, bench.gains)
        reached = show_bars(bench.rows, bench.gains)
    minutes = (time.monotonic() - begun) / 60
    print(f"\n{len(chosen)} scenarios in {minutes:.1f} min, {bench.when}, commit {bench.code or 'unknown'}")
    return 0 if reached else MISSED_BAR


if __name__ == "__main__":
    sys.exit(main())
