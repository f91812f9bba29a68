"""How right `aitop compare` is: slow and mended runs, and pairs of runs of the same code.

Each scenario is recorded slow and mended, and run in turns to learn the real ratio. The interval must hold
that ratio (a tenth to either side, as the turns are measured themselves), the verdict expected of the slow run must be
gone, and its line carry the change. Pairs of the same code must not be called faster or slower.

    python tests/bench/compare_runs.py                        ten scenarios and 40 pairs, about two hours
    python tests/bench/compare_runs.py --pairs 4 respawn      only these
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from results import Figure, options, publish  # isort: split

from expected import BY_NAME, Scenario
from launch import Training
from verdict_gains import gain

SCENARIOS = (
    "slow-loader", "slow-transform", "tutorial_loader", "custom_loop", "collate_slow", "respawn", "climate_grid",
    "fingerprints", "news_stream", "python_overhead", "host_io", "eval_often",
)  # fmt: skip
PAIRED = ("healthy_mlp", "slow-transform", "host_io", "healthy_transformer")
AITOP = (sys.executable, "-m", "aitop")
START_SECONDS = 120.0
# The real ratio is measured in turns, and known no better than this.
REAL_MARGIN = 0.1


def record(scenario: Scenario, fix: tuple[str, ...], seconds: float, to: Path) -> Path:
    """A recording of a scenario that was started for it."""
    process = Training(scenario.name, *fix, log=to.with_suffix(".log"))
    try:
        process.wait_steps(1, timeout=START_SECONDS)
        command = [*AITOP, "record", "--pid", str(process.pid), "--for", f"{seconds}s", "-o", str(to)]
        subprocess.run(command, check=True, capture_output=True, timeout=seconds + 60)
    finally:
        process.stop()
    return to


def compared(before: Path, after: Path) -> dict[str, Any]:
    """What `aitop compare` says of two recordings."""
    command = [*AITOP, "compare", str(before), str(after), "--format", "json"]
    said: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=False, timeout=120).stdout)
    return said


def judged(scenario: Scenario, seconds: float, turns: int, folder: Path) -> dict[str, bool]:
    """Whether each part of the comparison of a slow and a mended run is right."""
    slow = record(scenario, (), seconds, folder / "slow.jsonl.gz")
    mended = record(scenario, scenario.fix, seconds, folder / "mended.jsonl.gz")
    said = compared(slow, mended)
    plain, fixed = gain(scenario, turns, 3.0)
    real = fixed / plain
    low, high = said["change"]["range"] or (0.0, 0.0)
    texts = [(part["where"] or {}).get("text") or "" for part in said["lines"][:3]]
    right = {
        "range": low * (1 - REAL_MARGIN) <= real <= high * (1 + REAL_MARGIN),
        "gone": scenario.verdict in {verdict["id"] for verdict in said["verdicts"]["gone"]},
        "line": any(guilty in text for guilty in scenario.guilty for text in texts),
    }
    print(
        f"{scenario.name}: real {real:.2f}, said {said['change']['ratio']} in {low:.2f}-{high:.2f} {right}", flush=True
    )
    return right


def paired(scenario: Scenario, seconds: float, folder: Path) -> bool:
    """Whether two runs of the same code are neither called faster nor slower."""
    first, second = (record(scenario, (), seconds, folder / f"{name}.jsonl.gz") for name in "ab")
    change = compared(first, second)["change"]
    print(f"{scenario.name} twice: {change['verdict']} {change['ratio']} {change['range']}", flush=True)
    return change["verdict"] in ("same", "cannot-tell")


def share(marks: list[bool]) -> float | None:
    """Per cent that are right, None of none."""
    return 100 * sum(marks) / len(marks) if marks else None


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios (default: twelve)")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of runs of the same code")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of a recording")
    parser.add_argument("--turns", type=int, default=4, help="turns of each that the real ratio is measured in")
    args = parser.parse_args()
    rows, pairs = [], []
    for name in args.names or SCENARIOS:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(judged(BY_NAME[name], args.seconds, args.turns, Path(folder)))
    for number in range(args.pairs):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append(paired(BY_NAME[PAIRED[number % len(PAIRED)]], args.seconds, Path(folder)))
    count = f"{len(rows)} scenarios"
    figures = [
        Figure("ratio within its interval", share([row["range"] for row in rows]), "%", least=90, spread=count),
        Figure("verdict gone", share([row["gone"] for row in rows]), "%", least=90, spread=count),
        Figure("line carries the change", share([row["line"] for row in rows]), "%", least=90, spread=count),
        Figure("same code: same or cannot tell", share(pairs), "%", least=95, spread=f"{len(pairs)} pairs"),
    ]
    return publish(args, figures, whole=not args.names and args.pairs >= 40)


if __name__ == "__main__":
    sys.exit(main())
