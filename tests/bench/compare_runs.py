"""How right `aitop compare` is: slow and mended runs, and pairs of runs of the same code.

Each scenario and demo is recorded slow and mended, and run in turns to learn the real ratio. The interval must hold
that ratio (a tenth to either side, as the turns are measured themselves), the verdict expected of the slow run must be
gone, and its line carry the change where there is one. Runs of the same code must not be called faster or slower. Runs
of which one function takes 5 % of a step longer must be called slower, with a line of that function in front.
That function works for a set CPU time, which a slower machine does not make longer, unlike the other phases. One that
does a set amount of work is harder to tell from how runs differ.

Of some runs of the same program all pairs are compared, those with the slower function among them, and so is each run
as it was with each slower one: a run is part of several pairs.

    python tests/bench/compare_runs.py                              all of it, nearly two hours
    python tests/bench/compare_runs.py --resume                     go on where this was interrupted
    python tests/bench/compare_runs.py --recordings FOLDER          compare those that are there, make the others; the
                                                                    result is kept if this code made all of them
    python tests/bench/compare_runs.py --same 1 --slower 0 respawn  only these
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path
from statistics import median
from typing import Any

from results import Figure, code, options, publish, unfinished  # isort: split

from expected import BY_NAME, HEALTHY, Scenario
from launch import Training
from scenario import workload
from verdict_gains import gain

from aitop.commands.compare import read_run
from aitop.diagnosis.run_comparison import compare_runs
from aitop.outputs.report import as_json

SCENARIOS = (
    "tutorial_loader", "custom_loop", "collate_slow", "respawn", "climate_grid", "fingerprints", "news_stream",
    "python_overhead", "host_io", "eval_often",
)  # fmt: skip
DEMOS = {name: demo for name, demo in BY_NAME.items() if demo.script.parent.name == "workloads"} | {
    demo.name: demo
    for demo in (
        workload("comm", "comm-bound", guilty=("loss.backward()",)),
        workload("generate", "python-overhead", guilty=("text.count(token)",)),
        workload("hang", "hang", fixed=False),
        workload("serve", "latency-tail", guilty=("gc.collect()",)),
        workload("straggler", "straggler", guilty=("time.sleep(self.round_trip)",)),
    )
}
# A step of the mended demo does the work of so many; one that hangs has no steps to compare, and one that answers
# clients who wait between two requests answers hardly more of them when it is faster.
STEPS_IN_ONE = {"comm": 8}
NO_RATIO = ("hang", "serve")
REPEATED = ("healthy_mlp", "slow-transform")
# Five runs make ten pairs of the same code; seven as they were and seven slower ones 42, and 49 of which one is slower.
RUNS, RUNS_OF_EACH = 5, 7
SLOWED = Path(__file__).with_name("slowed_function.py")
# Milliseconds that its function takes, and by which part of a step it takes longer.
USUAL_MS, LONGER = 4.0, 0.05
AITOP = (sys.executable, "-m", "aitop")
START_SECONDS = 120.0
# The real ratio is measured in turns, and known no better than this.
REAL_MARGIN = 0.1


def record(script: str | Path, arguments: tuple[str, ...], seconds: float, to: Path) -> Path:
    """A recording of a script that is started for it, unless it is there already; beside it the code that made it."""
    made_by = to.with_suffix(".code")
    if to.exists():
        if not made_by.exists() or made_by.read_text() != code():
            of_other_code.add(to)
        return to
    to.parent.mkdir(parents=True, exist_ok=True)
    begun = to.with_name(f"begun-{to.name}")
    process = Training(script, *arguments, log=to.with_suffix(".log"))
    try:
        process.wait_steps(1, timeout=START_SECONDS)
        command = [*AITOP, "record", "--pid", str(process.pid), "--for", f"{seconds}s", "-o", str(begun)]
        subprocess.run(command, check=True, capture_output=True, timeout=seconds + 60)
    finally:
        process.stop()
    made_by.write_text(code())
    return begun.rename(to)


of_other_code: set[Path] = set()
"""Recordings that were there, and were not made by this state of the code."""

# Each recording is part of several pairs, and read once.
run_in = cache(read_run)


def compared(before: Path, after: Path) -> dict[str, Any]:
    """What `aitop compare --format json` says of two recordings."""
    said: dict[str, Any] = json.loads(as_json(compare_runs(run_in(before), run_in(after))))
    return said


def real_ratio(scenario: Scenario, turns: int, file: Path) -> float:
    """How many times as much work the mended script does, measured in turns, unless that is written down already."""
    if not file.exists():
        plain, mended = gain(scenario, turns, 3.0)
        file.write_text(json.dumps(mended * STEPS_IN_ONE.get(scenario.name, 1) / plain))
    real: float = json.loads(file.read_text())
    return real


def judged(scenario: Scenario, seconds: float, turns: int, folder: Path) -> dict[str, Any]:
    """Whether each part of the comparison of a slow and a mended run is right, None where nothing is asked of it."""
    slow = record(scenario.script, scenario.args, seconds, folder / "slow.jsonl.gz")
    mended = record(scenario.script, scenario.args + scenario.fix, seconds, folder / "mended.jsonl.gz")
    said = compared(slow, mended)
    real = None if scenario.name in NO_RATIO else real_ratio(scenario, turns, folder / "real.json")
    low, high = said["change"]["range"] or (0.0, 0.0)
    texts = [(part["where"] or {}).get("text") or "" for part in said["lines"][:3]]
    right = {
        "range": None if real is None else low * (1 - REAL_MARGIN) <= real <= high * (1 + REAL_MARGIN),
        "gone": None
        if scenario.verdict == HEALTHY
        else scenario.verdict in {verdict["id"] for verdict in said["verdicts"]["gone"]},
        "line": any(guilty in text for guilty in scenario.guilty for text in texts) if scenario.fixed else None,
    }
    return right | {"real": real, "said": _outcome(said)}


def repeated(scenario: Scenario, seconds: float, folder: Path) -> list[dict[str, Any]]:
    """What is said of each pair of some runs of the same code."""
    files = [folder / f"{number}.jsonl.gz" for number in range(RUNS)]
    runs = [record(scenario.script, scenario.args, seconds, file) for file in files]
    return pairs_of(runs)


def pairs_of(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """What is said of each pair of runs of the same code."""
    return [_outcome(compared(before, after)) for before, after in combinations(runs, 2)]


def slowed(count: int, seconds: float, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What is said of runs of which one function takes longer, each beside each one without that; and of the same."""
    usual, slower = ([folder / f"{kind}-{number}.jsonl.gz" for number in range(count)] for kind in ("usual", "slower"))
    first = record(SLOWED, (str(USUAL_MS),), seconds, usual[0])
    # What the script says of its own steps: CPU time, which no other program makes longer.
    step_ms = float(first.with_suffix(".log").read_text().splitlines()[-1].split()[2])
    for file in random.sample(usual + slower, k=2 * count):
        record(SLOWED, (str(USUAL_MS + LONGER * step_ms * (file in slower)),), seconds, file)
    return {
        "slower": [_outcome(compared(before, after)) for before, after in product(usual, slower)],
        "same": pairs_of(usual) + pairs_of(slower),
    }


