"""All stacks of one moment, threads that stand in the same place together."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.stacks.groups import StackGroup, most_seen, stack_groups
from aitop.stacks.origin import origin_of
from aitop.ui.editor import edit
from aitop.ui.feeds import Dumpable
from aitop.ui.messages import in_background
from aitop.ui.panes.code.hot_lines import Place
from aitop.ui.panes.header import Header
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, CODE_KIND, DIM, FAINT, GAIN, STATE_DENIED, TEXT
from aitop.ui.widgets.line import Line, columns, lit, shorten, shorten_left, spread, wrap
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import base_name, one_line, plural

if TYPE_CHECKING:
    from aitop.engine.feed import Feed


_ROLES = {"rank": "main", "loader-worker": "worker"}
COUNT, PLACE, STATE = 11, 26, 9


class GroupList(Pane):
    """One line a group, the largest first. `doing` is said while a look is taken, `problem` why there is none."""

    groups: tuple[StackGroup, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()
    selected = 0
    doing = ""
    problem = ""
    when = ""

    def notes(self) -> list[Line]:
        """The lines above the groups."""
        lines = [Line(self.doing, DIM)] if self.doing and not self.groups else []
        lines += [Line(self.problem, STATE_DENIED)] if self.problem else []
        return lines + [Line(f"no stacks of {pid}: {why}", STATE_DENIED) for pid, why in self.refused]

    def draw(self, view: View, width: int, height: int) -> Drawing:
        roles = _roles(view)
        notes = [Line(text, line.spans[0][1]) for line in self.notes() for text in wrap(line.text, width)]
        row = self.selected + len(notes)
        self.top = max(0, min(self.top, row), row - height + 1)
        rows = [_group_line(group, roles, width, number == self.selected) for number, group in enumerate(self.groups)]
        threads = sum(len(group.members) for group in self.groups)
        title = "Stacks" + (
            f" · {self.doing}" if self.doing and self.groups else f" · {self.when}" if self.when else ""
        )
        note = Line(f"{plural(threads, 'thread')} · ↑↓ choose · ⏎ whole stack · S look again · esc back", DIM)
        return Drawing([*notes, *rows], title, note)


class GroupPane(Pane):
    """Who is in the group, and the stack that they all have, the innermost frame first."""

    group: StackGroup | None = None

    def draw(self, view: View, width: int, height: int) -> Drawing:
        group = self.group
        if group is None:
            return Drawing([], "Stack")
        roles = _roles(view)
        lines = [line for member in group.members for line in [_member_line(member, roles, width)]]
        lines.append(Line())
        lines += [_frame_line(frame, frame is group.where, width) for frame in reversed(group.frames)]
        return Drawing(lines, f"{one_line(group.what)} · {plural(len(group.members), 'thread')}")


def _roles(view: View) -> dict[int, str]:
    """What each process is, in a word or two."""
    host = view.snapshot.host if view.snapshot else None
    found: dict[int, str] = {}
    for process in host.processes if host else ():
        name = _ROLES.get(process.role, process.role)
        many = process.rank is not None and len(view.ranks()) > 1
        found[process.pid] = f"{name} {process.rank}" if many else name
    return found


def _group_line(group: StackGroup, roles: dict[int, str], width: int, selected: bool) -> Line:
    place = group.place
    count = Line("▸" if selected else " ", BRIGHT).add(f"{len(group.members):3d}", BRIGHT)
    count.add(" threads" if len(group.members) > 1 else " thread", DIM)
    where = Line("at ", DIM).add(shorten_left(f"{base_name(place.file)}:{place.line}", PLACE - 3), TEXT)
    cells = [(count, COUNT + 1)]
    room = width - COUNT - 1 - PLACE - STATE - 6
    who = _who(group.members, roles)
    what_width = max(14, min(36, room // 2)) if room >= 30 else max(10, room)
    cells += [(Line(shorten(one_line(group.what), what_width), BRIGHT if group.where else TEXT), what_width)]
    cells += [(where, PLACE), (_state(group.members), STATE)]
    if room - what_width >= 10:
        cells.append((Line(shorten(who, room - what_width - 2), DIM), room - what_width - 2))
    line = columns(cells).fit(width)
    return lit(line) if selected else line


def _who(members: tuple[ThreadStack, ...], roles: dict[int, str]) -> str:
    counts = Counter(_name(member, roles) for member in members)
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in counts.items())


def _name(member: ThreadStack, roles: dict[int, str]) -> str:
    role = roles.get(member.pid, "process")
    return role if member.main else f"{one_line(member.thread)} of {role}"


def _state(members: tuple[ThreadStack, ...]) -> Line:
    """What the group does as a whole: its holder of the interpreter's lock counts most."""
    if any(member.gil for member in members):
        return Line("has GIL", GAIN)
    active = sum(bool(member.active) for member in members)
    if not active:
        return Line("idle" if any(member.active is not None for member in members) else "–", FAINT)
    return Line("at work" if active == len(members) else f"{active} at work", TEXT)


def _member_line(member: ThreadStack, roles: dict[int, str], width: int) -> Line:
    line = Line(str(member.pid).rjust(8), TEXT).add("  ").join(Line(roles.get(member.pid, "process"), TEXT).fit(14))
    line.add("  ").join(Line(one_line(member.thread), BRIGHT if member.main else TEXT).fit(max(12, width - 44)))
    return line.add("  ").join(_state((member,)))


