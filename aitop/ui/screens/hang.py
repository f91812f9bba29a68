"""Where every rank stands at this moment, and which of them keeps the others waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from aitop.diagnosis.conditions.hang import Odd, named, odd_one
from aitop.diagnosis.conditions.hang_notes import noted
from aitop.engine.standstill import standing_at
from aitop.model.ranks import Standing, Standstill
from aitop.model.snapshot import Snapshot
from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.model.units import duration
from aitop.stacks.groups import grouped
from aitop.ui.feeds import NativeDumpable
from aitop.ui.messages import in_background
from aitop.ui.panes.header import Header
from aitop.ui.screens.stacks import Dumped, GroupPane, read_stacks, stacks_seen
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT, GAIN, LOSS, LOSS_LABEL, STATE_DENIED, TEXT
from aitop.ui.widgets.line import Line, columns, lit, shorten, wrap
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import base_name, confidence_dots, confidence_words, one_line, plural

if TYPE_CHECKING:
    from aitop.engine.feed import Feed

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
class StandingPlace:
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


def places(still: Standstill, odd: Odd) -> tuple[StandingPlace, ...]:
    """Those of the odd one first, then the largest; workers that have nothing to do are left out."""
    groups: dict[tuple[object, ...], list[Standing]] = {}
    busy = [worker for worker in still.workers if worker.doing not in ("unused", None)]
    # Beside the odd ones also stands who shows what they left out.
    odd_ones = {one.pid for one in odd.standing if not odd.ranks or one.rank in odd.ranks}
    for one in (*still.ranks, *busy):
        key = (one.pid in odd_ones, one.role, one.doing, one.call, one.where and (one.where.file, one.where.line))
        groups.setdefault(key, []).append(one)
    places_found = [StandingPlace(tuple(members), bool(key[0])) for key, members in groups.items()]
    return tuple(sorted(places_found, key=lambda place: (not place.odd, place.one.role != "rank", -len(place.members))))


class StandingPane(Pane):
    """The odd one in words, then a line a place. `doing` is said while a look is taken, `problem` why there is none."""

    still: Standstill | None = None
    odd: Odd | None = None
    groups: tuple[StandingPlace, ...] = ()
    selected = 0
    native: Mapping[int, Sequence[str]] = {}
    doing = ""
    problem = ""
    when = ""

    def take(self, still: Standstill | None) -> None:
        """Take what was seen; None: nothing."""
        self.native = {}
        self.still = still
        self.odd = odd_one(still) if still is not None and (still.ranks or still.gone) else None
        self.groups = places(still, self.odd) if still is not None and self.odd is not None else ()

    def lines_above(self, view: View, width: int) -> list[Line]:
        """The lines above the list of places."""
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
                names = " ← ".join(one_line(name) for name in frames) or "nothing: it is in Python code"
                start = Line(f"below Python, {named(place.members[:1])}: ", DIM)
                lines.append(start.add(shorten(names, max(12, width - start.width)), TEXT))
        return [*lines, Line()]

    def draw(self, view: View, width: int, height: int) -> Drawing:
        above = self.lines_above(view, width)
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


def _row(place: StandingPlace, width: int, selected: bool) -> Line:
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


SMALL_ROWS = 14
MOST_NATIVE = 4


class NativeSeen(Message):
    """The frames below Python by pid, or why there are none."""

    def __init__(self, frames: dict[int, tuple[str, ...]], problem: str = "") -> None:
        super().__init__()
        self.frames = frames
        self.problem = problem


class HangScreen(Screen[None]):
    """Looks when it opens, and again when asked to. A replay shows what was recorded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "previous place"),
        Binding("down,j", "select(1)", "next place"),
        Binding("enter", "full", "the whole stack, and back to the list"),
        Binding("pageup,shift+up", "scroll(-8)", "scroll the stack"),
        Binding("pagedown,shift+down", "scroll(8)", "scroll the stack"),
        Binding("h,H,r", "again", "look again"),
        Binding("n", "native", "what these ranks are in below Python; stops them for a moment"),
        Binding("escape,q", "back", "back"),
    ]

    def __init__(self, feed: Feed, view: View) -> None:
        super().__init__()
        self._feed = feed
        self._full = False
        self.view = view

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield StandingPane(id="standing", focusable=False)
        yield GroupPane(id="group", focusable=False)

    def on_mount(self) -> None:
        self.action_again()

    def on_resize(self, event: events.Resize) -> None:
        self._show()

    def on_dumped(self, message: Dumped) -> None:
        self._take(message)

    def action_again(self) -> None:
        """Read the stacks of every rank."""
        if read_stacks(self, self._feed, self.view.live):
            self.query_one(StandingPane).doing = "looking at every rank…"
            self._show()
        else:
            self._take(None)

    def action_native(self) -> None:
        """Look below Python at one rank of each place, off this thread."""
        pane, feed = self.query_one(StandingPane), self._feed
        if not (self.view.live and isinstance(feed, NativeDumpable)) or not pane.groups:
            return
        pids = [place.one.pid for place in pane.groups[:MOST_NATIVE]]
        pane.doing = "looking below Python…"
        self._show()

        def work() -> Message:
            try:
                return NativeSeen(feed.native(pids))
            except Exception as error:
                return NativeSeen({}, str(error))

        in_background(self, "native", work)

    def on_native_seen(self, message: NativeSeen) -> None:
        pane = self.query_one(StandingPane)
        pane.native, pane.problem, pane.doing = message.frames, message.problem, ""
        self._show()

    def _take(self, answer: Dumped | None) -> None:
        """Show where the ranks stand, or why that is not known."""
        seen, pane, snapshot = stacks_seen(self.view, answer), self.query_one(StandingPane), self.view.snapshot
        dump = seen.dump or StackDump(time=0.0, frames=(), threads=())
        pane.take(standing_at(snapshot, dump) if snapshot is not None else None)
        refused = [f"no stack of {pid}: {why}" for pid, why in dump.refused]
        pane.doing, pane.problem, pane.when = "", seen.problem or "; ".join(refused), seen.when
        self.action_select(0)

    def action_scroll(self, by: int) -> None:
        self.query_one(GroupPane).action_scroll_by(by)

    def action_full(self) -> None:
        self._full = not self._full and self.query_one(GroupPane).group is not None
        self._show()

    def action_back(self) -> None:
        if self._full:
            self.action_full()
        else:
            self.dismiss()

    def action_select(self, by: int) -> None:
        pane, stack = self.query_one(StandingPane), self.query_one(GroupPane)
        pane.selected = max(0, min(len(pane.groups) - 1, pane.selected + by))
        place = pane.groups[pane.selected] if pane.groups else None
        stack.group = None
        if place is not None and place.frames:
            members = [ThreadStack(pid=one.pid, thread="MainThread", main=True, frames=()) for one in place.members]
            stack.group = grouped(place.frames, members)
        if by:
            stack.top = 0
        self._show()

    def _show(self) -> None:
        pane, stack, header = self.query_one(StandingPane), self.query_one(GroupPane), self.query_one(Header)
        small = self.size.height < SMALL_ROWS
        header.display = not small
        pane.display = not self._full
        stack.display = self._full or (stack.group is not None and not small)
        rows = len(pane.groups) + len(pane.lines_above(self.view, max(20, self.size.width - 4))) + 2
        pane.styles.height = max(4, min(rows, self.size.height * 3 // 5)) if stack.display else "1fr"
        for one in (header, pane, stack):
            one.show(self.view)
