"""Whose stacks the code pane shows: everybody's, those of a part of the job, of a process or of a thread. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aitop.model.host import Role
from aitop.model.snapshot import Stacks

Part = Literal["main", "worker", "other"]
PARTS: tuple[Part, ...] = ("main", "worker", "other")
PART_NAMES: dict[Part, str] = {"main": "main", "worker": "workers", "other": "others"}


@dataclass(frozen=True)
class Who:
    """None asks for all: parts of the job, processes (pid), threads (by name) of a process."""

    part: Part | None = None
    pid: int | None = None
    thread: str | None = None

    def wants(self, pid: int, thread: str, part: Part) -> bool:
        """Whether a thread of this part is among those asked for."""
        return self.part in (None, part) and self.pid in (None, pid) and self.thread in (None, thread)

    def words(self) -> str:
        """Who that is, for a title; nothing for everybody."""
        if self.thread is not None:
            return f"{self.pid} {self.thread}"
        if self.pid is not None:
            return f"process {self.pid}"
        return PART_NAMES[self.part] if self.part is not None else ""


EVERYBODY = Who()


def part_of(role: Role, leads: bool) -> Part:
    """The part a thread plays: the one that steps is main, those that load are workers. `leads`: see ProcessStacks."""
    if role == "rank" and leads:
        return "main"
    return "worker" if role == "loader-worker" and leads else "other"


def threads_of(stacks: Stacks, pids: frozenset[int] | None = None) -> list[tuple[Part, int, str]]:
    """Every thread that has a tree, with the part it plays: main ones first, then by pid and name."""
    found = [(part_of(one.role, True), one.pid, one.thread) for one in stacks.processes if one.tree is not None]
    found += [(part_of(one.role, False), one.pid, one.thread) for one in stacks.trees]
    kept = [one for one in found if pids is None or one[1] in pids]
    return sorted(kept, key=lambda one: (PARTS.index(one[0]), one[1], one[2] != "MainThread", one[2]))


def next_part(stacks: Stacks, pids: frozenset[int] | None, who: Who) -> Who:
    """Everybody, then each part that there is, then everybody again."""
    there = {part for part, _, _ in threads_of(stacks, pids)}
    row: list[Part | None] = [None, *(part for part in PARTS if part in there)]
    at = row.index(who.part) if who.part in row else 0
    return Who(row[(at + 1) % len(row)])


def next_thread(stacks: Stacks, pids: frozenset[int] | None, who: Who) -> Who:
    """All of the part at hand, then each process of it, those of several threads followed by these."""
    threads = [(pid, thread) for part, pid, thread in threads_of(stacks, pids) if who.part in (None, part)]
    row = [Who(who.part)]
    for pid in dict.fromkeys(pid for pid, _ in threads):
        row.append(Who(who.part, pid))
        names = [thread for other, thread in threads if other == pid]
        row += [Who(who.part, pid, name) for name in names] if len(names) > 1 else []
    at = row.index(who) if who in row else 0
    return row[(at + 1) % len(row)]
