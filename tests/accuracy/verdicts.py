"""How right the diagnosis is, live: every scenario watched at each tier that is asked for.

Each tier has a process of its own and 15 s, or 25 s where the fault grows, whatever is shown. A script that does not
start, and a verdict that is wrong, count in every bar. A warning on a mended run is untrue unless it is one of those
that are written down in `scenarios/left.py`, each with what the run gains without it (`remains.py` measures that).
Without `--no-gains`, the gain that is predicted for the change that `--fixed` makes is compared with what that change
gives, measured by running the script as it is and mended in turns. Its rows are in `verdicts.md` beside it.

    python tests/accuracy/verdicts.py --tiers 3,2 --mended      all scenarios, also with their fix: no warning is left
    python tests/accuracy/verdicts.py respawn leak --no-gains   only these, without running the fixes
    python tests/accuracy/verdicts.py --gains-only              only what the fixes give, into gains.json
    python tests/accuracy/verdicts.py --tiers 3 --no-gains --recordings FOLDER      what tests/accuracy judges
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import MISSED_BAR, RESULTS, Figure, Pieces, arguments, commit, does_enough, options, publish  # isort: split

from expectation import Row, Seen, row_of
from expected import BY_NAME, SCENARIOS, Scenario
from launch import Training
from recorded import recording_name
from verdict_gains import gain, write_gains
from verdict_table import Gains, figures, rows_in_markdown

from aitop.engine.live import LiveFeed, Options
from aitop.model.snapshot import Snapshot
from aitop.outputs.recording import RecordingWriter
from aitop.sources.host.target import look

TIERS = {1: Options(stacks=False, hook=False), 2: Options(hook=False), 3: Options()}
LATEST_ATTACH = 3.0
# As long as `diagnose` watches by default; what grows takes longer to show that it does.
SECONDS, SECONDS_IF_GROWING = 15.0, 25.0
GROWING = frozenset({"step-time-growth", "memory-leak"})
START_SECONDS = 120.0


class Bench:
    """The rows and gains so far, and how they are made."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._tiers = sorted(map(int, args.tiers.split(",")))
        chance = random.Random(args.seed)
        self._moments = {name: [chance.uniform(0, LATEST_ATTACH) for _ in TIERS] for name in BY_NAME}
        self._code = commit()
        self._pieces = Pieces(resume=args.resume)
        self.rows: list[Row] = []
        self.gains: Gains = {}
        self.unmeasured: list[str] = []
        for piece in self._pieces.read():
            self.rows += [Row(**piece["row"])] if "row" in piece else []
            self.gains |= piece.get("gain", {})

    def take(self, scenario: Scenario) -> None:
        """All that is wanted of one scenario and was not done before."""
        for tier in () if self._args.gains_only else self._tiers:
            self._watched(scenario, tier)
            if self._args.mended and scenario.fixed:
                self._watched(scenario.mended(), tier, scenario.fix)
        if scenario.fixed and not self._args.no_gains and scenario.name not in self.gains:
            try:
                plain, fixed = gain(scenario, self._args.turns, self._args.turn_seconds)
            except (RuntimeError, AssertionError) as failure:
                print(f"{scenario.name}: no gain measured: {failure}", flush=True)
                self.unmeasured.append(scenario.name)
                return
            print(f"{scenario.name}: {plain:.2f} → {fixed:.2f} steps/s, {fixed / plain:.2f}×", flush=True)
            self.gains[scenario.name] = plain, fixed
            self._pieces.add({"gain": {scenario.name: (plain, fixed)}})

    def _watched(self, scenario: Scenario, tier: int, fix: Sequence[str] = ()) -> None:
        if any((row.name, row.tier, row.mended) == (scenario.name, tier, bool(fix)) for row in self.rows):
            return
        row = self.watch(scenario, tier, fix)
        row.code, row.mended = self._code, bool(fix)
        self.rows.append(row)
        self._pieces.add({"row": asdict(row)})
        marks = f"{'mended ' if fix else ''}{'right' if row.right else f'WRONG, expected {row.expected}'}"
        marks += f" UNTRUE WARNING {', '.join(row.alarms)}" if row.alarms else ""
        marks += " WRONG LINE" if row.right_line is False else ""
        print(f"{row.name} at tier {tier}: {row.said} {marks} {row.where or ''} {row.note}", flush=True)

    def watch(self, scenario: Scenario, tier: int, fix: Sequence[str]) -> Row:
        """Start the script, attach at a random moment, and watch for a fixed time."""
        ticks: list[Seen] = []
        with tempfile.TemporaryDirectory() as folder:
            process = Training(scenario.name, *fix, log=Path(folder) / "log")
            try:
                process.wait_steps(1, timeout=START_SECONDS)
                time.sleep(self._moments[scenario.name][tier - 1])
                if process.alive():
                    seconds = self._args.seconds or seconds_for(scenario)
                    record_to = self._recording(scenario, tier, mended=bool(fix))
                    ticks = ticks_of(process, TIERS[tier], seconds, record_to)
                note = "" if process.alive() else f"the script has ended: {process.output()[-300:]!r}"
            except AssertionError as failure:
                note = f"not started: {failure}"[-300:]
            finally:
                process.stop()
        row = row_of(scenario, tier, ticks)
        row.note = note
        return row

    def _recording(self, scenario: Scenario, tier: int, *, mended: bool) -> Path | None:
        """A new file for the recording of a watch, None where none is wanted. Those of mended runs are not judged."""
        if self._args.recordings is None:
            return None
        self._args.recordings.mkdir(parents=True, exist_ok=True)
        path: Path = self._args.recordings / recording_name(
            f"{scenario.name}.mended" if mended else scenario.name, tier
        )
        path.unlink(missing_ok=True)
        return path


