"""The two parts of the view of all stacks: the list of groups, and one group with its whole stack."""

from __future__ import annotations

from collections import Counter

from aitop.model.stacks import Frame, ThreadStack
from aitop.stacks.groups import StackGroup
from aitop.stacks.origin import origin_of
from aitop.ui.line import Line, columns, lit, shorten, shorten_left, spread, wrap
from aitop.ui.palette import BRIGHT, CODE_KINDS, DIM, FAINT, GAIN, STATE_DENIED, TEXT
from aitop.ui.view import View
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import base_name, one_line, plural

_KINDS = {kind.key: kind for kind in CODE_KINDS}
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
        """What is to be said besides the groups."""
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
    kind = _KINDS[origin_of(frame.file, frame.user)]
    left = Line("▌", kind.ink).add(" ").add(one_line(frame.function), BRIGHT if frame.user else TEXT)
    left.add(f"  {base_name(frame.file)}:{frame.line}", TEXT if frame.user else DIM)
    if frame.text:
        left.add("  ").add(one_line(frame.text), DIM)
    room = width - left.width - 2
    right = Line(shorten_left(frame.file, room), FAINT) if room > 20 and not frame.text else Line()
    line = spread(left, right, width)
    return lit(line) if guilty else line
