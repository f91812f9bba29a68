"""What the panes get: one Snapshot and how to look at it. Views are frozen and compared by identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from aitop.model.snapshot import Snapshot
from aitop.model.source import SourceName, SourceStatus
from aitop.ui.narrowing import family, process_words
from aitop.ui.themes import DARK, Theme
from aitop.ui.who import EVERYBODY, Who

CodeView = Literal["lines", "tree", "flame"]


@dataclass(frozen=True)
class Look:
    """What the terminal can show. `ascii`: no other glyphs."""

    theme: Theme = DARK
    ascii: bool = False

    @property
    def mono(self) -> bool:
        """Whether there are no colours, so that phases have to be told apart by letters."""
        return self.theme.mono


@dataclass(frozen=True, eq=False)
class View:
    """The state of the screen that panes draw from.

    `snapshot` is None before the first. `rank` narrows processes and code to one rank, None for all. `code` says how
    the code is shown and `who` whose it is. `live` is False for a replay. `notice` is a short line about what was
    just done. `filter` is the text that rows of lists and trees must hold (see ui.matching), empty to show all.
    `chosen` is the process (pid) that the screen is narrowed to, None for all. `mark` is the moment that figures are
    held against, None without one; `recording` says in a word or two how far a recording is.
    """

    snapshot: Snapshot | None = None
    look: Look = field(default_factory=Look)
    title: str | None = None
    live: bool = True
    paused: bool = False
    code: CodeView = "lines"
    who: Who = EVERYBODY
    rank: int | None = None
    can_detach: bool = False
    notice: str | None = None
    filter: str = ""
    chosen: int | None = None
    mark: Snapshot | None = None
    recording: str | None = None

    def source(self, name: SourceName) -> SourceStatus | None:
        """The state of a source, None before it was heard of."""
        return self.snapshot.sources.get(name) if self.snapshot else None

    def stale(self, name: SourceName) -> str | None:
        """How old the newest data of a source is and why, if it has gone stale or failed; None while it is fresh."""
        status = self.source(name)
        if status is None or status.state not in ("stale", "failed") or status.age is None:
            return None
        # That there is nothing new its age says already.
        reason = None if status.code == "nothing-new" else status.reason
        return f"{status.age:.0f} s old" + (f" · {reason}" if reason else "")

    def ranks(self) -> tuple[int, ...]:
        """The ranks of the job, in order."""
        host = self.snapshot.host if self.snapshot else None
        return (
            tuple(sorted({p.rank for p in host.processes if p.role == "rank" and p.rank is not None})) if host else ()
        )

    def pids(self) -> frozenset[int] | None:
        """The processes that the screen is narrowed to: those of a rank, or a chosen one with all below it.

        None when it shows all.
        """
        host = self.snapshot.host if self.snapshot else None
        if host is None or (self.rank is None and self.chosen is None):
            return None
        if self.chosen is not None:
            return family(host.processes, self.chosen)
        return frozenset(process.pid for process in host.processes if process.rank == self.rank)

    def narrowed(self) -> str | None:
        """What the screen is narrowed to, in words; None when it shows all."""
        if self.chosen is not None:
            return process_words(self.snapshot, self.chosen)
        return None if self.rank is None else f"rank {self.rank}"
