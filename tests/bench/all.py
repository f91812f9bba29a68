"""Runs the benches one after the other, each in a process of its own.

    python tests/bench/all.py --quick              rougher figures in twelve minutes
    python tests/bench/all.py                      all that take minutes
    python tests/bench/all.py faults verdicts      only these, the ones that take hours among them
    python tests/bench/all.py --resume faults      skip what already has a full (not --quick) result of this commit
    python tests/bench/all.py --whole --outdated --resume     all whose code has changed since their result, in hours

Each writes its own section of tests/bench/README.md (results.py). Exit code 1 where one failed or missed a bar.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys

import results

ENDS_IN = 30.0


def run_to_end(command: list[str]) -> int:
    """Its exit code. Where we are told to end it is interrupted, not killed: what it has started must end as well."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(ENDS_IN)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def main() -> int:
    benches = results.benches()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(benches)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: rougher figures")
    parser.add_argument("--whole", action="store_true", help="also what takes hours")
    parser.add_argument("--outdated", action="store_true", help="only what is older than the code that it is about")
    parser.add_argument("--resume", action="store_true", help="leave out what has a result of this commit")
    args = parser.parse_args()
    if unknown := set(args.names) - set(benches):
        parser.error(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(benches)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    records, now = results.read(), results.commit()
    ended: dict[str, int] = {}
    old = results.outdated_results(records) if args.outdated else benches
    wanted = [name for name, bench in benches.items() if args.whole or bench.quick is not None]
    for name in args.names or wanted:
        bench = benches[name]
        record = records.get(name)
        rough = record is not None and not args.quick and results.was_shortened(bench, record)
        if name not in old and not rough:
            continue
        if args.resume and record is not None and record["commit"] == now and not rough:
            continue
        words = bench.quick if args.quick and bench.quick is not None else bench.usual
        words += " --resume" * (args.resume and bench.resumes)
        print(f"\n{name} {words}", flush=True)
        ended[name] = run_to_end([sys.executable, str(results.TESTS / bench.path), *shlex.split(words)])
    outcomes = {0: "every bar reached", results.MISSED_BAR: "MISSED A BAR"}
    print(
        "\n" + "\n".join(f"{name}: {outcomes.get(code, f'FAILED, exit code {code}')}" for name, code in ended.items())
    )
    return int(any(ended.values()))


if __name__ == "__main__":
    sys.exit(main())
