"""Proves on a machine with an NVIDIA device what the tests only show on fakes: one command, about ten minutes.

    python tests/gpu/prove.py -o OUT            all checks; what has a result of this commit in OUT is not run again
    python tests/gpu/prove.py -o OUT phases mfu     only these, again
    python tests/gpu/prove.py -o tests/gpu --unproven   what the results that are committed lack

OUT gets `prove.md`, a table of every figure with its bar and of what was left out and why; `results/`, a JSON file for
each check, with the traceback of one that failed; and `recordings/` of the runs, those with a verdict small enough to
be committed. Nothing else should run.

Exit code: 0 all bars of all checks reached; 1 a check failed; 4 a bar was missed, or a check had none; 75 the time was
over before the last check, so the same command goes on, whatever came of the others; 76 a check was left out; 77 there
is no device, so that nothing was proved.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import MISSED_BAR, Figure, commit, machine, table, versions  # isort: split

from gpu_box import Box, SkippedError
from gpu_checks import CHECKS, Check

FAILED, UNFINISHED, LEFT_OUT, NO_DEVICE = 1, 75, 76, 77
MINUTES = 10.0
LARGEST_RECORDING = 2_000_000
WORDS = {"passed": "every bar reached", "missed": "**missed a bar**", "failed": "**failed**", "skipped": "left out"}


class TimeLimitError(Exception):
    """A check took longer than it may."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeLimitError in the block once it has taken so long."""

    def over(*_: object) -> None:
        raise TimeLimitError(f"not done in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def result_of(check: Check, box: Box) -> dict[str, Any]:
    """Run a check; what came of it, as it is kept."""
    figures: Sequence[Figure] = ()
    begun, why, trace = time.monotonic(), "", ""
    try:
        box.must_have(check.needs)
        with limited(check.seconds):
            figures = list(check.run(box))
        judged = [figure for figure in figures if figure.judged()]
        state = "missed" if not judged or any(figure.missed() for figure in judged) else "passed"
    except SkippedError as reason:
        state, why = "skipped", str(reason)
    except (Exception, SystemExit) as error:
        state, why, trace = "failed", f"{type(error).__name__}: {error}"[-600:], traceback.format_exc()
    return {
        "name": check.name,
        "state": state,
        "why": why,
        "trace": trace,
        "seconds": round(time.monotonic() - begun, 1),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "figures": [asdict(figure) for figure in figures],
    }


def earlier_result(check: Check, out: Path, *, unproven: bool) -> dict[str, Any] | None:
    """The result of this check that OUT has of this commit, None where it has none that counts.

    Where only what is unproven is to be run, one that reached every bar counts whatever commit it is of.
    """
    file = out / "results" / f"{check.name}.json"
    if not file.exists():
        return None
    result: dict[str, Any] = json.loads(file.read_text())
    if unproven and result["state"] == "passed":
        return result
    return result if result["state"] in ("passed", "missed") and result["commit"] == commit() else None


def page(results: Sequence[dict[str, Any]], box: Box, not_begun: Sequence[str] = ()) -> str:
    """prove.md: the outcome of every check, then the figures of each."""
    lines = ["# Proved on a device", "", "By `prove.py`; what became of what it missed is in README.md.", ""]
    lines += [box.words(), ""] if box.why_no_cuda else []
    lines += ["| check | outcome | seconds | why |", "|---|---|--:|---|"]
    for result in results:
        why = " ".join(result["why"].split()).replace("|", "\\|")
        lines.append(f"| `{result['name']}` | {WORDS[result['state']]} | {result['seconds']:g} | {why} |")
    lines += [f"| `{name}` | not begun | – | the time was over |" for name in not_begun]
    about = {check.name: check.about for check in CHECKS}
    for result in results:
        if result["figures"]:
            lines += ["", f"## `{result['name']}`", "", about[result["name"]], "", *table(result)]
    return "\n".join(lines) + "\n"


def exit_code(results: Sequence[dict[str, Any]], box: Box, *, unfinished: bool) -> int:
    """The code for what came of all checks."""
    states = {result["state"] for result in results}
    if box.why_no_cuda:
        return NO_DEVICE
    if unfinished:
        return UNFINISHED
    if "failed" in states:
        return FAILED
    if "missed" in states:
        return MISSED_BAR
    return LEFT_OUT if "skipped" in states else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="a folder for the results")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="begin no further check after so long")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="which device to use")
    parser.add_argument("--unproven", action="store_true", help="only what reached every bar at no commit yet")
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("names", nargs="*", metavar="CHECK", help="which to run, again (default: all)")
    args = parser.parse_args()
    if unknown := set(args.names) - {check.name for check in CHECKS}:
        parser.error(f"no check {', '.join(sorted(unknown))}; there are {', '.join(check.name for check in CHECKS)}")
    return args


def main() -> int:
    args = parsed()
    if args.list:
        print("\n".join(f"{check.name:<22}{check.about}" for check in CHECKS))
        return 0
    out: Path = args.output
    (out / "results").mkdir(parents=True, exist_ok=True)
    (out / "recordings").mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    box = Box.here(out, args.device)
    begun, results, not_begun = time.monotonic(), [], []
    for check in CHECKS:
        result = None if check.name in args.names else earlier_result(check, out, unproven=args.unproven)
        if result is None and args.names and check.name not in args.names:
            continue
        if result is None and time.monotonic() - begun > 60.0 * args.minutes:
            not_begun.append(check.name)
            continue
        if result is None:
            result = result_of(check, box)
            (out / "results" / f"{check.name}.json").write_text(json.dumps(result, indent=1) + "\n")
            print(f"{check.name}: {WORDS[result['state']]} {result['why']}".rstrip(), flush=True)
        results.append(result)
    for recording in sorted((out / "recordings").iterdir()):
        if recording.stat().st_size > LARGEST_RECORDING:
            print(f"{recording.name} has {recording.stat().st_size / 1e6:.1f} MB: too large to be committed")
    (out / "prove.md").write_text(page(results, box, not_begun))
    over = f"; the time is over, the same command goes on with {', '.join(not_begun)}" if not_begun else ""
    print(f"\n{out / 'prove.md'}{over}")
    return exit_code(results, box, unfinished=bool(not_begun))


if __name__ == "__main__":
    sys.exit(main())