def _frame_line(frame: Frame, guilty: bool, width: int) -> Line:
    kind = CODE_KIND[origin_of(frame.file, frame.user)]
    left = Line("▌", kind.ink).add(" ").add(one_line(frame.function), BRIGHT if frame.user else TEXT)
    left.add(f"  {base_name(frame.file)}:{frame.line}", TEXT if frame.user else DIM)
    if frame.text:
        left.add("  ").add(one_line(frame.text), DIM)
    room = width - left.width - 2
    right = Line(shorten_left(frame.file, room), FAINT) if room > 20 and not frame.text else Line()
    line = spread(left, right, width)
    return lit(line) if guilty else line


class Dumped(Message):
    """All stacks, or why there are none."""

    def __init__(self, dump: StackDump | None, error: BaseException | None = None) -> None:
        super().__init__()
        self.dump = dump
        self.error = error


class StacksSeen(NamedTuple):
    """Stacks to show, when they were read (in words), and why there are no newer ones (empty where they are new)."""

    dump: StackDump | None
    when: str = ""
    problem: str = ""


def read_stacks(screen: Screen[None], feed: Feed, live: bool) -> bool:
    """Read all stacks off the UI thread and post Dumped to the screen; False where this feed cannot be read now."""
    if not (live and isinstance(feed, Dumpable)):
        return False

    def work() -> Message:
        try:
            return Dumped(feed.dump())
        except Exception as error:
            return Dumped(None, error)

    in_background(screen, "dump", work)
    return True


def stacks_seen(view: View, answer: Dumped | None) -> StacksSeen:
    """The stacks just read; without an answer (None) or after an error the newest ones that the Snapshot has."""
    if answer is not None and answer.dump is not None:
        return StacksSeen(answer.dump, "of this moment")
    problem = str(answer.error) if answer is not None else "this run cannot be looked at" if view.live else ""
    snapshot = view.snapshot
    if snapshot is not None and snapshot.dump is not None:
        ago = f"{max(0.0, snapshot.time - snapshot.dump.time):.0f} s ago"
        return StacksSeen(snapshot.dump, ago if view.live else f"recorded {ago}", problem)
    if snapshot is not None and snapshot.stacks is not None:
        seconds = snapshot.stacks.seconds
        return StacksSeen(most_seen(snapshot.stacks, snapshot.time), f"most seen in {seconds:.0f} s", problem)
    return StacksSeen(None, "", problem)


class StacksScreen(Screen[None]):
    """Reads the stacks when it opens, and again when asked to. A replay shows what was recorded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "previous group"),
        Binding("down,j", "select(1)", "next group"),
        Binding("enter", "full", "the whole stack, and back to the list"),
        Binding("pageup,shift+up", "scroll(-8)", "scroll the stack"),
        Binding("pagedown,shift+down", "scroll(8)", "scroll the stack"),
        Binding("S,r", "again", "look again"),
        Binding("e", "edit", "open the line in your editor"),
        Binding("escape,q", "back", "back"),
    ]

    def __init__(self, feed: Feed, view: View) -> None:
        super().__init__()
        self._feed = feed
        self._full = False
        self.view = view

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield GroupList(id="groups", focusable=False)
        yield GroupPane(id="group", focusable=False)

    def on_mount(self) -> None:
        self.action_again()

    def on_resize(self, event: events.Resize) -> None:
        self._show()

    def on_dumped(self, message: Dumped) -> None:
        self._take(message)

    def action_again(self) -> None:
        """Read the stacks."""
        if read_stacks(self, self._feed, self.view.live):
            self.query_one(GroupList).doing = "looking at every thread…"
            self._show()
        else:
            self._take(None)

    def action_select(self, by: int) -> None:
        listing, pane = self.query_one(GroupList), self.query_one(GroupPane)
        listing.selected = max(0, min(len(listing.groups) - 1, listing.selected + by))
        pane.group = listing.groups[listing.selected] if listing.groups else None
        if by:
            pane.top = 0
        self._show()

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

    def action_edit(self) -> None:
        listing = self.query_one(GroupList)
        group = self.query_one(GroupPane).group
        if group is not None:
            place = group.place
            listing.problem = edit(self.app, Place(group.members[0].pid, place.file, place.line, place.function))
            self._show()

    def _take(self, answer: Dumped | None) -> None:
        """Show these stacks, or why there are none."""
        seen, listing = stacks_seen(self.view, answer), self.query_one(GroupList)
        dump = seen.dump
        listing.groups = stack_groups(dump) if dump is not None else ()
        listing.refused = dump.refused if dump is not None else ()
        none = "" if dump is not None else "the recording has no stacks up to here"
        listing.doing, listing.problem, listing.when = "", seen.problem or none, seen.when
        self.action_select(0)

    def _show(self) -> None:
        listing, pane, header = self.query_one(GroupList), self.query_one(GroupPane), self.query_one(Header)
        small = self.size.height < 12
        header.display = not small
        listing.display = not self._full
        pane.display = self._full or (bool(listing.groups) and not small)
        rows = len(listing.groups) + len(listing.notes())
        listing.styles.height = max(3, min(rows + 2, self.size.height * 2 // 5)) if pane.display else "1fr"
        for part in (header, listing, pane):
            part.show(self.view)
