"""Hot lines: one row for the same line in several processes or threads, and lists of them in spare rows. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from aitop.model.host import Role
from aitop.model.snapshot import HotLine, Snapshot, Stacks
from aitop.stacks.origin import Origin
from aitop.ui.panes.since_mark import NO_CHANGE, difference
from aitop.ui.state import EVERYBODY, ROLE_NAMES, View, Who, matches, part_of, resting_threads
from aitop.ui.theme.palette import BRIGHT, DIM, TEXT, phase_of
from aitop.ui.widgets.bars import bar
from aitop.ui.widgets.line import Line, columns, rule, shorten, shorten_left
from aitop.ui.words import one_line, place, share_text

HotKey = tuple[str, int, str, str, str]
# What differs in the names of threads that do the same work: "Thread-3 (answer)", "ThreadPoolExecutor-0_1".
_NUMBERED = re.compile(r"^Thread-\d+ \((.*)\)$|[-_]?\d+")


class HotRow(msgspec.Struct, frozen=True):
    """A hot line in all processes or threads with the same `runner`, with its share (0..1) of their samples.

    `runner` is a role of processes, or a thread name without its number. `threads` is how many processes or threads
    have the line, None for a single named thread or rank; `pid` is one of the processes.
    """

    file: str
    line: int
    function: str
    text: str | None
    phase: str
    share: float
    runner: str
    threads: int | None = None
    pid: int = 0

    @property
    def who(self) -> str:
        """The runner, followed by the number of processes or threads if that is known."""
        return self.runner + self.times

    @property
    def times(self) -> str:
        return "" if self.threads is None else f" ×{self.threads}"

    @property
    def key(self) -> HotKey:
        return self.file, self.line, self.function, self.phase, self.runner


def hot_rows(stacks: Stacks, pids: frozenset[int] | None = None, who: Who = EVERYBODY) -> list[HotRow]:
    """The rows, the heaviest first; `pids` and `who` narrow the selection.

    As in the call tree, other threads than the leading ones appear only if they are active or `who` selects them.
    """
    leads = {process.pid: process.thread for process in stacks.processes}
    roles = {process.pid: process.role for process in stacks.processes}
    resting = resting_threads(stacks) if who == EVERYBODY else frozenset()
    groups: dict[tuple[str, int, str, str, Role, str], list[HotLine]] = {}
    for line in stacks.lines:
        part = part_of(line.role, leads.get(line.pid) == line.thread)
        if part == "other" and (line.pid, line.thread) in resting:
            continue
        if (pids is None or line.pid in pids) and who.wants(line.pid, line.thread, part):
            key = (line.file, line.line, line.function, line.phase, line.role, _name(line.thread))
            groups.setdefault(key, []).append(line)
    pools = {(process.pid, process.thread): process.pool for process in stacks.processes if process.pool is not None}
    of_pools = {(pid, thread) for (pid, _), pool in pools.items() for thread in pool.threads}
    alone = [thread for thread in stacks.threads if (thread.pid, thread.thread) not in of_pools]
    samples = {(thread.pid, thread.thread): thread.samples for thread in alone}
    # ProcessStacks counts the leading thread's samples without imports, and those of a pool as of one worker.
    samples |= {(process.pid, process.thread): process.samples for process in stacks.processes}
    sampled = Counter[tuple[Role | None, str]]()
    for (pid, thread), count in samples.items():
        if pids is None or pid in pids:
            sampled[roles.get(pid), _name(thread)] += count
    pool_sizes = {thread: max(1, round(pool.there)) for thread, pool in pools.items()}
    return sorted((_row(group, sampled, pool_sizes) for group in groups.values()), key=lambda row: -row.share)


def matching_rows(stacks: Stacks, wanted: str, pids: frozenset[int] | None, who: Who) -> list[HotRow]:
    """The rows that match the filter `wanted`."""
    rows = hot_rows(stacks, pids, who)
    return [row for row in rows if matches(wanted, row.function, row.file, row.text, row.who)]


def _row(
    group: list[HotLine], sampled: Counter[tuple[Role | None, str]], pool_sizes: Mapping[tuple[int, str], int]
) -> HotRow:
    first, name = group[0], _name(group[0].thread)
    total = sampled[first.role, name]
    share = sum(line.samples for line in group) / total if total else max(line.share for line in group)
    count = sum(pool_sizes.get(key, 1) for key in {(line.pid, line.thread) for line in group})
    alone = count == 1 and (name or first.role == "rank")
    return HotRow(
        first.file, first.line, first.function, first.text, first.phase, min(1.0, share),
        name or ROLE_NAMES.get(first.role, first.role), None if alone else count, first.pid,
    )  # fmt: skip


def _name(thread: str) -> str:
    """The name that similar threads share: that of their function, or theirs without numbers; "" for a main thread."""
    return "" if thread == "MainThread" else _NUMBERED.sub(r"\1", thread)


BAR = 8
ROOMY = 90
LEAST_TEXT = 7


class Place(msgspec.Struct, frozen=True):
    """A line of code in a process, which can be shown and opened in an editor.

    `share` (0..1) is of the samples of `who`. `above` has its callers, the outermost first: function, file and origin.
    `key` finds it again among the hot lines, `path` in the call tree.
    """

    pid: int
    file: str
    line: int
    function: str
    share: float | None = None
    who: str = ""
    above: tuple[tuple[str, str, Origin], ...] = ()
    key: HotKey | None = None
    path: tuple[tuple[str, str], ...] = ()


def hot_line(row: HotRow, width: int, by: Line = NO_CHANGE) -> Line:
    """A row in one line: share, function and place, source text, phase, and who runs it.

    `by` is the change of the share since the mark, an empty line without a mark.
    """
    phase = phase_of(row.phase)
    left = Line(share_text(row.share), BRIGHT).join(by).add(" ").join(bar(row.share, BAR, phase.ink)).add("  ")
    wide = width >= ROOMY
    cells = 12 if wide else 10
    right = [(Line(shorten(row.runner, cells - len(row.times)) + row.times, DIM), cells)]
    if wide:
        right.insert(0, (Line("▌", phase.ink).add(phase.name, DIM), 11))
    room = width - left.width - sum(cells + 2 for _, cells in right)
    cells, at = max(30, min(44, room // 2)) if wide else room, place(row)
    name = Line(shorten(one_line(row.function), max(6, cells - len(at) - 2)), TEXT).add("  ")
    name.add(shorten_left(at, max(8, cells - name.width)), BRIGHT)
    # In a narrow pane the source text directly follows the name, without a column of its own.
    cells = cells if wide else min(name.width, room)
    named = [(name, room)]
    if row.text and room - cells - 2 >= LEAST_TEXT:
        named = [(name, cells), (Line(one_line(row.text), DIM), room - cells - 2)]
    return left.join(columns([*named, *right]))


def row_lines(row: HotRow, width: int, by: Line, rows: int) -> list[Line]:
    """The row in one line or, if `rows` is 2, in two lines, the second with the source text, cut to fit."""
    if rows == 1:
        return [hot_line(row, width, by)]
    bare = replace(row, text=None)
    indent = 7 + BAR + by.width
    return [hot_line(bare, width, by), Line().to(indent).add(shorten(one_line(row.text or ""), width - indent), DIM)]


def line_change(view: View, row: HotRow, pids: frozenset[int] | None, who: Who) -> Line:
    """The change of a hot line's share since the mark; empty without a mark."""
    if view.mark is None:
        return Line()
    then = _lines_at(view.mark, pids, who)
    return difference(row.share, None if then is None else then.get(row.key, 0.0), points=True)


