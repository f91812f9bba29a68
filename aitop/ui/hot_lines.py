"""Equal hot lines of several processes as one row. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aitop.model.host import Role
from aitop.model.snapshot import HotLine, Stacks
from aitop.ui.who import EVERYBODY, Who, part_of

_ROLE_NAMES: dict[Role, str] = {"rank": "main", "loader-worker": "worker"}


HotKey = tuple[str, int, str, str, str]


@dataclass(frozen=True)
class HotRow:
    """A line with its share (0..1) of the samples of all processes of its role; `who` says which and how many.

    `pid` is one of them.
    """

    file: str
    line: int
    function: str
    text: str | None
    phase: str
    share: float
    who: str
    pid: int = 0

    @property
    def key(self) -> HotKey:
        """The same for the same line at any time, however many processes run it."""
        return self.file, self.line, self.function, self.phase, self.who.split(" ×")[0]


def hot_rows(stacks: Stacks, pids: frozenset[int] | None = None, who: Who = EVERYBODY) -> list[HotRow]:
    """Rows, heaviest first; `pids` and `who` narrow them."""
    leads = {process.pid: process.thread for process in stacks.processes}
    groups: dict[tuple[str, int, str, str, Role, str], list[HotLine]] = {}
    for line in stacks.lines:
        part = part_of(line.role, leads.get(line.pid) == line.thread)
        if (pids is None or line.pid in pids) and who.wants(line.pid, line.thread, part):
            key = (line.file, line.line, line.function, line.phase, line.role, _thread(line))
            groups.setdefault(key, []).append(line)
    sampled = _samples_of_roles(stacks, pids)
    rows = [_row(group, sampled) for group in groups.values()]
    return sorted(rows, key=lambda row: -row.share)


def _row(group: list[HotLine], sampled: dict[Role, int]) -> HotRow:
    first = group[0]
    total = sampled.get(first.role, 0)
    share = sum(line.samples for line in group) / total if total else max(line.share for line in group)
    name = _ROLE_NAMES.get(first.role, first.role)
    if _thread(first):
        name = _thread(first)
    count = len({line.pid for line in group})
    who = name if count == 1 and first.role == "rank" else f"{name} ×{count}"
    return HotRow(first.file, first.line, first.function, first.text, first.phase, min(1.0, share), who, first.pid)


def _thread(line: HotLine) -> str:
    """The name of a thread that is not the main one, else nothing."""
    return "" if line.thread == "MainThread" else line.thread


def _samples_of_roles(stacks: Stacks, pids: frozenset[int] | None) -> dict[Role, int]:
    """Main-thread samples of each role."""
    found: dict[Role, int] = {}
    for process in stacks.processes:
        if pids is None or process.pid in pids:
            found[process.role] = found.get(process.role, 0) + process.samples
    return found
