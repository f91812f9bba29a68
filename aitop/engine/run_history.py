"""Keeps the last runs of each script in the user's state folder, some kilobytes each, to compare new runs with them.

A file does not show a run's arguments or source: its name has digests of the script and of the whole command, and in it
there is neither a command line nor source text. Lines have a digest of their text, by which they are recognised.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from aitop.diagnosis.noise import LEAST_VALUES
from aitop.diagnosis.run_summary import anonymous, anonymous_verdict, digest, run_of
from aitop.model.run import Run
from aitop.model.snapshot import Series, Snapshot, Target
from aitop.model.verdict import Diagnosis
from aitop.output_file import make_folder, remove_output, replace_output

MOST_RUNS = 200
# Steps before a mark that are kept: enough to tell whether later ones are faster.
MARKED_STEPS = 100
# A mark keeps the series of its last seconds only.
MARKED_SECONDS = 10.0
LARGEST_RUN = 64 * 1024


class KeptRun(Run, frozen=True, kw_only=True):
    """A run as it is written down, with the moment that the user marked; None without a mark."""

    mark: Snapshot | None = None


class RunHistory:
    """The kept runs of the target's script. Nothing here raises: a session goes on without its history."""

    def __init__(self, target: Target, folder: Path | None = None) -> None:
        self._folder = folder or history_folder()
        self._target = target
        # Names the run in its file, so that a process that is watched again replaces its own file.
        self._run = f"{target.started or 0:.2f}-{target.pid}"

    def last(self) -> Run | None:
        """The newest other run of the same command, else of the same script; None where there is none."""
        script, arguments = self._digests()
        alike = [file for file in self._files() if file.name.startswith(script) and self._run not in file.name]
        same = [file for file in alike if file.name.startswith(f"{script}-{arguments}")]
        return _newest(same or alike)

    def mark(self) -> Snapshot | None:
        """The mark that the user left in the last session with this script, in this run or in an earlier one."""
        script, _ = self._digests()
        last = _newest([file for file in self._files() if file.name.startswith(script)])
        if last is None or last.mark is None or last.mark.target.started == self._target.started:
            return last.mark if last is not None else None
        # The mark is of an earlier run, so every step of this run comes after it, whatever its clock said.
        return replace(last.mark, time=-math.inf)

    def keep(self, snapshot: Snapshot, mark: Snapshot | None = None) -> None:
        """Write down the run that ends with `snapshot`, unless too few of its units were timed to compare it."""
        run = anonymous(run_of(snapshot))
        figures = {name: getattr(run, name) for name in run.__struct_fields__}
        marked = None if mark is None else _figures_of(mark)
        # mtime=0: the header of gzip has too few bits for the times that a clock may show.
        written = gzip.compress(msgspec.json.encode(KeptRun(**figures, mark=marked)), mtime=0)
        if self._folder is None or run.units is None or run.units.count < LEAST_VALUES or len(written) > LARGEST_RUN:
            return
        with contextlib.suppress(OSError):
            make_folder(self._folder, 0o700)
            if self._folder.stat().st_uid != os.geteuid():
                return
            replace_output(self._folder / f"{'-'.join(self._digests())}-{self._run}.json.gz", written, 0o600)
            for oldest in self._files()[:-MOST_RUNS]:
                remove_output(oldest)

    def _digests(self) -> tuple[str, str]:
        """The digests of the script and of the whole command."""
        return digest(self._target.script or self._target.command), digest(self._target.command)

    def _files(self) -> list[Path]:
        """The files of all scripts, the oldest first."""
        dated = []
        with contextlib.suppress(OSError):
            dated = [(file.stat().st_mtime, file) for file in self._folder.glob("*.json.gz")] if self._folder else []
        return [file for _, file in sorted(dated)]


def _newest(files: Sequence[Path]) -> KeptRun | None:
    """The run in the last of the files that can be read and has plausible figures."""
    for file in reversed(files):
        with contextlib.suppress(OSError, EOFError, zlib.error, ValueError, RecursionError):
            if file.stat().st_size > LARGEST_RUN:
                continue
            kept = msgspec.json.decode(gzip.decompress(file.read_bytes()), type=KeptRun)
            if kept.is_sound:
                return kept
    return None


def _figures_of(mark: Snapshot) -> Snapshot:
    """The figures of a marked moment, without stacks, processes or text."""
    steps, serving = mark.steps, mark.serving
    since = mark.time - MARKED_SECONDS
    return Snapshot(
        tick=mark.tick,
        time=mark.time if math.isfinite(mark.time) else 0.0,
        wall=mark.wall,
        window=mark.window,
        target=Target(pid=mark.target.pid, command="", started=mark.target.started),
        kind=mark.kind,
        steps=replace(steps, recent=steps.recent[-MARKED_STEPS:], spread=()) if steps is not None else None,
        serving=replace(serving, requests=(), iterations=(), pauses=()) if serving is not None else None,
        series={name: _since(series, since) for name, series in mark.series.items()},
        diagnosis=Diagnosis(verdicts=tuple(map(anonymous_verdict, mark.diagnosis.verdicts))),
    )


def _since(series: Series, time: float) -> Series:
    first = bisect_right(series.times, time)
    return Series(times=series.times[first:], values=series.values[first:])


def history_folder() -> Path | None:
    """$XDG_STATE_HOME/aitop/history, by default under ~/.local/state; None where that is not this user's own.

    Root with the HOME of another user (as after `sudo`) leaves nothing there, nor where a link of that user leads.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        state = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
        way = [folder for folder in (state, *state.parents) if folder.exists()]
        owners = {folder.lstat().st_uid for folder in way} if os.geteuid() == 0 else {way[0].stat().st_uid}
        return state / "aitop" / "history" if owners == {os.geteuid()} else None
    except (RuntimeError, OSError):
        return None
