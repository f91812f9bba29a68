"""Holds what aitop says of jobs of several ranks against the fault that was planted in them.

python tests/bench/ranks.py [FAULT[:torchrun|spawn|processes][:before|after|passive] ...]
python tests/bench/ranks.py --gains [FAULT ...]: the predicted gain beside that of the run without its fault
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from aitop.engine.live import LiveFeed, Options
from aitop.model.snapshot import Snapshot
from aitop.model.verdict import Verdict
from aitop.sources.target import look

JOB = Path(__file__).parents[1] / "ranks" / "job.py"
LONGEST = 30.0
HANGS = ("lock", "skip", "died", "mismatch", "worker")
# Here the launcher does not notice.
KILLED = "killed"
QUIET_SECONDS = 14.0


@dataclass(frozen=True)
class Expected:
    """A verdict, its subtypes, a substring of the line that is to be named, and the rank; empty where any is right."""

    verdict: str
    subtypes: tuple[str, ...] = ()
    line: str = ""
    rank: int | None = 1


EXPECTED = {
    "healthy": Expected("", rank=None),
    "input": Expected("straggler", ("input",), "time.sleep(0.002)"),
    "compute": Expected("straggler", ("compute",), "rows = rows + 0.001"),
    "batches": Expected("straggler", ("batches",)),
    "comm": Expected("comm-bound", rank=None),
    "lock": Expected("hang", ("rank-blocked",), "guard.acquire()  # for ever"),
    "skip": Expected("hang", ("skipped-collective",), "loss.backward()"),
    "died": Expected("hang", ("rank-gone",), ""),
    "killed": Expected("hang", ("rank-gone",), ""),
    "mismatch": Expected("hang", ("mismatched-collectives",), "dist.all_gather_object"),
    "worker": Expected("hang", ("loader-worker",), "guard.acquire()  # in a worker"),
}


class Job:
    """A job in a process group of its own."""

    def __init__(self, fault: str, launch: str, port: int, folder: Path, after: int, *, mended: bool = False) -> None:
        self.log = folder / f"{fault}.log"
        command = [sys.executable, str(JOB), fault, "--after", str(after), *(["--mended"] if mended else [])]
        if launch == "torchrun":
            prefix = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                "2",
                "--master-port",
                str(port),
            ]
            command = [*prefix, *command[1:]]
        else:
            command += ["--launch", launch, "--port", str(port)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def wait_for(self, step: int) -> None:
        deadline = time.monotonic() + 60
        while f"step {step}:" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no step {step}:\n{self.log.read_text()[-1500:]}")
            time.sleep(0.1)

    def rate(self, seconds: float) -> float:
        """Steps a second, from now on for so long, by what it prints."""
        told = []
        for _ in range(2):
            before = self._last()
            while self._last() == before:
                time.sleep(0.005)
            told.append((self._last(), time.monotonic()))
            time.sleep(seconds if len(told) == 1 else 0.0)
        (first, began), (last, ended) = told
        return (last - first) / (ended - began)

    def _last(self) -> int:
        return int(self.log.read_text().rpartition("step ")[2].partition(":")[0])

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            time.sleep(0.5)
        self.process.wait()


def gains(faults: list[str]) -> None:
    """For each fault: the predicted gain, and the rates with the fault and without it."""
    print(f"{'fault':<12}{'got':<28}{'predicted':<11}{'actual':<9}rates")
    with tempfile.TemporaryDirectory() as folder:
        for number, fault in enumerate(faults):
            rates, seen = [], None
            for mended in (False, True):
                job = Job(fault, "torchrun", 29900 + 2 * number + mended, Path(folder), after=20, mended=mended)
                try:
                    job.wait_for(30)
                    if not mended:
                        seen = watch(job.process.pid, fault, Options(), False)[0]
                    rates.append(job.rate(8.0))
                finally:
                    job.end()
            got = "nothing" if seen is None else f"{seen.id}/{seen.subtype}"
            predicted = "–" if seen is None or seen.speedup is None else f"{seen.speedup:.2f}"
            told = f"{rates[0]:.1f} → {rates[1]:.1f} steps/s"
            print(f"{fault:<12}{got:<28}{predicted:<11}{rates[1] / rates[0]:<9.2f}{told}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--gains"]:
        gains(sys.argv[2:] or ["input", "compute", "batches"])
        return
    wanted = sys.argv[1:] or [
        *(f"{fault}:torchrun:before" for fault in ("healthy", "input", "compute", "batches", "comm")),
        *(f"{fault}:spawn:before" for fault in ("healthy", "input")),
        *(f"{fault}:torchrun:{when}" for fault in HANGS for when in ("before", "after")),
        *(f"{fault}:processes:passive" for fault in HANGS),
        *(f"{KILLED}:processes:{when}" for when in ("before", "after", "passive")),
        *(f"{fault}:spawn:before" for fault in ("lock", "died")),
    ]
    print(f"{'case':<28}{'expected':<32}{'got':<36}{'rank':<6}{'line':<6}{'conf':<6}{'gain':<6}seconds")
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(wanted):
            fault, launch, when = (
                [*name.split(":"), "torchrun", "before"][:3] if ":" in name else (name, "torchrun", "before")
            )
            print(row(name, fault, launch, when, 29700 + number, Path(folder)), flush=True)


def row(name: str, fault: str, launch: str, when: str, port: int, folder: Path) -> str:
    """One case, run and watched."""
    hangs = fault in (*HANGS, KILLED)
    job = Job(fault, launch, port, folder, after=250 if hangs and when == "before" else 20)
    try:
        job.wait_for(30 if not hangs or when == "before" else 10)
        if hangs and when != "before":
            time.sleep(4.0)
        begun = time.monotonic()
        seen, seconds, last = watch(job.process.pid, fault, Options(passive=when == "passive"), hangs)
    except RuntimeError as error:
        return f"{name:<28}{error}"
    finally:
        job.end()
    expected = EXPECTED[fault]
    got = "nothing" if seen is None else seen.id + (f"/{seen.subtype}" if seen.subtype else "")
    if seen is None:
        return f"{name:<28}{expected.verdict:<32}{got:<36}{'':<18}{time.monotonic() - begun:.1f} {verdicts(last)}"
    right_rank = "–" if expected.rank is None else str(seen.ranks == (expected.rank,))
    lines = JOB.read_text().splitlines()
    place = seen.where[0] if seen.where else None
    right_line = "–" if not expected.line else str(place is not None and expected.line in lines[place.line - 1])
    wanted = expected.verdict + ("/" + "|".join(expected.subtypes) if expected.subtypes else "")
    gain = f"{seen.speedup:.2f}" if seen.speedup else "–"
    told = f"{wanted:<32}{got:<36}{right_rank:<6}{right_line:<6}{seen.confidence:<6}{gain:<6}{seconds:.1f}"
    return f"{name:<28}{told}\n    {seen.title}\n    " + "\n    ".join(seen.evidence)


def watch(pid: int, fault: str, options: Options, hangs: bool) -> tuple[Verdict | None, float, Snapshot | None]:
    """The verdict that is looked for, and when it came; else None (for a healthy job: a false one)."""
    newest: list[Snapshot] = []
    feed = LiveFeed([look(pid)], options)
    begun = time.monotonic()
    feed.start(newest.append)
    several = {"straggler", "comm-bound", "hang"}
    wanted = EXPECTED[fault].verdict
    try:
        while (elapsed := time.monotonic() - begun) < (LONGEST if wanted else QUIET_SECONDS):
            time.sleep(0.1)
            for verdict in newest[-1].diagnosis.verdicts if newest else ():
                right = verdict.id == wanted and verdict.id == newest[-1].diagnosis.verdicts[0].id
                if (right and (hangs or elapsed > QUIET_SECONDS)) or (not wanted and verdict.id in several):
                    return verdict, elapsed, newest[-1]
    finally:
        feed.stop()
    return None, LONGEST, newest[-1] if newest else None


def verdicts(snapshot: Snapshot | None) -> str:
    if snapshot is None:
        return "no snapshot"
    return ", ".join(f"{one.id}/{one.subtype or ''}" for one in snapshot.diagnosis.verdicts) + str(snapshot.ranks)


if __name__ == "__main__":
    main()
