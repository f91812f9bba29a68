"""The time pane: the largest entries of the ledger, each with its phase, activity and line of code."""

from __future__ import annotations

from itertools import groupby

from aitop.model.ledger import ACTIVITIES, Entry, Lane, Ledger
from aitop.model.units import duration
from aitop.ui.state import View, matches
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT, TEXT, phase_of
from aitop.ui.widgets.bars import bar
from aitop.ui.widgets.line import Line, rule, shorten, shorten_left
from aitop.ui.widgets.pane import WHOLE_JOB, Drawing, Pane
from aitop.ui.words import one_line, place, share_text

LANES: dict[Lane, str] = {
    "main": "the thread that does the work",
    "producers": "loader workers and other producers",
}
PHASE_CELLS, ACTIVITY_CELLS, SECONDS_CELLS = 12, 17, 8
MOST_BAR, LEAST_BAR, LEAST_PLACE = 16, 3, 14
LEAST_SHARE = 0.005
"""Entries with a smaller share (0..1) are left out."""


class LedgerPane(Pane):
    """The entries of the main lane, the largest first, and below them those of loader workers and other producers."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        ledgers, pids = view.snapshot.ledgers if view.snapshot else (), view.pids()
        own = next((ledger for ledger in ledgers if pids is None or ledger.pid in pids), None)
        ledger = own or next(iter(ledgers), None)
        if ledger is None:
            return Drawing([Line("nothing was seen yet of where the time goes", DIM)], "Time")
        everything = (entry for lane in LANES for entry in ledger.account(lane))
        entries = [entry for entry in everything if entry.share >= LEAST_SHARE and _wanted(entry, view.filter)]
        lines: list[Line] = []
        longest = max((len(_place(entry)) for entry in entries), default=0)
        timed = any(entry.seconds is not None for entry in entries)
        for lane, of_lane in groupby(entries, key=lambda entry: entry.lane):
            if lines or lane != "main":
                lines.append(rule(LANES[lane], width))
            lines += [entry_line(entry, width, longest, timed=timed) for entry in of_lane]
        note = Line(f"pid {ledger.pid}", DIM) if len(view.ranks()) > 1 else None
        # A process that does not lead any work has no ledger of its own.
        scope = None if own is not None else WHOLE_JOB
        if not lines and view.filter:
            lines.append(Line(f"nothing here matches {one_line(view.filter)}", DIM))
        return Drawing(lines, f"Time · {_unit(ledger)}", note, view.stale("stacks"), scope=scope)


def _unit(ledger: Ledger) -> str:
    """The unit of the ledger in words. Requests overlap, so theirs is the time from one request to the next."""
    if ledger.unit == "second":
        return "wall time"
    unit = f"{'an' if ledger.unit == 'iteration' else 'a'} {ledger.unit}"
    if ledger.length is None:
        return unit
    length = duration(ledger.length)
    return f"{unit} every {length}" if ledger.unit == "request" else f"{length} {unit}"


def entry_line(entry: Entry, width: int, longest: int, *, timed: bool) -> Line:
    """An entry: share, a bar in the hue of the phase, phase, activity, seconds per unit if there is room, and line.

    `longest` is the length of the longest place (file:line) in the list. `timed` says whether any entry has seconds.
    """
    phase, name = phase_of(entry.phase), "host code" if entry.phase == "host" else entry.phase
    spare = width - (5 + PHASE_CELLS + 1 + ACTIVITY_CELLS + 1) - max(LEAST_PLACE, min(longest, width // 3))
    timed = timed and spare >= SECONDS_CELLS + LEAST_BAR + 2
    cells = min(MOST_BAR, spare - 1 - (SECONDS_CELLS + 1 if timed else 0))
    line = Line(share_text(entry.share), BRIGHT).add(" ")
    if cells >= LEAST_BAR:
        line.join(bar(entry.share, cells, phase.ink)).add(" ")
    # This block shows the hue of the phase even if there is no room for the bar.
    line.join(Line("▌", phase.ink).add(name, TEXT).fit(PHASE_CELLS)).add(" ")
    line.join(Line(ACTIVITIES[entry.activity], TEXT).fit(ACTIVITY_CELLS)).add(" ")
    if timed:
        line.add(duration(entry.seconds).rjust(SECONDS_CELLS), DIM).add(" ")
    line.add(shorten_left(_place(entry), width - line.width), BRIGHT)
    function = one_line(entry.where.function) if entry.where is not None else ""
    room = width - line.width - 2
    return line.add("  ").add(shorten(function, room), FAINT) if function and room >= 8 else line


def _place(entry: Entry) -> str:
    return place(entry.where) if entry.where is not None else ""


def _wanted(entry: Entry, text: str) -> bool:
    where = entry.where
    places = (where.file, where.function, where.text) if where is not None else ()
    return matches(text, entry.phase, ACTIVITIES[entry.activity], *places)
