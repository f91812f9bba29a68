"""How long after Enter something stands on the screen, beside our peers: python tests/bench/first_frame.py.

Each program starts in a process of its own, with everything imported anew, on a terminal of 120 × 36 cells. Told are
the seconds until its first frame (its own name, or the head of its table) and until the first figure that was measured.
aitop is compiled before, as what was installed or started once is.
`--nvitop PATH` names nvitop's program where it is not on the PATH.
"""

from __future__ import annotations

import argparse
import compileall
import json
import statistics
import time
from pathlib import Path

import peers
from in_terminal import InTerminal

import aitop

ROUNDS = 5
PATIENCE = 12.0

FIRST = {
    "aitop": (rb"Verdict", rb"machine +(?:\x1b\[[\d;]*m)* *\d+%"),
    "nvitop": (rb"NVITOP", rb"\d+(\.\d+)?[MG]iB"),
    "py-spy top": (rb"Collecting|Total Samples", rb"Samples +[1-9]|\d+\.\d\ds +\d+\.\d\ds"),
}


def measure(command: list[str], environment: dict[str, str], words: tuple[bytes, ...]) -> tuple[float | None, ...]:
    """Seconds until each of `words` (patterns) was written, None for one that did not come."""
    with InTerminal(command, environment, words) as program:
        deadline = time.monotonic() + PATIENCE
        while len(program.first) < len(words) and time.monotonic() < deadline:
            time.sleep(0.02)
        return tuple(program.first.get(word) for word in words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvitop", help="path of nvitop's program")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    args = parser.parse_args()
    compileall.compile_dir(Path(aitop.__file__).parent, quiet=2)
    figures: dict[str, list[tuple[float | None, ...]]] = {}
    print(f"{'':14} first frame s: median worst   first live figure s: median worst   ({args.rounds} starts each)")
    with peers.training() as pid:
        environment = peers.environment(pid, "h200-starved")
        known = peers.commands(pid, args.nvitop)
        for name, words in FIRST.items():
            if name not in known:
                print(f"{name:14} is not installed")
                continue
            found = figures[name] = [measure(known[name], environment, words) for _ in range(args.rounds)]
            cells = []
            for times in zip(*found, strict=True):
                seen = [one for one in times if one is not None]
                cells.append(
                    f"{statistics.median(seen):22.2f} {max(seen):5.2f}" if len(seen) == len(times) else f"{'–':>28}"
                )
            print(f"{name:14} {'   '.join(cells)}")
    if args.json is not None:
        args.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
