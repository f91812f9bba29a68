"""The stacks screen: the stacks of all threads at one moment, with equal stacks grouped."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType

from aitop.engine.feed import Feed, LazyFeed
from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.model.units import plural
from aitop.stacks.groups import StackGroup, most_seen, stack_groups
from aitop.stacks.origin import origin_of
from aitop.ui.editor import edit
from aitop.ui.messages import in_background
from aitop.ui.screens.headed import HeadedScreen
from aitop.ui.state import ROLE_NAMES, View
from aitop.ui.theme.palette import BRIGHT, CODE_KIND, DIM, FAINT, GAIN, STATE_DENIED, TEXT
from aitop.ui.widgets.line import Line, columns, key_words, lit, shorten, shorten_left, spread, wrapped
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import one_line, place

COUNT, PLACE, STATE, ROLE = 11, 26, 9, 17
SMALL_ROWS = 14
Entry = TypeVar("Entry")


class StackList(Pane, Generic[Entry], can_focus=False):
    """The base of lists of threads or ranks, grouped by where they stand: one line per group, below lines of text.

    `doing` is what to say while stacks are being read, `problem` why there are none, `when` when they were read.
    """

    entries: tuple[Entry, ...] = ()
    selected = 0
    doing = ""
    problem = ""
    when = ""
    heading = ""

    def above(self, view: View, width: int) -> list[Line]:
        raise NotImplementedError

    def row(self, entry: Entry, view: View, width: int) -> Line:
        """An entry as a line, without the marker of the selected entry."""
        raise NotImplementedError

    def note(self, view: View) -> str:
        """The keys, for the right of the title."""
        raise NotImplementedError

    def draw(self, view: View, width: int, height: int) -> Drawing:
        above = self.above(view, width)
        row = len(above) + self.selected
        self.top = max(0, min(self.top, row), row - height + 1) if self.selected else 0
        rows = [self.row(entry, view, width - 1) for entry in self.entries]
        lines = [
            Line("▸" if at == self.selected else " ", BRIGHT).join(line).fit(width) for at, line in enumerate(rows)
        ]
        if lines:
            lines[self.selected] = lit(lines[self.selected])
        state = self.doing or self.when
        note = Line(key_words(self.note(view), view.appearance), DIM)
        return Drawing([*above, *lines], f"{self.heading} · {state}" if state else self.heading, note)


class GroupList(StackList[StackGroup]):
    """Groups of threads, the largest first."""

    refused: tuple[tuple[int, str], ...] = ()
    heading = "Stacks"

    def above(self, view: View, width: int) -> list[Line]:
        texts = [self.problem] if self.problem else []
        texts += [f"no stacks of {pid}: {why}" for pid, why in self.refused]
        return [line for text in texts for line in wrapped(text, width, STATE_DENIED)]

    def row(self, entry: StackGroup, view: View, width: int) -> Line:
        room = width - COUNT - PLACE - STATE - 6
        what_width = max(14, min(36, room // 2)) if room >= 30 else max(10, room)
        who, who_width = _who(entry.members, _roles(view)), room - what_width - 2
        number = len(entry.members)
        cells = [
            (Line(f"{number:3d}", BRIGHT).add(" threads" if number > 1 else " thread", DIM), COUNT),
            (Line(shorten(one_line(entry.what), what_width), BRIGHT if entry.where else TEXT), what_width),
            (Line("at ", DIM).add(shorten_left(place(entry.place), PLACE - 3), TEXT), PLACE),
            (_state(entry.members), STATE),
        ]
        return columns([*cells, (Line(shorten(who, who_width), DIM), who_width)] if who_width >= 8 else cells)

    def note(self, view: View) -> str:
        threads = sum(len(group.members) for group in self.entries)
        return f"{plural(threads, 'thread')} · ↑↓ choose · ⏎ whole stack · S look again · esc back"


class GroupPane(Pane, can_focus=False):
    """The threads of a group, and the stack that they share, with the innermost frame first."""

    group: StackGroup | None = None

    def draw(self, view: View, width: int, height: int) -> Drawing:
        group = self.group
        if group is None:
            return Drawing([], "Stack")
        roles = _roles(view)
        lines = []
        for member in group.members:
            line = Line(str(member.pid).rjust(8), TEXT).add("  ").join(Line(roles.get(member.pid, "process")).fit(ROLE))
            name = Line(one_line(member.thread), BRIGHT if member.main else TEXT).fit(max(12, width - 30 - ROLE))
            lines.append(line.add("  ").join(name).add("  ").join(_state((member,))))
        lines.append(Line())
        lines += [_frame_line(frame, frame is group.where, width) for frame in reversed(group.frames)]
        return Drawing(lines, f"{one_line(group.what)} · {plural(len(group.members), 'thread')}")


def _roles(view: View) -> dict[int, str]:
    """By pid, the role of a process in a few words, with the number of its rank if there are several."""
    several = len(view.ranks()) > 1
    roles: dict[int, str] = {}
    for process in view.processes:
        role = roles[process.pid] = ROLE_NAMES.get(process.role, process.role)
        if several and process.rank is not None:
            roles[process.pid] = f"{'' if process.role == 'rank' else f'{role} of '}rank {process.rank}"
    return roles


def _who(members: tuple[ThreadStack, ...], roles: dict[int, str]) -> str:
    known = [(roles.get(member.pid, "process"), member) for member in members]
    counts = Counter(role if member.main else f"{one_line(member.thread)} of {role}" for role, member in known)
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in counts.items())


def _state(members: tuple[ThreadStack, ...]) -> Line:
    """What the threads of a group do: "has GIL" if one of them holds it, else whether they are at work or idle."""
    if any(member.gil for member in members):
        return Line("has GIL", GAIN)
    active = sum(bool(member.active) for member in members)
    if not active:
        return Line("idle" if any(member.active is not None for member in members) else "–", FAINT)
    return Line("at work" if active == len(members) else f"{active} at work", TEXT)


def _frame_line(frame: Frame, guilty: bool, width: int) -> Line:
    kind = CODE_KIND[origin_of(frame.file, frame.user)]
    left = Line("▌", kind.ink).add(" ").add(one_line(frame.function), BRIGHT if frame.user else TEXT)
    left.add(f"  {place(frame)}", TEXT if frame.user else DIM)
    if frame.text:
        left.add("  ").add(one_line(frame.text), DIM)
    room = width - left.width - 2
    right = Line(shorten_left(frame.file, room), FAINT) if room > 20 and not frame.text else Line()
    line = spread(left, right, width)
    return lit(line) if guilty else line


class StackScreen(HeadedScreen, Generic[Entry]):
    """The base of screens with a list of groups and, below it, the stack of the selected group.

    Reads all stacks when it opens, and again when the user asks. A replay shows the recorded stacks.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "previous"),
        Binding("down,j", "select(1)", "next"),
        Binding("enter", "full", "the whole stack, and back to the list"),
        Binding("pageup,shift+up", "scroll(-8)", "scroll the stack"),
        Binding("pagedown,shift+down", "scroll(8)", "scroll the stack"),
        Binding("escape,q", "back", "back"),
    ]

    def __init__(self, feed: Feed, view: View, listing: StackList[Entry]) -> None:
        self.listing = listing
        self.stack = GroupPane(id="group")
        super().__init__(view, listing, self.stack)
        self._feed = feed
        self._full = False

    def show_dump(self, dump: StackDump | None) -> None:
        raise NotImplementedError

    def group_of(self, entry: Entry) -> StackGroup | None:
        """The stack of an entry, None if it is not known."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.action_again()

    def action_again(self) -> None:
        feed = self._feed
        if self.listing.doing:
            # A held key must not start one look after the other.
            return
        if isinstance(feed, LazyFeed):
            self.listing.doing = "looking at every thread…"
            in_background(self, "dump", lambda: feed.made().dump(), self._show_answer)
            self.show()
        else:
            self._show_answer(None)

    def _show_answer(self, answer: StackDump | Exception | None) -> None:
        """Show the stacks just read. Without an answer, or after an error, show the newest ones in the Snapshot: its
        dump, or else the stacks seen most often in the samples.
        """
        listing, snapshot, dump = self.listing, self.view.snapshot, None
        listing.doing = listing.when = listing.problem = ""
        if isinstance(answer, StackDump):
            dump, listing.when = answer, self._read_at(answer)
        elif answer is not None or self.view.live:
            listing.problem = str(answer or "this run cannot be looked at")
        if dump is None and snapshot is not None and snapshot.dump is not None:
            dump, listing.when = snapshot.dump, self._read_at(snapshot.dump)
        elif dump is None and snapshot is not None and snapshot.stacks is not None:
            dump = most_seen(snapshot.stacks, snapshot.time)
            listing.when = f"most seen in {snapshot.stacks.seconds:.0f} s"
        self.show_dump(dump)
        self.action_select(0)

    def _read_at(self, dump: StackDump) -> str:
        """The time of day when these stacks were read. It stays true however long the screen is open."""
        snapshot = self.view.snapshot
        if snapshot is None:
            return ""
        return f"read at {datetime.fromtimestamp(snapshot.wall + dump.time - snapshot.time):%H:%M:%S}"

    def action_select(self, by: int) -> None:
        entries = self.listing.entries
        self.listing.selected = max(0, min(len(entries) - 1, self.listing.selected + by))
        self.stack.group = self.group_of(entries[self.listing.selected]) if entries else None
        if by:
            self.stack.top = 0
        self.show()

    def action_scroll(self, by: int) -> None:
        self.stack.action_scroll_by(by)

    def action_full(self) -> None:
        self._full = not self._full and self.stack.group is not None
        self.show()

    def action_back(self) -> None:
        if self._full:
            self.action_full()
        else:
            self.dismiss()

    def show(self) -> None:
        """Redraw everything; the list is as high as it needs to be, within limits."""
        small = self.size.height < SMALL_ROWS
        self.header.display = not small
        self.listing.display = not self._full
        self.stack.display = self._full or (self.stack.group is not None and not small)
        above = self.listing.above(self.view, max(20, self.size.width - 4))
        rows, most = len(above) + len(self.listing.entries) + 2, self.size.height * (3 if above else 2) // 5
        self.listing.styles.height = max(4, min(rows, most)) if self.stack.display else "1fr"
        super().show()


class StacksScreen(StackScreen[StackGroup]):
    """Shows every thread, with equal stacks grouped."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("S,r", "again", "look again"),
        Binding("e", "edit", "open the line in your editor"),
    ]
    listing: GroupList

    def __init__(self, feed: Feed, view: View) -> None:
        super().__init__(feed, view, GroupList(id="groups"))

    def show_dump(self, dump: StackDump | None) -> None:
        listing = self.listing
        listing.entries = stack_groups(dump) if dump is not None else ()
        listing.refused = dump.refused if dump is not None else ()
        if dump is None and not listing.problem:
            listing.problem = "the recording has no stacks up to here"

    def group_of(self, entry: StackGroup) -> StackGroup:
        return entry

    def action_edit(self) -> None:
        group = self.stack.group
        if group is not None:
            self.tell(edit(self.app, group.place, self.view.process(group.members[0].pid)))
