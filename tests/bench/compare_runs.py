"""How right `aitop compare` is: slow and mended runs, and pairs of runs of the same code.

Each scenario is recorded slow and mended, and run in turns to learn the real ratio. The interval must hold
that ratio (a tenth to either side, as the turns are measured themselves), the verdict expected of the slow run must be
gone, and its line carry the change. Runs of the same code must not be called faster or slower. Runs of which one
function takes 5 % of a step longer must be called slower, with a line of that function in front.

Of some runs of the same program all pairs are compared, and so is each run as it was with each slower one: a run is
part of several pairs.

    python tests/bench/compare_runs.py                              all of it, about an hour and a half
    python tests/bench/compare_runs.py --resume                     go on where this was interrupted
    python tests/bench/compare_runs.py --same 1 --slower 0 respawn  only these
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any, TypeVar

from results import Figure, Pieces, options, publish  # isort: split

from expected import BY_NAME, Scenario
from launch import Training
from verdict_gains import gain

SCENARIOS = (
    "slow-loader", "slow-transform", "tutorial_loader", "custom_loop", "collate_slow", "respawn", "climate_grid",
    "fingerprints", "news_stream", "python_overhead", "host_io", "eval_often",
)  # fmt: skip
REPEATED = ("healthy_mlp", "slow-transform", "host_io", "healthy_transformer")
# Five runs make ten pairs of the same code; four as they were and four slower ones make sixteen.
RUNS, RUNS_OF_EACH = 5, 4
SLOWED = Path(__file__).with_name("slowed_function.py")
# Milliseconds that its function takes, and by which part of a step it takes longer.
USUAL_MS, LONGER = 4.0, 0.05
T = TypeVar("T")
AITOP = (sys.executable, "-m", "aitop")
START_SECONDS = 120.0
# The real ratio is measured in turns, and known no better than this.
REAL_MARGIN = 0.1


def record(script: str | Path, arguments: tuple[str, ...], seconds: float, to: Path) -> Path:
    """A recording of a script that was started for it."""
    process = Training(script, *arguments, log=to.with_suffix(".log"))
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


def judged(scenario: Scenario, seconds: float, turns: int, folder: Path) -> dict[str, Any]:
    """Whether each part of the comparison of a slow and a mended run is right, and what was said."""
    slow = record(scenario.name, (), seconds, folder / "slow.jsonl.gz")
    mended = record(scenario.name, scenario.fix, seconds, folder / "mended.jsonl.gz")
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
    return right | {"real": real, "said": _outcome(said)}


def repeated(scenario: Scenario, seconds: float, folder: Path) -> list[dict[str, Any]]:
    """What is said of each pair of some runs of the same code."""
    runs = [record(scenario.name, (), seconds, folder / f"{number}.jsonl.gz") for number in range(RUNS)]
    return [_outcome(compared(*random.sample(pair, 2))) for pair in combinations(runs, 2)]


def slowed(seconds: float, folder: Path) -> list[dict[str, Any]]:
    """What is said of runs of which one function takes longer, each beside each one without that."""
    first = record(SLOWED, (str(USUAL_MS),), seconds, folder / "usual.jsonl.gz")
    # What the script says of its own steps: CPU time, which no other program makes longer.
    step_ms = float(first.with_suffix(".log").read_text().splitlines()[-1].split()[2])
    runs = {USUAL_MS: [first], USUAL_MS + LONGER * step_ms: []}
    order = [length for length in runs for _ in range(RUNS_OF_EACH)][1:]
    random.shuffle(order)
    for number, length in enumerate(order):
        runs[length].append(record(SLOWED, (str(length),), seconds, folder / f"{number}.jsonl.gz"))
    return [_outcome(compared(before, after)) for before, after in product(*runs.values())]


def _outcome(said: dict[str, Any]) -> dict[str, Any]:
    first = next((part["where"] for part in said["lines"] if part["where"] and part["delta_ms"] > 0), None)
    known = ("verdict", "ratio", "range", "other_cores", "reason")
    return {name: said["change"][name] for name in known} | {"function": first and first["function"]}


def share(marks: list[bool]) -> float | None:
    """Per cent that are right, None of none."""
    return 100 * sum(marks) / len(marks) if marks else None


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios (default: twelve)")
    parser.add_argument("--scenarios", type=int, default=len(SCENARIOS), help="how many of those")
    parser.add_argument("--same", type=int, default=len(REPEATED), help="programs that run several times unchanged")
    parser.add_argument("--slower", type=int, default=4, help="groups of runs of which half have a slower function")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a recording")
    parser.add_argument("--turns", type=int, default=4, help="turns of each that the real ratio is measured in")
    parser.add_argument("--resume", action="store_true", help="go on where an interrupted run of this commit ended")
    args = parser.parse_args()
    pieces = Pieces(resume=args.resume)
    done: dict[str, Any] = dict(pieces.read())

    def piece(name: str, make: Callable[[Path], T]) -> T:
        if name not in done:
            with tempfile.TemporaryDirectory() as folder:
                done[name] = make(Path(folder))
            pieces.add((name, done[name]))
        print(name, json.dumps(done[name], indent=1), flush=True)
        made: T = done[name]
        return made

    names = args.names or SCENARIOS[: args.scenarios]
    rows = [piece(name, partial(judged, BY_NAME[name], args.seconds, args.turns)) for name in names]
    pairs = [
        said
        for name in REPEATED[: args.same]
        for said in piece(f"runs of {name}", partial(repeated, BY_NAME[name], args.seconds))
    ]
    slower = [
        said for number in range(args.slower) for said in piece(f"slower {number}", partial(slowed, args.seconds))
    ]
    same = [said["verdict"] in ("same", "cannot-tell") for said in pairs]
    right = [said["verdict"] == "slower" and said["function"] == "rank" for said in slower]
    count = f"{len(rows)} scenarios"
    figures = [
        Figure("ratio within its interval", share([row["range"] for row in rows]), "%", least=90, spread=count),
        Figure("verdict gone", share([row["gone"] for row in rows]), "%", least=90, spread=count),
        Figure("line carries the change", share([row["line"] for row in rows]), "%", least=90, spread=count),
        Figure("same code: same or cannot tell", share(same), "%", least=95, spread=f"{len(pairs)} pairs"),
        Figure("a function 5 % of a step slower: found", share(right), "%", least=80, spread=f"{len(slower)} pairs"),
    ]
    return publish(args, figures, whole=names == SCENARIOS and len(pairs) >= 40 and len(slower) >= 40)


if __name__ == "__main__":
    sys.exit(main())
