"""Runs that change at a planted moment: what changes, and what is to be said of it. Records them.

python tests/accuracy/changes/planted.py FOLDER [NAME ...]     (the machine must have nothing else to do)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS, RECORDINGS, MOMENTS = HERE / "scripts", HERE / "recordings", HERE / "moments.json"
CHANGE_AFTER, WATCHED = 36.0, 76.0
"""Seconds after the start of a run: when it changes, and how long it is watched."""


@dataclass(frozen=True)
class Planted:
    """`subtype` is the reason to be named, `line` a part of the guilty line's text, None where no line is guilty."""

    script: str
    subtype: str
    line: str | None = None
    neighbours: int = 0


PLANTED = {
    "longer_files": Planted("longer_files", "data", 'rows = np.load(files[index % len(files)])["rows"]'),
    "neighbour": Planted("plain", "neighbour", neighbours=2),
    "longer_texts": Planted("longer_texts", "input"),
    "saves_more": Planted("saves_more", "checkpoint", "torch.save("),
    "long_list": Planted("long_list", "host", "smooth = sum(value * 0.5 for value in losses)"),
    "new_numbers": Planted("new_numbers", "recompile", "model(x, number)"),
}


@contextmanager
def running(planted: Planted, log: Path) -> Iterator[int]:
    """The pid of the run, which changes CHANGE_AFTER seconds from now; with its neighbours from then on."""
    at = time.monotonic() + CHANGE_AFTER
    busy = f"import time; time.sleep(max(0.0, {at} - time.monotonic()))\nwhile True: pass"
    started = []
    with log.open("wb") as output:
        script = [sys.executable, str(SCRIPTS / f"{planted.script}.py"), str(at)]
        started.append(subprocess.Popen(script, stdout=output))
        started += [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(planted.neighbours)]
    try:
        yield started[0].pid
    finally:
        for process in started:
            process.kill()
            process.wait()


def recorded(name: str, folder: Path) -> float:
    """Record a run as FOLDER/NAME.jsonl.gz; when it changed, in seconds since the epoch."""
    log, out = folder / f"{name}.log", folder / f"{name}.jsonl.gz"
    with running(PLANTED[name], log) as pid:
        time.sleep(2.0)
        record = [sys.executable, "-m", "aitop", "record", "--pid", str(pid), "-o", str(out)]
        subprocess.run([*record, "--for", f"{WATCHED - 2.0:.0f}s"], check=True)
    return float(log.read_text().split("changed ")[1].split()[0])


def main() -> int:
    """Record all, and note when they changed beside them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the recordings go, with moments.json")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLANTED)}; all without any")
    args = parser.parse_args()
    moments = args.folder / MOMENTS.name
    known = json.loads(moments.read_text()) if moments.exists() else {}
    for name in args.names or PLANTED:
        known[name] = recorded(name, args.folder)
        moments.write_text(json.dumps(known, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
