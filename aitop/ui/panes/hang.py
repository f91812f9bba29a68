"""The ranks by where they stand: who is the odd one, and a row for each place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aitop.diagnosis.conditions.hang import Odd, named, odd_one
from aitop.diagnosis.conditions.hang_notes import noted
from aitop.model.ranks import Standing, Standstill
from aitop.model.snapshot import Snapshot
from aitop.model.stacks import Frame
from aitop.model.units import duration
from aitop.ui.line import Line, columns, lit, shorten, wrap
from aitop.ui.palette import BRIGHT, DIM, FAINT, GAIN, LOSS, LOSS_LABEL, STATE_DENIED, TEXT
from aitop.ui.view import View
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import base_name, confidence_dots, confidence_words, one_line, plural

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


@dataclass(frozen=True)
class Place:
    """Ranks, or workers of one role, that stand on the same line in the same call."""

    members: tuple[Standing, ...]
    odd: bool

    @property
    def one(self) -> Standing:
        """Any of them, for what they have in common."""
        return self.members[0]

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The stack of the first one, the outermost frame first."""
        return self.one.frames


def places(still: Standstill, odd: Odd) -> tuple[Place, ...]:
    """Those of the odd one first, then the largest; workers that have nothing to do are left out."""
    groups: dict[tuple[object, ...], list[Standing]] = {}
    busy = [worker for worker in still.workers if worker.doing not in ("unused", None)]
    # Beside the odd ones also stands who shows what they left out.
    odd_ones = {one.pid for one in odd.standing if not odd.ranks or one.rank in odd.ranks}
    for one in (*still.ranks, *busy):
        key = (one.pid in odd_ones, one.role, one.doing, one.call, one.where and (one.where.file, one.where.line))
        groups.setdefault(key, []).append(one)
    found = [Place(tuple(members), bool(key[0])) for key, members in groups.items()]
    return tuple(sorted(found, key=lambda place: (not place.odd, place.one.role != "rank", -len(place.members))))


class StandingPane(Pane):
    """The odd one in words, then a line a place. `doing` is said while a look is taken, `problem` why there is none."""

    still: Standstill | None = None
    odd: Odd | None = None
    groups: tuple[Place, ...] = ()
    selected = 0
    native: Mapping[int, Sequence[str]] = {}
    doing = ""
    problem = ""
    when = ""

    def take(self, still: Standstill | None) -> None:
        """What a look has shown; None: nothing."""
        self.native = {}
        self.still = still
        self.odd = odd_one(still) if still is not None and (still.ranks or still.gone) else None
        self.groups = places(still, self.odd) if still is not None and self.odd is not None else ()

    def told(self, view: View, width: int) -> list[Line]:
        """What stands above the places."""
        lines = [Line(self.problem, STATE_DENIED)] if self.problem else []
        if self.still is None or self.odd is None:
            return [*lines, Line(self.doing or "no rank has been looked at yet", DIM)]
        moving = self.still.seconds <= 0
        lines.append(_how_still(self.still, view.snapshot))
        mark = Line("if it hangs ", DIM) if moving else Line(" HANG ", LOSS_LABEL).add(" ")
        rest = width - mark.width
        for number, text in enumerate(wrap(one_line(self.odd.title), max(20, rest))):
            start = mark if number == 0 else Line(" " * mark.width)
            lines.append(start.add(text, TEXT if moving else BRIGHT))
        sure = Line("sure ", DIM).join(confidence_dots(self.odd.confidence))
        lines.append(sure.add(f"  {confidence_words(self.odd.confidence)}", DIM))
        if self.odd.fix:
            lines += [
                Line("→ " if not number else "  ", GAIN).add(text, TEXT)
                for number, text in enumerate(wrap(one_line(self.odd.fix), max(20, width - 2)))
            ]
        if view.snapshot is not None and not moving:
            lines += [
                Line(shorten(one_line(text), width), DIM) for text in noted(self.still, view.snapshot)[:MOST_NOTES]
            ]
        for place in self.groups:
            frames = self.native.get(place.one.pid)
            if frames is not None:
                told = " ← ".join(one_line(name) for name in frames) or "nothing: it is in Python code"
                start = Line(f"below Python, {named(place.members[:1])}: ", DIM)
                lines.append(start.add(shorten(told, max(12, width - start.width)), TEXT))
        return [*lines, Line()]

    def draw(self, view: View, width: int, height: int) -> Drawing:
        above = self.told(view, width)
        rows = [_row(place, width, number == self.selected) for number, place in enumerate(self.groups)]
        row = len(above) + self.selected
        self.top = max(0, min(self.top, row), row - height + 1) if self.selected else 0
        title = "Where the ranks stand" + (f" · {self.doing}" if self.doing else f" · {self.when}" if self.when else "")
        return Drawing(
            [*above, *rows], title, Line("↑↓ choose · ⏎ whole stack · h look again · n below Python · esc back", DIM)
        )


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


def _row(place: Place, width: int, selected: bool) -> Line:
    one = place.one
    line = Line("▸" if selected else " ", BRIGHT).add("▌ " if place.odd else "  ", LOSS)
    steps = [member.step for member in place.members if member.step is not None]
    step = "" if not steps else f"step {min(steps):,}" + (f"–{max(steps):,}" if max(steps) > min(steps) else "")
    where = one.where or (one.frames[-1] if one.frames else None)
    at = "" if where is None else f"{base_name(where.file)}:{where.line}"
    state = " ".join(filter(None, (one.state, one.channel)))
    room = width - line.width - WHO - PLACE - 4
    what = f"{DOINGS[one.doing]} {one_line(one.call)}" if one.call else DOINGS[one.doing]
    if one.doing == "own" and not one.call:
        what = "is in this line"
    cells = [(Line(shorten(_who(place.members), WHO), LOSS if place.odd else BRIGHT), WHO)]
    guard = f" under {one_line(one.where.guard)}" if one.where is not None and one.where.guard else ""
    spare = room - STATE - STEP - 4
    wide = spare >= 24
    cells_of_what = max(12, spare if wide else room)
    doing = Line(what, TEXT)
    cells += [(doing.add(guard, DIM) if doing.width + len(guard) <= cells_of_what else doing, cells_of_what)]
    cells += [(Line(shorten(at, PLACE), TEXT), PLACE)]
    if wide:
        cells += [(Line(step, DIM), STEP), (Line(shorten(state, STATE), FAINT), STATE)]
    line.join(columns(cells))
    return lit(line.fit(width)) if selected else line.fit(width)


def _who(members: Sequence[Standing]) -> str:
    if members[0].role != "rank":
        return f"{plural(len(members), 'worker')} of rank {members[0].rank}"
    if len(members) <= MOST_NAMED:
        return named(members)
    return f"{len(members)} ranks"
