"""Attach, detach and killed monitors on servers under load: failed requests, changed answers, what is left behind.

Clients send the same text again and again, so every answer must be the same, to the last token. Each cycle attaches
with `aitop diagnose`; every third monitor is killed at a random moment of its look. Where all cores are busy one takes
long to start, so it is counted in how many cycles the hook was in the server. After the last cycle, when the hook's
lease has run out, no process of the server may have a thread, a file or a child that it had not before. vLLM needs
AITOP_VLLM_PYTHON and AITOP_VLLM_MODEL, as in tests/accuracy/serving.

    python tests/robustness/serving_stress.py -n 50
    python tests/robustness/serving_stress.py embeddings -n 5
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import Figure, options, publish  # isort: split

import psutil
from attach_targets import leftovers
from serving_cases import CASE_BY_NAME
from serving_run import Clients, Server
from serving_verdicts import running, sends_of

DEFAULT = ("embeddings", "vllm")
# What is recognised by its stacks, as LitServe's workers, has the hook after four seconds.
LOOK_SECONDS, MOST_SECONDS, LEASE_SECONDS = 6.0, 120.0, 12.0
# Of the cycles: a third are killed, most before the hook is in, and where all cores are busy some looks end before it.
LEAST_HOOKED = 50.0
LEAST_ANSWERS = 100
# Servers start and end threads of their own pools while they are at work.
MARK = "aitop"


def cycle(server: Server, killed_after: float | None) -> bool:
    """A monitor comes and goes, or is killed with all that it has started. Whether the hook was in the server."""
    file = server.folder / "look.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "aitop", "diagnose", "--pid", str(server.pid), "--for", f"{LOOK_SECONDS:g}s"]
    command += ["--format", "json", "-o", str(file)]
    quiet, hooked = subprocess.DEVNULL, False
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True) as monitor:
        try:
            monitor.wait(MOST_SECONDS if killed_after is None else killed_after)
            hooked = file.exists() and json.loads(file.read_text())["sources"]["hook"]["state"] == "ok"
        except subprocess.TimeoutExpired:
            hooked = any(traces(process) for process in server.tree())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(monitor.pid, signal.SIGKILL)
    return hooked


def traces(process: psutil.Process) -> list[str]:
    """What of ours a process has: descriptors, mappings and files."""
    marks = leftovers(process.pid)
    folder = Path(f"/proc/{process.pid}")
    with contextlib.suppress(OSError):
        for link in (folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                marks += [f"descriptor {target}"] if f"memfd:{MARK}" in target else []
    with contextlib.suppress(OSError):
        marks += [f"mapping {line}" for line in (folder / "maps").read_text().splitlines() if f"memfd:{MARK}" in line]
    return [f"{process.pid}: {mark}" for mark in marks]


def stress(name: str, cycles: int) -> tuple[int, int, int, list[str], int]:
    """Answers, failed requests, answers that differ from the most frequent one, what was left behind, and in how many
    cycles the hook was in.
    """
    case = CASE_BY_NAME[name]
    took, hooked = [LOOK_SECONDS], 0
    with (
        running(case) as server,
        Clients(server, [*sends_of(case), "--same", "--clients", "2", "--seconds", "1800"]) as clients,
    ):
        time.sleep(3.0)
        before = {process.pid for process in server.tree()}
        for number in range(cycles):
            began = time.monotonic()
            whole = number % 3 != 2
            hooked += cycle(server, None if whole else random.uniform(0.1, 1.0) * took[-1])
            if whole:
                took.append(time.monotonic() - began)
            if not server.alive():
                break
        time.sleep(LEASE_SECONDS)
        left = [trace for process in server.tree() for trace in traces(process)]
        left += [f"process {each.pid}" for each in server.tree() if each.pid not in before]
        answers = clients.answers()
        alive = server.alive() and clients.alive()
    failed = sum(answer.status != 200 for answer in answers) + (not alive)
    kinds = Counter(answer.crc for answer in answers if answer.status == 200)
    changed = sum(kinds.values()) - max(kinds.values(), default=0)
    print(f"{name}: {len(answers)} answers in {cycles} cycles, the hook in {hooked} of them, {failed} failed, "
          f"{changed} changed, left: {left or '–'}; a look took {statistics.median(took[1:] or took):.1f} s",
          flush=True)  # fmt: skip
    return len(answers), failed, changed, left, hooked


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of serving_cases.py (default: {' '.join(DEFAULT)})")
    parser.add_argument("-n", "--cycles", type=int, default=50)
    args = parser.parse_args()
    # Being ended must end the servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    measured: list[Figure] = []
    for name in args.names or DEFAULT:
        missing = CASE_BY_NAME[name].missing()
        if missing:
            print(f"{name} left out: {missing}")
            measured.append(Figure(f"requests of {name} that failed", None, most=0, without=missing))
            continue
        answers, failed, changed, left, hooked = stress(name, args.cycles)
        measured += [
            Figure(f"answers of {name}", answers, least=LEAST_ANSWERS),
            Figure(f"requests of {name} that failed", failed, most=0, spread=f"of {answers}, {args.cycles} cycles"),
            Figure(f"answers of {name} that changed", changed, most=0, spread=f"of {answers}"),
            Figure(f"left behind in {name}", len(left), most=0, spread=" ".join(left)[:200]),
            Figure(
                f"cycles with the hook in {name}",
                100 * hooked / args.cycles,
                "%",
                least=LEAST_HOOKED,
                spread=f"{hooked} of {args.cycles}",
            ),
        ]
    return publish(args, measured)


if __name__ == "__main__":
    sys.exit(main())
