"""What the present code says of every recording, as a table.

    python tests/accuracy/table.py                                   the committed recordings
    python tests/accuracy/table.py --recordings FOLDER respawn leak  those of these scenarios in a folder
    python tests/accuracy/table.py --transform renamed --seed 3      with every name of the user's replaced
    python tests/accuracy/table.py --transform all                   every transformation, only what changes
    python tests/accuracy/table.py --json NEW.json --diff OLD.json   what differs from an earlier state of the code

With a transformation each recording is judged as it is, too, and a line tells where the verdict, its line or the
untrue warnings changed. Exits with 1 where anything changed under a transformation, with 4 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import MISSED_BAR  # isort: split

from expectation import Row
from expected import BY_NAME
from recorded import RECORDINGS, cases, read, scenario_and_tier
from renamed import renamed
from transform import Transform, shuffled, without_source
from verdict_table import figures, rows_in_markdown

TRANSFORMS = ("renamed", "no-source", "shuffled")


@dataclass(frozen=True)
class Judged:
    """One recording: the row as it is, and the row under each transformation."""

    row: Row
    under: dict[str, Row]

    def changed(self) -> dict[str, Row]:
        """The transformations under which the answer is another one."""
        return {
            name: row for name, row in self.under.items() if not row.same_as(self.row, source_gone=name == "no-source")
        }


def transform(name: str, seed: int) -> Transform:
    """The transformation of that name."""
    return {"renamed": renamed(seed), "no-source": without_source(), "shuffled": shuffled(seed)}[name]


def judged(case: tuple[Path, int], transforms: Sequence[str], seed: int) -> Judged:
    """Judge a recording at a tier as it is and under the transformations."""
    recorded = read(*case)
    under = {name: transform(name, seed)(recorded).row() for name in transforms}
    return Judged(recorded.row(), under)


def all_judged(chosen: Sequence[tuple[Path, int]], transforms: Sequence[str], seed: int, jobs: int) -> Iterator[Judged]:
    """Judge all recordings, in their order."""
    judge_case = partial(judged, transforms=transforms, seed=seed)
    if jobs == 1:
        yield from map(judge_case, chosen)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(judge_case, chosen, chunksize=4)


def show_change(row: Row, name: str, changed: Row) -> None:
    """One line for a recording whose answer a transformation changes."""
    before, after = _answer(row), _answer(changed)
    print(f"{row.name:<22}{row.tier:<5}{name:<10} {before}  →  {after}", flush=True)


def _answer(row: Row) -> str:
    untrue = f" UNTRUE {', '.join(sorted(row.alarms))}" if row.alarms else ""
    return f"{row.said} {row.where or '–'}{untrue}"


def show_diff(old: Sequence[Row], new: Sequence[Row]) -> None:
    """What an earlier state of the code said otherwise, and what became right or wrong by that."""
    before = {(row.name, row.tier): row for row in old}
    print()
    for row in new:
        was = before.get((row.name, row.tier))
        if was is not None and was.answer != row.answer:
            marks = [_progress(was.right, row.right), _progress(was.right_line, row.right_line, " line")]
            print(f"{row.name:<22}{row.tier:<5}{''.join(marks) or '=':<12} {_answer(was)}  →  {_answer(row)}")
    both = [(before[row.name, row.tier], row) for row in new if (row.name, row.tier) in before]
    print(
        f"{len(both)} in both: right {sum(was.right for was, _ in both)} → {sum(row.right for _, row in both)}, "
        f"lines {sum(bool(was.right_line) for was, _ in both)} → {sum(bool(row.right_line) for _, row in both)}, "
        f"with untrue warnings {sum(bool(was.alarms) for was, _ in both)} → {sum(bool(row.alarms) for _, row in both)}"
    )


def _progress(was: bool | None, now: bool | None, what: str = "") -> str:
    return "" if bool(was) == bool(now) else ("+" if now else "-") + (what or "right")


def load(file: Path) -> list[Row]:
    """The rows that --json wrote."""
    return [Row(**row) for row in json.loads(file.read_text())]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios (default: all that have a recording)")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, metavar="FOLDER")
    parser.add_argument("--tier", type=int, choices=(1, 2, 3), help="only the recordings of this tier")
    parser.add_argument("--transform", choices=("none", *TRANSFORMS, "all"), default="none")
    parser.add_argument("--seed", type=int, default=0, help="of the names or the order")
    parser.add_argument("--wrong", action="store_true", help="only print what is not right")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the rows to a file")
    parser.add_argument("--diff", type=Path, metavar="OLD", help="compare with what --json wrote")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="processes that judge")
    args = parser.parse_args()
    if unknown := set(args.names) - set(BY_NAME):
        parser.error(f"no scenario {', '.join(sorted(unknown))}")
    return args


def main() -> int:
    args = options()
    chosen = [
        (path, tier)
        for path, tier in cases(args.recordings)
        if (not args.names or scenario_and_tier(path)[0] in args.names) and args.tier in (None, tier)
    ]
    if not chosen:
        print(f"no recordings in {args.recordings}", file=sys.stderr)
        return 2
    transforms = {"none": (), "all": TRANSFORMS}.get(args.transform, (args.transform,))
    judgements: list[Judged] = []
    for result in all_judged(chosen, transforms, args.seed, args.jobs):
        judgements.append(result)
        for name, changed in result.changed().items():
            show_change(result.row, name, changed)
    rows = [result.row for result in judgements]
    print(rows_in_markdown([row for row in rows if not args.wrong or not row.flawless()], {}))
    bars = list(figures(rows, None))
    for figure in bars:
        print(figure.row())
    for name in transforms:
        rows_changed = [
            f"{judgement.row.name} t{judgement.row.tier}" for judgement in judgements if name in judgement.changed()
        ]
        print(f"{name}: changed {len(rows_changed)}/{len(judgements)}: {', '.join(rows_changed) or 'none'}")
    if args.diff:
        show_diff(load(args.diff), rows)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if any(result.changed() for result in judgements):
        return 1
    return MISSED_BAR if any(figure.missed() for figure in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
