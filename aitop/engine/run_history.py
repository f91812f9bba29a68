"""The last runs of each script in the user's state folder, some kilobytes each, to compare new ones with.

A file says nothing of what a run was told or works on: its name has digests of script and arguments, and inside there
is neither a command line nor source text, of which lines have a digest, so that they are known again.
"""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from pathlib import Path, PurePath

import msgspec
from msgspec.structs import replace

from aitop.diagnosis.noise import LEAST_VALUES
from aitop.diagnosis.run_comparison import compare_runs
from aitop.diagnosis.run_summary import run_of
from aitop.model.run import Run, RunComparison
from aitop.model.snapshot import Snapshot, Target
from aitop.model.verdict import Verdict, Where
from aitop.output_file import make_folder, remove_output, replace_output

MOST_RUNS = 200
LARGEST_RUN = 64 * 1024


class RunHistory:
    """What is kept of runs like that of `target`. Nothing here raises: a session goes on without its history."""

    def __init__(self, target: Target, folder: Path | None = None) -> None:
        self._folder = folder or history_folder()
        self._target = target
        # A process that is watched again continues its run.
        self._run = f"{target.started or 0:.2f}-{target.pid}"

    def last(self) -> Run | None:
        """The newest other run: with the same arguments, or else of the same script."""
        script, arguments = self._digests()
        alike = [file for file in self._files() if file.name.startswith(script) and self._run not in file.name]
        same = [file for file in alike if file.name.startswith(f"{script}-{arguments}")]
        for file in reversed(same or alike):
            with contextlib.suppress(OSError, ValueError, RecursionError):
                if file.stat().st_size <= LARGEST_RUN:
                    return msgspec.json.decode(file.read_bytes(), type=Run)
        return None

    def keep(self, snapshot: Snapshot) -> None:
        """Write down the run that ends with `snapshot`, unless too few of its units were timed to compare it."""
        run = anonymous(run_of(snapshot))
        written = msgspec.json.encode(run)
        if self._folder is None or run.units is None or run.units.count < LEAST_VALUES or len(written) > LARGEST_RUN:
            return
        with contextlib.suppress(OSError):
            make_folder(self._folder, 0o700)
            if self._folder.stat().st_uid != os.geteuid():
                return
            replace_output(self._folder / f"{'-'.join(self._digests())}-{self._run}.json", written, 0o600)
            for oldest in self._files()[:-MOST_RUNS]:
                remove_output(oldest)

    def _digests(self) -> tuple[str, str]:
        """Of the script and of the whole command."""
        return _digest(self._target.script or self._target.command), _digest(self._target.command)

    def _files(self) -> list[Path]:
        """Those of all scripts, the oldest first."""
        found = []
        with contextlib.suppress(OSError):
            found = [(file.stat().st_mtime, file) for file in self._folder.glob("*.json")] if self._folder else []
        return [file for _, file in sorted(found)]


def compared(snapshot: Snapshot) -> RunComparison | None:
    """The run so far beside the earlier one that the Snapshot names, None without one."""
    before = snapshot.before
    if before is None:
        return None
    after = run_of(snapshot, "this run")
    if not before.file:
        before, after = replace(before, file=moment(before.ended, snapshot.wall)), anonymous(after)
    return compare_runs(before, after)


def moment(then: float, now: float) -> str:
    """A time of the last days as people say it: 18:02, yesterday 18:02, Mon 18:02, 3 Nov 18:02."""
    day, today = datetime.fromtimestamp(then), datetime.fromtimestamp(now)
    days = (today.date() - day.date()).days
    if days == 0:
        return f"{day:%H:%M}"
    named = "yesterday" if days == 1 else f"{day:%a}" if 1 < days < 7 else f"{day.day} {day:%b}"
    return f"{named} {day:%H:%M}"


def history_folder() -> Path | None:
    """$XDG_STATE_HOME/aitop/history, by default under ~/.local/state; None where that is not this user's own.

    Root that has kept the HOME of another user leaves nothing there, nor where a link of theirs leads.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        state = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
        way = [folder for folder in (state, *state.parents) if folder.exists()]
        owners = {folder.lstat().st_uid for folder in way} if os.geteuid() == 0 else {way[0].stat().st_uid}
        return state / "aitop" / "history" if owners == {os.geteuid()} else None
    except (RuntimeError, OSError):
        return None


def anonymous(run: Run) -> Run:
    """The run without its command, and with digests in place of source text."""
    lines = tuple(replace(line, where=_bare(line.where)) for line in run.lines)
    return replace(run, command="", lines=lines, verdicts=tuple(map(_plain, run.verdicts)))


def _bare(where: Where) -> Where:
    text = _digest(where.text.strip()) if where.text else None
    return Where(pid=where.pid, file=PurePath(where.file).name, line=where.line, function=where.function, text=text)


def _plain(verdict: Verdict) -> Verdict:
    return Verdict(
        id=verdict.id,
        subtype=verdict.subtype,
        severity=verdict.severity,
        title="",
        confidence=verdict.confidence,
        share=verdict.share,
        where=tuple(_bare(where) for where in verdict.where[:1]),
    )


def _digest(text: str) -> str:
    import hashlib  # noqa: PLC0415 - it takes long to import, and the screen need not wait for it

    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
