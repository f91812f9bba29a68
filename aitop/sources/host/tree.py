"""Follows a process tree. A process is identified by pid and start, so that a reused pid is another process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from aitop.sources import procfs
from aitop.sources.host.command_lines import NO_NUMBERS, RankNumbers, rank_numbers
from aitop.sources.host.roles import Facts, Place, assign
from aitop.sources.procfs import Stat

READS_UNTIL_LOOKING_AGAIN = 10
ANSWER_SECONDS = 3.0
_RANK_THREADS = ("pt_autograd", "pt_nccl", "pt_gloo", "gloo_tcp_loop")


class Member:
    """One process of the tree. `stat` is the latest; the rest is read again only after an exec."""

    def __init__(self, stat: Stat, parent: Member | None) -> None:
        self.stat = stat
        self.ppid = stat.ppid
        self.forked = False
        self.exe: str | None = None
        self.python = False
        self.argv: tuple[str, ...] = ()
        self.numbers: RankNumbers = NO_NUMBERS
        self.command = ""
        self.identify(parent)

    def identify(self, parent: Member | None) -> None:
        """Read what the process runs. A forked child has all of it from its parent."""
        pid = self.stat.pid
        self.argv = procfs.argv(pid) or self.argv
        # The kernel hides the stack's address (0) of other users' processes: that tells nothing.
        alike = parent is not None and parent.stat.stack == self.stat.stack != 0 and parent.argv == self.argv != ()
        source = parent if alike else None
        self.forked = source is not None
        if source is not None:
            self.exe, self.python = source.exe, source.python
            self.numbers, self.command = source.numbers, source.command
            return
        self.exe = procfs.link(f"{procfs.PROC}/{pid}/exe")
        self.python = procfs.named_python(self.exe or (self.argv[0] if self.argv else None)) or self._embeds_python()
        self.numbers = rank_numbers(procfs.environ(pid) or {})
        self.command = procfs.shown(self.argv, self.stat.comm)

    def _embeds_python(self) -> bool:
        """Whether a program of another name has the interpreter's library mapped."""
        return procfs.python_version_of(None, procfs.maps(self.stat.pid)) is not None

    @property
    def key(self) -> tuple[int, int]:
        """Pid and start in ticks since boot: they identify the process even when its pid is reused."""
        return self.stat.pid, self.stat.start

    def facts(self) -> Facts:
        """The facts from which the role follows."""
        stat = self.stat
        return Facts(stat.pid, self.ppid, stat.start, stat.comm, self.argv, self.python, self.forked, self.numbers)


class ProcessTree:
    """The processes below some tops, followed from read to read.

    A process stays in when its parent dies and the kernel gives it another one. A pid that now belongs to another
    process is not followed, nor are the monitor itself and what it starts.
    """

    def __init__(self, tops: Iterable[tuple[int, int | None]]) -> None:
        """`tops` are pids with their start in ticks, None to take whatever process has the pid now."""
        self._tops = dict(tops)
        self._members: dict[int, Member] = {}
        self._outside: set[int] = set()
        self._reads = 0
        self._self = os.getpid()

    def tops(self) -> dict[int, int | None]:
        """The pids asked for with the start that was seen of each."""
        return dict(self._tops)

    def update(self) -> list[Member]:
        """Look again. Parents come before their children; zombies that nobody has collected are included."""
        for pid, member in list(self._members.items()):
            if not self._refresh(member):
                del self._members[pid]
        for pid, start in self._tops.items():
            if pid not in self._members:
                self._add_top(pid, start)
        if self._reads % READS_UNTIL_LOOKING_AGAIN == 0:
            self._outside.clear()
        self._reads += 1
        self._add_children()
        return list(self._members.values())

    def _refresh(self, member: Member) -> bool:
        new = procfs.stat(member.stat.pid)
        if new is None or new.start != member.stat.start or new.state in "Xx":
            return False
        old, member.stat = member.stat, new
        # A process that ends has none any more.
        if new.stack not in (0, old.stack):
            member.identify(self._members.get(member.ppid))
        return True

    def _add_top(self, pid: int, start: int | None) -> None:
        stat = procfs.stat(pid)
        if stat is not None and start in (None, stat.start):
            self._tops[pid] = stat.start
            self._members[pid] = Member(stat, None)

    def _add_children(self) -> None:
        """Add unknown processes whose parent is a member. Others are remembered and not read again for some updates."""
        new = [pid for pid in procfs.pids() if pid not in self._members and pid not in self._outside]
        stats = {pid: stat for pid in new if (stat := procfs.stat(pid)) is not None}
        below: dict[int, list[Stat]] = {}
        for stat in stats.values():
            below.setdefault(stat.ppid, []).append(stat)
        waiting = [pid for pid in below if pid in self._members]
        while waiting:
            parent = self._members[waiting.pop()]
            for stat in sorted(below.get(parent.stat.pid, ()), key=lambda child: (child.start, child.pid)):
                if stat.pid not in self._members and stat.pid != self._self:
                    self._members[stat.pid] = Member(stat, parent)
                    waiting.append(stat.pid)
        self._outside.update(pid for pid in stats if pid not in self._members)


Stepping = Callable[[], Collection[int]]


class ProcessProbe:
    """Looks into processes whose role does not follow from their command line and their parents.

    An answer is remembered: for good if it was yes, for a few seconds if it was no.
    """

    def __init__(self, stepping: Stepping = tuple) -> None:
        """`stepping` has the pids that were seen to step."""
        self._stepping = stepping
        self._members: dict[int, Member] = {}
        self._answers: dict[tuple[str, int, int], tuple[bool, float]] = {}

    def about(self, members: Sequence[Member]) -> ProcessProbe:
        """Return this object, now about these processes; what was known of others is forgotten."""
        self._members = {member.stat.pid: member for member in members}
        alive = {member.key for member in members}
        self._answers = {key: value for key, value in self._answers.items() if key[1:] in alive}
        return self

    def trains(self, pid: int) -> bool:
        """Whether the process has threads of autograd or of a process group, or opened a GPU itself."""
        return self._known("trains", pid, self._look_for_training)

    def has_framework(self, pid: int) -> bool:
        """Whether torch, JAX or TensorFlow is loaded."""
        return self._known("framework", pid, self._look_for_framework)

    def steps(self, pid: int) -> bool:
        """Whether the process was seen to make steps of training, or to answer requests with a model."""
        return pid in self._stepping()

    def _known(self, what: str, pid: int, look: Callable[[Member], bool]) -> bool:
        member = self._members.get(pid)
        if member is None:
            return False
        key = (what, *member.key)
        answer, when = self._answers.get(key, (False, float("-inf")))
        if not answer and time.monotonic() - when >= ANSWER_SECONDS:
            answer = look(member)
            self._answers[key] = (answer, time.monotonic())
        return answer

    @staticmethod
    def _look_for_training(member: Member) -> bool:
        if any(name.startswith(_RANK_THREADS) for name in procfs.thread_names(member.stat.pid)):
            return True
        # A forked child also holds what its parent had open.
        return not member.forked and bool(procfs.open_devices(member.stat.pid))

    @staticmethod
    def _look_for_framework(member: Member) -> bool:
        return procfs.framework_of(procfs.maps(member.stat.pid) or b"") is not None


def places_of(members: Sequence[Member], probe: ProcessProbe | None = None) -> dict[int, Place]:
    """The place of every member in the tree; `probe` remembers what was seen before."""
    return assign([member.facts() for member in members], (probe or ProcessProbe()).about(members))