def ticks_of(process: Training, options_: Options, seconds: float, record_to: Path | None) -> list[Seen]:
    """The verdicts of every tick of a watch that lasts so long, or until the script ends."""
    target = look(process.pid)
    feed = LiveFeed([target], options_, RecordingWriter(record_to, target) if record_to else None)
    begun, ticks = time.monotonic(), []

    def publish_(snapshot: Snapshot) -> None:
        ticks.append(Seen(time.monotonic() - begun, snapshot.diagnosis.verdicts))

    feed.start(publish_)
    try:
        while process.alive() and time.monotonic() - begun < seconds:
            time.sleep(0.1)
    finally:
        feed.stop()
    return ticks


def seconds_for(scenario: Scenario) -> float:
    """How long to watch a scenario."""
    return SECONDS_IF_GROWING if scenario.verdict in GROWING else SECONDS


def parsed() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios (default: all that can run here)")
    parser.add_argument("--tiers", default="3,2", help="3 everything, 2 without hook, 1 without stacks as well")
    parser.add_argument("--seconds", type=float, help=f"how long to watch ({SECONDS}, growth {SECONDS_IF_GROWING})")
    parser.add_argument("--turns", type=int, default=3, help="of the script as it is and mended, to measure a gain")
    parser.add_argument("--turn-seconds", type=float, default=1.7, help="how long each turn lasts")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of attaching")
    parser.add_argument("--no-gains", action="store_true", help="do not run the fixes")
    parser.add_argument("--gains-only", action="store_true", help="only run the fixes")
    parser.add_argument("--mended", action="store_true", help="also watch the scripts with their fix")
    parser.add_argument("--recordings", type=Path, metavar="FOLDER", help="keep a recording of every watch")
    parser.add_argument("--resume", action="store_true", help="go on where the last run was interrupted")
    args = parser.parse_args()
    if unknown := set(args.names) - set(BY_NAME):
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}")
    if not {"1", "2", "3"} >= set(args.tiers.split(",")):
        parser.error("tiers are 1, 2 and 3")
    return args


def main() -> int:
    args = parsed()
    bench = Bench(args)
    # Being ended must end the scripts as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for scenario in [BY_NAME[name] for name in args.names] or SCENARIOS:
        if missing := scenario.missing():
            print(f"{scenario.name} left out: needs {', '.join(missing)}")
        else:
            bench.take(scenario)
    if args.gains_only:
        if not args.names and not bench.unmeasured:
            how = f"verdicts.py {arguments()} on {commit() or 'an unknown commit'}"
            write_gains(Path(__file__).with_name("gains.json"), bench.gains, how)
        Pieces.forget()
        return MISSED_BAR if bench.unmeasured else 0
    rows = rows_in_markdown(bench.rows, bench.gains)
    when = f"{time.strftime('%Y-%m-%d')}, commit {commit() or 'unknown'}, `verdicts.py {arguments()}`"
    if args.results == RESULTS and does_enough():
        Path(__file__).with_name("verdicts.md").write_text(f"# The scenarios, watched live\n\n{when}\n\n{rows}\n")
    print(rows)
    measured = list(figures(bench.rows, None if args.no_gains else bench.gains))
    if not args.no_gains:
        names = " ".join(bench.unmeasured)
        measured.append(Figure("fixes that were not measured", len(bench.unmeasured), most=0, spread=names))
    return publish(args, measured)


if __name__ == "__main__":
    sys.exit(main())
