"""What is left of a mended script, measured by taking it away: the truth of warnings on mended runs.

Each `Left` of `scenarios/left.py` has edits that remove what it names. The mended script runs with and without
them, in turns (as `verdict_gains` does), and the factor is held against the one that is written down. Exit code 4
where they are more than a fifth apart.

    python tests/accuracy/remains.py [NAME ...] [--turns 4] [--turn-seconds 1.7]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import results  # noqa: F401  # isort: split
from expected import BY_NAME, SCENARIO_DIR, Scenario
from launch import Training
from left import Left
from results import MISSED_BAR, Figure
from verdict_gains import in_turns

# Per cent of the factor that is written down, which is itself measured.
MOST_APART = 20.0


def measured(scenario: Scenario, left: Left, turns: int, seconds: float) -> float:
    """By what factor the mended script does more work a second without what is left."""
    with tempfile.TemporaryDirectory() as folder:
        without = Path(folder) / scenario.script.name
        without.write_text(left.edited(scenario.script.read_text()))
        shutil.copy(SCENARIO_DIR / "runlog.py", folder)
        plain, gone = in_turns(
            [
                lambda: Training(scenario.script, *scenario.args, *scenario.fix, log=Path(folder) / "log-0"),
                lambda: Training(without, *scenario.args, *scenario.fix, log=Path(folder) / "log-1"),
            ],
            turns,
            seconds,
        )
    return left.batch * gone / plain


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios (default: all of which something is left)")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--turn-seconds", type=float, default=1.7)
    args = parser.parse_args()
    apart: list[Figure] = []
    for scenario in [BY_NAME[name] for name in args.names] or BY_NAME.values():
        for left in scenario.left:
            factor = measured(scenario, left, args.turns, args.turn_seconds)
            what = f"{scenario.name}: {left.verdict}, measured {factor:.2f}×, written down {left.gain:.2f}×"
            apart.append(Figure(what, 100 * abs(factor / left.gain - 1), "% apart", most=MOST_APART))
            print(apart[-1].row(), flush=True)
    return MISSED_BAR if any(figure.missed() for figure in apart) else 0


if __name__ == "__main__":
    sys.exit(main())
