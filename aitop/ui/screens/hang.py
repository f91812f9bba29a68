"""The hang screen: the line on which every rank is now, and the rank that the others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec
from textual.binding import Binding, BindingType

from aitop.diagnosis.conditions.hang import Odd, named, noted, odd_one
from aitop.engine.feed import Feed, LazyFeed
from aitop.engine.snapshot.standstill import standing_at
from aitop.model.ranks import Standing, Standstill
from aitop.model.snapshot import Snapshot
from aitop.model.stacks import StackDump, ThreadStack
from aitop.model.units import duration, plural
from aitop.stacks.groups import StackGroup, grouped
from aitop.ui.messages import in_background
from aitop.ui.screens.stacks import StackList, StackScreen
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT, GAIN, LOSS, SEVERITY_LABELS, STATE_DENIED, TEXT
from aitop.ui.widgets.line import Line, columns, hanging, shorten, wrapped
from aitop.ui.words import confidence_dots, confidence_words, one_line, place

MOVED_SECONDS = 3.0
WHO, PLACE, STATE, STEP = 18, 20, 18, 12
MOST_NAMED = 6
MOST_NOTES = 4
DOINGS = {
    None: "its stack is not known",
    "collective": "waits in",
    "loading": "waits for its",
    "fetching": "fetches in",
    "unused": "has no work",
    "sleeping": "sleeps in",
    "serving": "waits for requests in",
    "own": "is in",
}


class StandingPlace(msgspec.Struct, frozen=True):
    """Ranks, or workers of one rank, that are on the same line in the same call. `odd`: the others wait for them."""

    members: tuple[Standing, ...]
    odd: bool

    @property
    def first(self) -> Standing:
        return self.members[0]


def places(still: Standstill, odd: Odd) -> tuple[StandingPlace, ...]:
    """The places where processes stand: first those that the others wait for, then ranks, the largest groups first.

    Workers without work, or with an unknown stack, are left out.
    """
    groups: dict[tuple[object, ...], list[Standing]] = {}
    busy = [worker for worker in still.workers if worker.doing not in ("unused", None)]
    # `odd.standing` may also have other ranks, which are only there to show which call the odd ones have skipped.
    odd_pids = {standing.pid for standing in odd.standing if not odd.ranks or standing.rank in odd.ranks}
    for rank in (*still.ranks, *busy):
        line = rank.where and (rank.where.file, rank.where.line)
        fed = rank.rank if rank.role != "rank" else None
        key = (rank.pid in odd_pids, rank.role, fed, rank.doing, rank.call, line)
        groups.setdefault(key, []).append(rank)
    standing = [StandingPlace(tuple(members), bool(key[0])) for key, members in groups.items()]
    return tuple(sorted(standing, key=lambda place: (not place.odd, place.first.role != "rank", -len(place.members))))


class StandingPane(StackList[StandingPlace]):
    """Says in words who keeps the others waiting, then lists the places, one per line."""

    heading = "Where the ranks stand"
    still: Standstill | None = None
    odd: Odd | None = None
    native: Mapping[int, Sequence[str]] = {}

    def set_standstill(self, still: Standstill | None) -> None:
        self.native = {}
        self.still = still
        self.odd = odd_one(still) if still is not None and (still.ranks or still.gone) else None
        self.entries = places(still, self.odd) if still is not None and self.odd is not None else ()

    def above(self, view: View, width: int) -> list[Line]:
        lines = wrapped(self.problem, width, STATE_DENIED)
        if self.still is None or self.odd is None:
            return [*lines, Line(self.doing or "no rank has been looked at yet", DIM)]
        moving = self.still.seconds <= 0
        lines.append(_how_still(self.still, view.snapshot))
        mark = Line("if it hangs ", DIM) if moving else Line(" HANG ", SEVERITY_LABELS["critical"]).add(" ")
        lines += hanging(mark, one_line(self.odd.title), width, TEXT if moving else BRIGHT)
        sure = Line("sure ", DIM).join(confidence_dots(self.odd.confidence))
        lines.append(sure.add(f"  {confidence_words(self.odd.confidence)}", DIM))
        if self.odd.fix:
            lines += hanging(Line("→ ", GAIN), one_line(self.odd.fix), width)
        if view.snapshot is not None and not moving:
            notes = noted(self.still, view.snapshot)[:MOST_NOTES]
            lines += [Line(shorten(one_line(text), width), DIM) for text in notes]
        for standing in self.entries:
            frames = self.native.get(standing.first.pid)
            if frames is not None:
                names = " ← ".join(one_line(name) for name in frames) or "nothing: it is in Python code"
                start = Line(f"below Python, {named(standing.members[:1])}: ", DIM)
                lines.append(start.add(shorten(names, max(12, width - start.width)), TEXT))
        return [*lines, Line()]

    def row(self, entry: StandingPlace, view: View, width: int) -> Line:
        first, ink, number = entry.first, LOSS if entry.odd else BRIGHT, len(entry.members)
        who = named(entry.members) if number <= MOST_NAMED else f"{number} ranks"
        if first.role != "rank":
            # The rank comes first, so that it can still be read where the text is cut.
            who = f"{'' if first.rank is None else f'rank {first.rank}: '}{plural(number, 'worker')}"
        line = Line("▌ " if entry.odd else "  ", LOSS)
        steps = [member.step for member in entry.members if member.step is not None]
        step = "" if not steps else f"step {min(steps):,}" + (f"–{max(steps):,}" if max(steps) > min(steps) else "")
        where = first.where or (first.frames[-1] if first.frames else None)
        state = " ".join(filter(None, (first.state, first.channel)))
        what = f"{DOINGS[first.doing]} {one_line(first.call)}" if first.call else DOINGS[first.doing]
        if first.doing == "own" and not first.call:
            what = "is in this line"
        guard = f" under {one_line(first.where.guard)}" if first.where is not None and first.where.guard else ""
        room = width - line.width - WHO - PLACE - 4
        spare = room - STATE - STEP - 4
        wide = spare >= 24
        cells_of_what = max(12, spare if wide else room)
        doing = Line(what, TEXT)
        cells = [
            (Line(shorten(who, WHO), ink), WHO),
            (doing.add(guard, DIM) if doing.width + len(guard) <= cells_of_what else doing, cells_of_what),
            (Line(shorten(place(where) if where is not None else "", PLACE), TEXT), PLACE),
        ]
        if wide:
            cells += [(Line(step, DIM), STEP), (Line(shorten(state, STATE), FAINT), STATE)]
        return line.join(columns(cells))

    def note(self, view: View) -> str:
        below = " · n below Python" if view.live else ""
        return f"↑↓ choose · ⏎ whole stack · h look again{below} · esc back"


def _how_still(still: Standstill, snapshot: Snapshot | None) -> Line:
    if still.seconds > 0:
        line = Line(f"nothing has run for {duration(still.seconds)}", BRIGHT)
        if still.usual is not None:
            line.add(f" · the longest step before took {duration(still.usual)}", DIM)
        return line
    steps = snapshot.steps.recent if snapshot and snapshot.steps else ()
    if snapshot is not None and steps and snapshot.time - steps[-1].end < MOVED_SECONDS:
        return Line(f"the ranks get on: the last step ended {duration(snapshot.time - steps[-1].end)} ago", TEXT)
    return Line("not known to hang: no long enough standstill was seen so far", TEXT)


MOST_NATIVE = 4


class HangScreen(StackScreen[StandingPlace]):
    """Shows where every rank stands, with ranks in the same place as one entry."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h,H,r", "again", "look again"),
        Binding("n", "native", "what these ranks are in below Python; stops them for a moment"),
    ]
    listing: StandingPane

    def __init__(self, feed: Feed, view: View) -> None:
        super().__init__(feed, view, StandingPane(id="standing"))

    def show_dump(self, dump: StackDump | None) -> None:
        snapshot = self.view.snapshot
        dump = dump or StackDump(time=0.0, frames=(), threads=())
        self.listing.set_standstill(standing_at(snapshot, dump) if snapshot is not None else None)
        if not self.listing.problem:
            self.listing.problem = "; ".join(f"no stack of {pid}: {why}" for pid, why in dump.refused)

    def group_of(self, entry: StandingPlace) -> StackGroup | None:
        members = [ThreadStack(pid=member.pid, thread="MainThread", main=True, frames=()) for member in entry.members]
        return grouped(entry.first.frames, members) if entry.first.frames else None

    def action_native(self) -> None:
        """Read the native stack of one process of each of the first MOST_NATIVE places."""
        feed = self._feed
        if not isinstance(feed, LazyFeed) or not self.listing.entries or self.listing.doing:
            return
        pids = [place.first.pid for place in self.listing.entries[:MOST_NATIVE]]
        self.listing.doing = "looking below Python…"
        in_background(self, "native", lambda: feed.made().native(pids), self._native_seen)
        self.show()

    def _native_seen(self, answer: dict[int, tuple[str, ...]] | Exception) -> None:
        self.listing.native, self.listing.problem, self.listing.doing = {}, "", ""
        if isinstance(answer, Exception):
            self.listing.problem = str(answer)
        else:
            self.listing.native = answer
        self.show()