def _outcome(said: dict[str, Any]) -> dict[str, Any]:
    first = next((part["where"] for part in said["lines"] if part["where"] and part["delta_ms"] > 0), None)
    known = ("verdict", "ratio", "range", "other_cores", "reason")
    return {name: said["change"][name] for name in known} | {"function": first and first["function"]}


def share(marks: list[bool]) -> float | None:
    """Per cent that are right, None of none."""
    return 100 * sum(marks) / len(marks) if marks else None


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios and demos (default: ten and all)")
    parser.add_argument("--same", type=int, default=len(REPEATED), help="programs that run several times unchanged")
    parser.add_argument("--slower", type=int, default=RUNS_OF_EACH, help="runs as they are, and with a slower function")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a recording")
    parser.add_argument("--turns", type=int, default=4, help="turns of each that the real ratio is measured in")
    parser.add_argument("--resume", action="store_true", help="go on where an interrupted run of this commit ended")
    parser.add_argument("--recordings", type=Path, metavar="FOLDER", help="keep them here, and use those that are here")
    args = parser.parse_args()
    folder = args.recordings or Path(tempfile.gettempdir(), unfinished())
    if not args.resume and not args.recordings:
        shutil.rmtree(folder, ignore_errors=True)

    def printed(name: str, said: Any) -> Any:
        print(name, json.dumps(said, indent=1), flush=True)
        return said

    scenarios = BY_NAME | DEMOS
    names = args.names or (*SCENARIOS, *DEMOS)
    longer: dict[str, Any] = {"slower": [], "same": []}
    if args.slower:
        longer = printed("slower", slowed(args.slower, args.seconds, folder / "slower"))
    rows = [printed(name, judged(scenarios[name], args.seconds, args.turns, folder / name)) for name in names]
    pairs = longer["same"] + [
        said
        for name in REPEATED[: args.same]
        for said in printed(f"runs of {name}", repeated(BY_NAME[name], args.seconds, folder / f"same-{name}"))
    ]
    same = [said["verdict"] in ("same", "cannot-tell") for said in pairs]
    right = [said["verdict"] == "slower" and said["function"] == "rank" for said in longer["slower"]]

    def of_rows(part: str, what: str) -> Figure:
        marks = [row[part] for row in rows if row[part] is not None]
        return Figure(what, share(marks), "%", least=90, spread=f"{len(marks)} programs")

    beside = [cores for said in longer["slower"] + pairs for cores in said["other_cores"] or ()]
    figures = [
        Figure("cores that other programs had beside the pairs", median(beside) if beside else None),
        of_rows("range", "ratio within its interval"),
        of_rows("gone", "verdict gone"),
        of_rows("line", "line carries the change"),
        Figure("same code: same or cannot tell", share(same), "%", least=95, spread=f"{len(pairs)} pairs"),
        Figure("a function 5 % of a step slower: found", share(right), "%", least=80, spread=f"{len(right)} pairs"),
    ]
    if of_other_code:
        print(f"{len(of_other_code)} recordings are of other code, such as {min(of_other_code)}")
    exit_code = publish(args, figures, whole=not of_other_code)
    if not args.recordings:
        shutil.rmtree(folder)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
