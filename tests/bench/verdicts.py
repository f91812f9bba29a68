"""How right the diagnosis is: every scenario watched at every tier, its prediction held against the real fix.

    python tests/bench/verdicts.py                     all scenarios, tiers 3 and 2, and the gain of every fix
    python tests/bench/verdicts.py respawn leak        only these
    python tests/bench/verdicts.py --tiers 3,2,1 --seconds 10 --json FILE
    python tests/bench/verdicts.py --gains-only        only what the fixes give

Run it on a machine with nothing else to do: speeds are measured by running the scripts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scenarios"))

from expected import BY_NAME, SCENARIOS, Scenario
from launch import Training

FLAGS = {3: (), 2: ("--no-hook",), 1: ("--no-hook", "--no-stacks")}
WARM_UP_STEPS = 5
LATEST_ATTACH = 4.0
TOLD = re.compile(r"^step (\d+):")


@dataclass
class Row:
    """What one scenario got at one tier."""

    name: str
    tier: int
    expected: str
    said: str
    right: bool
    right_line: bool | None
    where: str | None
    share: float | None
    predicted: float | None
    fix_predicted: float | None
    false_alarms: list[str]
    note: str = ""


def watch(scenario: Scenario, tier: int, seconds: float, chance: random.Random) -> tuple[Row, dict | None]:
    """Start the script, attach at a random moment, and judge what diagnose says."""
    with tempfile.TemporaryDirectory() as folder:
        process = Training(scenario.name, log=Path(folder) / "log")
        try:
            process.wait_steps(WARM_UP_STEPS)
            time.sleep(chance.uniform(0, LATEST_ATTACH))
            command = [sys.executable, "-m", "aitop", "diagnose", "--pid", str(process.pid)]
            command += ["--for", f"{seconds}s", "--format", "json", *FLAGS[tier]]
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
        finally:
            process.stop()
    return judge(scenario, tier, json.loads(done.stdout) if done.stdout else None, done.stderr.strip())


def judge(scenario: Scenario, tier: int, report: dict | None, complaint: str) -> tuple[Row, dict | None]:
    """Hold the report against the table."""
    wanted = scenario.verdict + (f"/{'|'.join(scenario.subtypes)}" if scenario.subtypes else "")
    verdicts = report["verdicts"] if report else []
    if not verdicts:
        return Row(scenario.name, tier, wanted, "nothing", False, None, None, None, None, None, [], complaint), report
    first = verdicts[0]
    said = first["id"] + (f"/{first['subtype']}" if first.get("subtype") else "")
    right = first["id"] == scenario.verdict and (not scenario.subtypes or first.get("subtype") in scenario.subtypes)
    places = first.get("where") or []
    right_line = None
    if scenario.guilty:
        lines = scenario.guilty_lines()
        right_line = bool(places) and places[0]["file"] == str(scenario.script) and places[0]["line"] in lines
    alarms = [v["id"] for v in verdicts if v["severity"] != "info" and v["id"] != scenario.verdict]
    fixes = [fix["speedup"] for fix in first.get("fixes") or [] if fix.get("speedup")]
    where = f"{Path(places[0]['file']).name}:{places[0]['line']}" if places else None
    row = Row(
        scenario.name, tier, wanted, said, right, right_line, where, first.get("share"), first.get("speedup"),
        max(fixes, default=None), alarms,
    )  # fmt: skip
    return row, report


def speed(scenario: Scenario, seconds: float, *flags: str) -> float:
    """Steps per second of the script running alone, from the steps that it tells of and when."""
    with tempfile.TemporaryDirectory() as folder:
        process = Training(scenario.name, *flags, log=Path(folder) / "log")
        try:
            process.wait_steps(WARM_UP_STEPS)
            begun, first = _next_told(process)
            while time.monotonic() - begun < seconds:
                time.sleep(0.2)
            ended, last = _next_told(process)
        finally:
            process.stop()
    return (last - first) / (ended - begun)


def _next_told(process: Training) -> tuple[float, int]:
    """Wait for the script to tell of another step: the moment and the step."""
    known = process.steps()
    while process.steps() == known:
        if not process.alive():
            raise RuntimeError(f"{process.script.name} has ended:\n{process.output()}")
        time.sleep(0.005)
    return time.monotonic(), process.steps()


def gain(scenario: Scenario, seconds: float) -> tuple[float, float]:
    """Steps per second of the script as it is and mended: each measured twice, in turn, against drift."""
    plain, fixed = [], []
    for _ in range(2):
        plain.append(speed(scenario, seconds))
        fixed.append(speed(scenario, seconds, "--fixed"))
    return statistics.mean(plain), statistics.mean(fixed)


def show_gains(gains: dict[str, tuple[float, float]]) -> None:
    print(f"\n{'scenario':<22}{'plain steps/s':>15}{'fixed steps/s':>15}{'gain':>8}")
    for name, (plain, fixed) in gains.items():
        print(f"{name:<22}{plain:>15.2f}{fixed:>15.2f}{fixed / plain:>7.2f}×")


def show_rows(rows: list[Row], gains: dict[str, tuple[float, float]]) -> None:
    print(
        f"\n{'scenario':<22}{'tier':<5}{'expected':<30}{'said':<28}{'ok':<4}{'line':<5}"
        f"{'share':>6}{'predicted':>10}{'fix':>7}{'actual':>8}{'error':>8}  false alarms, notes"
    )
    for row in rows:
        actual, wrong = _actual(row, gains), error(row, gains)
        print(
            f"{row.name:<22}{row.tier:<5}{row.expected:<30}{row.said:<28}{_mark(row.right):<4}{_mark(row.right_line):<5}"
            f"{_share(row.share):>6}{_times(row.predicted):>10}{_times(row.fix_predicted):>7}{_times(actual):>8}"
            f"{_share(wrong):>8}  {', '.join(row.false_alarms)} {row.note if row.note else row.where or ''}"
        )


def summarize(rows: list[Row], gains: dict[str, tuple[float, float]]) -> None:
    print()
    for tier in sorted({row.tier for row in rows}, reverse=True):
        mine = [row for row in rows if row.tier == tier]
        lines = [row.right_line for row in mine if row.right_line is not None]
        errors = [abs(wrong) for row in mine if row.right and (wrong := error(row, gains)) is not None]
        alarms = sum(bool(row.false_alarms) for row in mine)
        text = f"tier {tier}: verdict right {sum(row.right for row in mine)}/{len(mine)}"
        text += f", line right {sum(lines)}/{len(lines)}, runs with a false alarm {alarms}/{len(mine)}"
        if errors:
            within = sum(wrong <= 0.25 for wrong in errors)
            text += f", prediction error median {statistics.median(errors):.0%}, within 25 % {within}/{len(errors)}"
        print(text)


def error(row: Row, gains: dict[str, tuple[float, float]]) -> float | None:
    """Predicted against actual, relative: of the fix where one was predicted, else of the cause being gone."""
    actual = _actual(row, gains)
    predicted = row.fix_predicted or row.predicted
    return None if actual is None or predicted is None else predicted / actual - 1


def _actual(row: Row, gains: dict[str, tuple[float, float]]) -> float | None:
    return gains[row.name][1] / gains[row.name][0] if row.name in gains else None


def _mark(good: bool | None) -> str:
    return "–" if good is None else "yes" if good else "NO"


def _share(share: float | None) -> str:
    return "–" if share is None or math.isnan(share) else f"{share:.0%}"


def _times(factor: float | None) -> str:
    return "–" if factor is None else f"{factor:.2f}×"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios (default: all)")
    parser.add_argument("--tiers", default="3,2", help="3 everything, 2 without hook, 1 without stacks as well")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to watch, and to run for a speed")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of attaching")
    parser.add_argument("--no-gains", action="store_true", help="do not run the fixes")
    parser.add_argument("--gains-only", action="store_true", help="only run the fixes")
    parser.add_argument("--json", type=Path, help="also write rows, reports and gains to a file")
    args = parser.parse_args()
    unknown = set(args.names) - set(BY_NAME)
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}")
    chosen = [BY_NAME[name] for name in args.names] or list(SCENARIOS)
    chance = random.Random(args.seed)

    rows, reports = [], []
    for scenario in [] if args.gains_only else chosen:
        for tier in map(int, args.tiers.split(",")):
            row, report = watch(scenario, tier, args.seconds, chance)
            print(f"{row.name} at tier {tier}: {row.said} {row.where or ''} {row.note}", flush=True)
            rows.append(row)
            reports.append(report)
    mendable = [] if args.no_gains else [scenario for scenario in chosen if scenario.fixed]
    gains = {}
    for scenario in mendable:
        gains[scenario.name] = gain(scenario, args.seconds / 2)
        print(f"{scenario.name}: {gains[scenario.name][0]:.2f} → {gains[scenario.name][1]:.2f} steps/s", flush=True)
    if gains:
        show_gains(gains)
    if rows:
        show_rows(rows, gains)
        summarize(rows, gains)
    if args.json:
        args.json.write_text(json.dumps({"rows": [asdict(r) for r in rows], "gains": gains, "reports": reports}))


if __name__ == "__main__":
    main()