@lru_cache(maxsize=4)
def _lines_at(mark: Snapshot, pids: frozenset[int] | None, who: Who) -> Mapping[HotKey, float] | None:
    """The shares at the mark by line; a line that is missing was not seen. None if there were no stacks."""
    if mark.stacks is None or not mark.stacks.samples:
        return None
    return {row.key: row.share for row in hot_rows(mark.stacks, pids, who)}


LEAST_BELOW = 5
BORDER_STEP = 3
"""The border moves in steps of so many rows, so that one row more or less above it does not move it."""


def room_below(used: int, height: int) -> int:
    """The number of free rows below the `used` ones; 0 if they are fewer than LEAST_BELOW."""
    room = height - -(-(used + 1) // BORDER_STEP) * BORDER_STEP
    return room if room >= LEAST_BELOW else 0


def lines_below(
    view: View, title: str, width: int, room: int, *, pids: frozenset[int] | None, who: Who = EVERYBODY
) -> list[Line]:
    """The hot lines of some processes and threads below a rule with a title, in `room` rows."""
    stacks = view.snapshot.stacks if view.snapshot else None
    rows = matching_rows(stacks, view.filter, pids, who) if stacks is not None and room else []
    lines = [hot_line(row, width, line_change(view, row, pids, who)) for row in rows]
    return filled_below(rule(title, width), lines, room)


def filled_below(border: Line, lines: Sequence[Line], room: int) -> list[Line]:
    """A border and the lines below it, cut or filled up to `room` rows; empty if there are no lines or no room."""
    shown = lines[: room - 1] if room else []
    return [border, *shown, *(Line() for _ in range(room - 1 - len(shown)))] if shown else []
