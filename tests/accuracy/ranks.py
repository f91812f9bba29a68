"""How right the diagnosis is of jobs of several ranks with a planted fault.

A case is FAULT:RANKS:LAUNCHER[:WHEN]. LAUNCHER is torchrun, spawn or processes. WHEN says whether aitop starts before
(default) or after the hang; passive: after it and with --passive; stacks: before, with --no-hook. Seconds are those
from aitop's start, or from the last step that was printed where that was later. With --gains the run without its fault
is timed as well, beside the prediction. --keep leaves a recording of each case, for `aitop replay`.

    python tests/accuracy/ranks.py [--gains] [--keep FOLDER] [FAULT:RANKS:LAUNCHER[:WHEN] ...]
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import Figure, options, publish  # isort: split

from serving_run import free_port

from aitop.engine.live import LiveFeed, Options
from aitop.model.snapshot import Snapshot
from aitop.model.verdict import Verdict
from aitop.outputs.recording import RecordingWriter
from aitop.sources.host.target import look

JOB = Path(__file__).parents[1] / "e2e" / "ranks" / "job.py"
LONGEST, SLOW_SECONDS, RATE_SECONDS = 30.0, 14.0, 6.0
FAULTY_AFTER, STOPPED_FOR = 20, 4.0
# Long enough for a monitor to be there first.
HANGS_AFTER = {2: 300, 4: 150}
# So many that the rank alone on its core is later than the others, who share theirs.
BURNERS = {2: 3, 4: 9}
BURN = "import os\nos.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\nwhile True: pass"
ABOUT_RANKS = frozenset({"straggler", "comm-bound", "hang"})


@dataclass(frozen=True)
class Expected:
    """A verdict and its subtype, and a substring of the line that is to be named; empty where any is right.

    `odd` tells whether the last rank is to be named. `passive` is the subtype that can be told without stacks, `stacks`
    that which can be told with them but without the hook, where it is another.
    """

    verdict: str
    subtype: str = ""
    line: str = ""
    odd: bool = True
    passive: str = "unknown"
    stacks: str = ""


EXPECTED = {
    "healthy": Expected("", odd=False),
    "input": Expected("straggler", "input", "time.sleep(0.001)"),
    "compute": Expected("straggler", "compute", "rows = rows + 0.001"),
    "contention": Expected("straggler", "contention"),
    "batches": Expected("straggler", "batches", stacks="compute"),
    "comm": Expected("comm-bound", odd=False),
    "lock": Expected("hang", "rank-blocked", "guard.acquire()  # for ever"),
    "skip": Expected("hang", "skipped-collective", "loss.backward()"),
    "died": Expected("hang", "rank-gone", passive="rank-gone"),
    "killed": Expected("hang", "rank-gone", passive="rank-gone"),
    "mismatch": Expected("hang", "mismatched-collectives", "dist.all_gather_object"),
    "worker": Expected("hang", "loader-worker", "guard.acquire()  # in a worker"),
}
HANGS = tuple(fault for fault, expected in EXPECTED.items() if expected.verdict == "hang")


@dataclass(frozen=True)
class Case:
    """One run to watch."""

    fault: str
    ranks: int
    launcher: str
    when: str = "before"

    @property
    def hangs(self) -> bool:
        return self.fault in HANGS

    @property
    def passive(self) -> bool:
        return self.when == "passive"

    @property
    def without_hook(self) -> bool:
        return self.when == "stacks"


def all_cases() -> list[Case]:
    slow = ("healthy", "input", "compute", "batches", "contention", "comm")
    cases = [Case(fault, ranks, launcher) for ranks in (2, 4) for launcher in ("torchrun", "spawn") for fault in slow]
    cases += [Case(fault, ranks, "spawn", "stacks") for ranks in (2, 4) for fault in slow]
    for fault in HANGS:
        # torchrun and spawn see a rank that was killed, and end the others.
        launchers = ("processes",) if fault == "killed" else ("torchrun", "spawn")
        for ranks in (2, 4):
            cases += [Case(fault, ranks, launcher, when) for launcher in launchers for when in ("before", "after")]
        cases.append(Case(fault, 4, launchers[0], "passive"))
    return cases


class Job(AbstractContextManager["Job"]):
    """A job in a process group of its own, and whoever takes the last core from it."""

    def __init__(self, case: Case, folder: Path, *, mended: bool = False) -> None:
        port = free_port()
        self.log = folder / f"{port}.log"
        after = HANGS_AFTER[case.ranks] if case.hangs and case.when == "before" else FAULTY_AFTER
        command = [sys.executable, str(JOB), case.fault, "--after", str(after), *(["--mended"] if mended else [])]
        if case.launcher == "torchrun":
            run = ["-m", "torch.distributed.run", "--nproc-per-node", str(case.ranks), "--master-port", str(port)]
            command = [sys.executable, *run, *command[1:]]
        else:
            command += ["--launch", case.launcher, "--port", str(port)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--world", str(case.ranks)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=environment,
            )  # fmt: skip
        burners = BURNERS[case.ranks] if case.fault == "contention" and not mended else 0
        # Each in a session of its own: the scheduler may give a session its share, however many run in it.
        burn = [sys.executable, "-c", BURN]
        self.burners = [subprocess.Popen(burn, start_new_session=True) for _ in range(burners)]

    def wait_for(self, step: int) -> None:
        deadline = time.monotonic() + 90
        while f"step {step}:" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no step {step}:\n{self.log.read_text()[-1500:]}")
            time.sleep(0.1)

    def rate(self, seconds: float) -> float:
        """Steps a second, from now on for so long, by what it prints."""
        prints = []
        for _ in range(2):
            before = self._last()
            while self._last() == before:
                time.sleep(0.005)
            prints.append((self._last(), time.monotonic()))
            time.sleep(seconds if len(prints) == 1 else 0.0)
        (first, began), (last, ended) = prints
        return (last - first) / (ended - began)

    def _last(self) -> int:
        return int(self.log.read_text().rpartition("step ")[2].partition(":")[0])

    def __exit__(self, *_: object) -> None:
        # torchrun gives each rank a session of its own: they would outlive it.
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [
                *psutil.Process(self.process.pid).children(recursive=True),
                psutil.Process(self.process.pid),
            ]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        for process in self.burners:
            process.kill()
        for process in (self.process, *self.burners):
            process.wait()


@dataclass(frozen=True)
class Seen:
    """What was told: the verdict looked for (of a healthy job: any about ranks), how late, and the last snapshot."""

    verdict: Verdict | None
    seconds: float
    snapshot: Snapshot | None
    wall: float

    @property
    def tier(self) -> str:
        """The best source that gave something."""
        sources = self.snapshot.sources if self.snapshot else {}
        names = ("hook", "stacks", "host")
        return next((name for name in names if name in sources and sources[name].state in ("ok", "stale")), "none")


def run(case: Case, folder: Path, *, gains: bool, keep: Path | None) -> tuple[bool | None, ...]:
    """One case, run, watched and printed as a row of the table: whether rank, cause and line are right."""
    with Job(case, folder) as job:
        job.wait_for(10 if case.hangs and case.when != "before" else FAULTY_AFTER + 10)
        if case.hangs and case.when != "before":
            time.sleep(STOPPED_FOR)
        seen = watch(job.process.pid, case, keep)
        if case.hangs:
            seen = replace(seen, seconds=min(seen.seconds, seen.wall - job.log.stat().st_mtime))
        before = job.rate(RATE_SECONDS) if gains else None
    actual = ""
    if before is not None:
        with Job(case, folder, mended=True) as job:
            job.wait_for(FAULTY_AFTER + 10)
            after = job.rate(RATE_SECONDS)
        actual = f"{after / before:.2f} ({before:.1f} → {after:.1f}/s)"
    print(row(case, seen, actual), flush=True)
    return judged(case, EXPECTED[case.fault], seen.verdict)


def watch(pid: int, case: Case, keep: Path | None = None) -> Seen:
    """Watch for a fixed time, whatever is shown; the verdict is that of the end, and the time is since it stays."""
    newest: list[Snapshot] = []
    since: list[tuple[float, float]] = []
    wanted = EXPECTED[case.fault].verdict
    target = look(pid)
    name = "-".join(str(part) for part in astuple(case))
    sink = RecordingWriter(keep / f"{name}.jsonl.gz", target) if keep else None
    feed = LiveFeed([target], Options(passive=case.passive, hook=not case.without_hook), sink)
    seconds, begun = LONGEST if case.hangs else SLOW_SECONDS, time.monotonic()

    def publish_(snapshot: Snapshot) -> None:
        newest[:] = [snapshot]
        verdicts = snapshot.diagnosis.verdicts
        if verdicts and verdicts[0].id == wanted:
            since.append((time.monotonic() - begun, time.time()))
        else:
            since.clear()

    feed.start(publish_)
    try:
        time.sleep(seconds)
    finally:
        feed.stop()
    verdicts = newest[0].diagnosis.verdicts if newest else ()
    about = [each for each in verdicts if each.id in ABOUT_RANKS]
    verdict = about[0] if about and (not wanted or verdicts[0].id == wanted) else None
    elapsed, wall = since[0] if since else (seconds, time.time())
    return Seen(verdict, elapsed, newest[0] if newest else None, wall)


HEADING = (
    f"{'fault':<12}{'ranks':<7}{'launcher':<11}{'when':<9}{'tier':<8}{'told':<33}{'right rank cause line':<23}"
    f"{'seconds':<9}{'predicted':<11}actual"
)


def row(case: Case, seen: Seen, actual: str) -> str:
    """The case beside what was expected; below it the words, where they are not what was expected."""
    expected, verdict = EXPECTED[case.fault], seen.verdict
    named = "nothing" if verdict is None else verdict.id + (f"/{verdict.subtype}" if verdict.subtype else "")
    marks = [_mark(right) for right in judged(case, expected, verdict)]
    predicted = f"{verdict.speedup:.2f}" if verdict is not None and verdict.speedup else "–"
    launch = (
        f"{case.fault:<12}{case.ranks:<7}{case.launcher:<11}{case.when if case.hangs or case.without_hook else '–':<9}"
    )
    line = f"{launch}{seen.tier:<8}{named:<33}{'      '.join(marks):<23}{seen.seconds:<9.1f}{predicted:<11}{actual}"
    if "NO" not in marks:
        return line
    others = seen.snapshot.diagnosis.verdicts if seen.snapshot else ()
    words = [verdict.title, *verdict.evidence] if verdict is not None else [each.title for each in others]
    return "\n      ".join([line, *words])


def judged(case: Case, expected: Expected, verdict: Verdict | None) -> tuple[bool | None, ...]:
    """Whether the rank, the cause and the line are right; None where there is nothing to be right about."""
    if verdict is None or not expected.verdict:
        return None, verdict is None and not expected.verdict, None
    subtype = expected.passive if case.passive else expected.subtype
    if case.without_hook:
        subtype = expected.stacks or subtype
    cause = verdict.id == expected.verdict and (not subtype or verdict.subtype == subtype)
    if case.passive and subtype == "unknown":
        return verdict.ranks == (), cause, None
    rank = verdict.ranks == (case.ranks - 1,) if expected.odd else None
    if not expected.line:
        return rank, cause, None
    place = verdict.where[0] if verdict.where else None
    return rank, cause, place is not None and expected.line in JOB.read_text().splitlines()[place.line - 1]


def _mark(right: bool | None) -> str:
    return "–" if right is None else "yes" if right else "NO"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("cases", nargs="*", metavar="FAULT:RANKS:LAUNCHER[:WHEN]", help="default: all")
    parser.add_argument("--gains", action="store_true", help="also time the runs without their faults")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep a recording of each case")
    args = parser.parse_args()
    given = [word.split(":") for word in args.cases]
    cases = [Case(fault, int(ranks), *rest) for fault, ranks, *rest in given] or all_cases()
    print(HEADING)
    marks: dict[bool, list[tuple[bool | None, ...]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            timed = args.gains and not case.hangs and case.fault != "healthy"
            try:
                right = run(case, Path(folder), gains=timed, keep=args.keep)
            except RuntimeError as error:
                print(f"{case}: {error}", flush=True)
                right = False, False, False
            marks[case.without_hook].append(right)
    figures = []
    for without_hook, rows in marks.items():
        # No bar is missed where only other cases were asked for.
        for number, what in () if not rows else enumerate(("rank", "cause", "line")):
            known = [row[number] for row in rows if row[number] is not None]
            share = sum(map(bool, known)) / len(known) * 100 if known else None
            least = 75 if without_hook else 90
            spread = f"{sum(map(bool, known))} of {len(known)}"
            name = f"{what} right without the hook" if without_hook else f"{what} right"
            figures.append(Figure(name, share, "%", least=least, spread=spread))
    return publish(args, figures)


if __name__ == "__main__":
    sys.exit(main())
