"""Where the time goes: the heaviest entries of the ledger as rows of words, for the reports that people read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aitop.model.ledger import ACTIVITIES, Entry, Lane, Ledger
from aitop.model.snapshot import Snapshot
from aitop.model.steps import Kind
from aitop.model.units import duration, percent, plural
from aitop.model.verdict import Where

MAIN_ROWS = 6
SIDE_ROWS = 3
PROCESS_ROWS = 8
LANES: tuple[Lane, ...] = ("main", "producers")
# Lighter entries are not listed.
LEAST_SHARE = 0.01


class Row(NamedTuple):
    """One entry in words. `place` is file:line function, empty where no line is known; `source` the line's text."""

    share: float
    phase: str
    activity: str
    place: str
    source: str


class Table(NamedTuple):
    """Rows under a title, heaviest first. `rest` says what is not listed, empty where everything is."""

    title: str
    rows: tuple[Row, ...]
    rest: str


def tables(snapshot: Snapshot) -> list[Table]:
    """A table for each lane of the first working process, and one with a row for each other process.

    Empty without ledgers.
    """
    ledgers = [ledger for ledger in snapshot.ledgers if ledger.entries]
    if not ledgers:
        return []
    first, *others = ledgers
    lanes = [(lane, first.account(lane)) for lane in LANES]
    made = [_lane_table(_title(first, lane, snapshot.kind), lane, entries) for lane, entries in lanes if entries]
    return [*made, _process_table(others)] if others else made


def _lane_table(title: str, lane: Lane, entries: Sequence[Entry]) -> Table:
    most = MAIN_ROWS if lane == "main" else SIDE_ROWS
    heavy = [entry for number, entry in enumerate(entries[:most]) if number == 0 or entry.share >= LEAST_SHARE]
    left_out = entries[len(heavy) :]
    share = sum(entry.share for entry in left_out)
    entries_left = plural(len(left_out), "lighter entry", "lighter entries")
    rest = f"{percent(share) if share >= LEAST_SHARE else '<1 %'} in {entries_left}" if left_out else ""
    return Table(title, tuple(map(_row, heavy)), rest)


def of_producers(kind: Kind) -> str:
    """The title of the lane "producers" in a process of this kind."""
    return "What makes its data" if kind == "training" else "What its other threads and processes do"


def _title(ledger: Ledger, lane: Lane, kind: Kind) -> str:
    if lane == "producers":
        return of_producers(kind)
    thread = ledger.thread if ledger.threads == 1 else f"{ledger.threads} threads like {ledger.thread}"
    length = f", {duration(ledger.length)}" if ledger.length is not None and ledger.unit != "second" else ""
    article = "an" if ledger.unit == "iteration" else "a"
    unit = "" if ledger.unit == "second" else f" of {article} {ledger.unit}"
    return f"Where the time{unit} goes (pid {ledger.pid}, {thread}{length})"


def _process_table(ledgers: Sequence[Ledger]) -> Table:
    rows = []
    for ledger in ledgers:
        entry = (ledger.account("main") or ledger.account("producers"))[0]
        rows.append(_row(entry)._replace(place=f"pid {ledger.pid}  {_place(entry.where)}".rstrip()))
    more = len(rows) - PROCESS_ROWS
    rest = f"and {more} more processes" if more > 1 else "and one more process" if more == 1 else ""
    return Table("Most of the time of the other working processes", tuple(rows[:PROCESS_ROWS]), rest)


def _row(entry: Entry) -> Row:
    source = entry.where.text if entry.where is not None and entry.where.text else ""
    return Row(entry.share, entry.phase, ACTIVITIES[entry.activity], _place(entry.where), source.strip())


def _place(place: Where | None) -> str:
    """A place as `train.py:41 main`, empty without one. The JSON report has the whole path."""
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line} {place.function}" if place is not None else ""
