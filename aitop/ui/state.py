"""The View that panes draw from: a Snapshot, the appearance, and what the user has narrowed it to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from aitop.model.host import ProcessId, ProcessSample, Role
from aitop.model.run import RunComparison
from aitop.model.snapshot import ProcessStacks, Snapshot, Stacks, ThreadShare, ThreadTree
from aitop.model.source import SourceName, SourceStatus
from aitop.ui.theme.themes import Appearance

Part = Literal["main", "worker", "other"]
PARTS: tuple[Part, ...] = ("main", "worker", "other")
ROLE_NAMES: dict[Role, str] = {"rank": "main", "loader-worker": "worker"}
PART_NAMES: dict[Part, str] = {"main": "main", "worker": "workers", "other": "others"}


class Who(msgspec.Struct, frozen=True):
    """Whose stacks the code pane shows: those of a part of the job, a process or a thread. None does not restrict."""

    part: Part | None = None
    pid: int | None = None
    thread: str | None = None

    def wants(self, pid: int, thread: str, part: Part) -> bool:
        """Whether this thread, which belongs to `part`, is selected."""
        return self.part in (None, part) and self.pid in (None, pid) and self.thread in (None, thread)

    def words(self) -> str:
        if self.thread is not None:
            return f"{self.pid} {self.thread}"
        if self.pid is not None:
            return f"process {self.pid}"
        return PART_NAMES[self.part] if self.part is not None else ""


EVERYBODY = Who()
# A thread that is active for a smaller share of its time counts as resting.
LEAST_ACTIVE = 0.1


def part_of(role: Role, leads: bool) -> Part:
    """The part of the job that a thread belongs to. `leads`: it is the leading thread (ProcessStacks.thread)."""
    if role == "rank" and leads:
        return "main"
    return "worker" if role == "loader-worker" and leads else "other"


def resting_threads(stacks: Stacks) -> frozenset[tuple[int, str]]:
    """The threads, as (pid, name), that are active for less than LEAST_ACTIVE of their time."""
    return frozenset((thread.pid, thread.thread) for thread in stacks.threads if (thread.active or 0.0) < LEAST_ACTIVE)


def call_trees(stacks: Stacks, pids: frozenset[int] | None = None) -> list[tuple[Part, ProcessStacks | ThreadTree]]:
    """Every thread that has a call tree, with its part; the leading threads of the processes come first."""
    leads = [(part_of(process.role, True), process) for process in stacks.processes if process.tree is not None]
    trees: list[tuple[Part, ProcessStacks | ThreadTree]] = [*leads]
    trees += [(part_of(tree.role, False), tree) for tree in stacks.trees]
    return [(part, tree) for part, tree in trees if pids is None or tree.pid in pids]


def next_part(stacks: Stacks, pids: frozenset[int] | None, who: Who) -> Who:
    """The selection after `who`, in the cycle: everything, then each part of the job that has stacks."""
    there = {part for part, _ in call_trees(stacks, pids)}
    row: list[Part | None] = [None, *(part for part in PARTS if part in there)]
    at = row.index(who.part) if who.part in row else 0
    return Who(row[(at + 1) % len(row)])


def next_thread(stacks: Stacks, pids: frozenset[int] | None, who: Who) -> Who:
    """The selection after `who`, in the cycle: the whole part, then each process, followed by its threads if it has
    several.
    """
    threads = sorted(
        (PARTS.index(part), tree.pid, tree.thread != "MainThread", tree.thread)
        for part, tree in call_trees(stacks, pids)
        if who.part in (None, part)
    )
    row = [Who(who.part)]
    for pid in dict.fromkeys(pid for _, pid, _, _ in threads):
        row.append(Who(who.part, pid))
        names = [thread for _, other, _, thread in threads if other == pid]
        row += [Who(who.part, pid, name) for name in names] if len(names) > 1 else []
    at = row.index(who) if who in row else 0
    return row[(at + 1) % len(row)]


def is_seen(stacks: Stacks, who: Who) -> bool:
    """Whether the process or thread that `who` narrows to is among the stacks; a part of the job always is."""
    seen: list[ProcessStacks | ThreadTree | ThreadShare] = [*stacks.processes, *stacks.trees, *stacks.threads]
    return who.pid is None or any(who.pid == one.pid and who.thread in (None, one.thread) for one in seen)


def children(processes: Sequence[ProcessSample]) -> dict[int, list[ProcessSample]]:
    """Children by the pid of their parent; under 0 the processes whose parent is not in `processes`."""
    pids = {process.pid for process in processes}
    below: dict[int, list[ProcessSample]] = {}
    for process in processes:
        known = process.ppid in pids and process.ppid != process.pid
        below.setdefault(process.ppid if known else 0, []).append(process)
    return below


def descendants(pid: int, below: Mapping[int, Sequence[ProcessSample]]) -> list[int]:
    """The pids of all descendants of a process, given `below`, the children by pid."""
    pids: list[int] = []
    waiting = [child.pid for child in below.get(pid, ())]
    while waiting:
        current = waiting.pop()
        if current not in pids and current != pid:
            pids.append(current)
            waiting += [child.pid for child in below.get(current, ())]
    return pids


def labels_of(snapshot: Snapshot) -> dict[int, str]:
    """A short label for each pid: "launcher", "rank 1", "worker 3" (numbered by age among the workers of one parent),
    its part in a server (numbered by age if there are several), or else the name of the process.
    """
    processes, lead = snapshot.processes, lead_word(snapshot)
    labels: dict[int, str] = {}
    workers: dict[int, int] = {}
    several, seen = Counter(process.part for process in processes), Counter[str]()
    for process in sorted(processes, key=lambda process: (process.started, process.pid)):
        if process.part is not None:
            labels[process.pid] = f"{process.part} {seen[process.part]}" if several[process.part] > 1 else process.part
            seen[process.part] += 1
        elif process.role == "rank":
            labels[process.pid] = f"rank {process.rank}" if lead == "rank" and process.rank is not None else lead
        elif process.role == "loader-worker":
            number = workers[process.ppid] = workers.get(process.ppid, -1) + 1
            labels[process.pid] = f"worker {number}"
        else:
            labels[process.pid] = process.role if process.role == "launcher" else process.name
    return labels


def family(processes: tuple[ProcessSample, ...], pid: int) -> frozenset[int]:
    """The pids of a process and all its descendants; its own pid alone if it has ended."""
    return frozenset({pid, *descendants(pid, children(processes))})


def process_words(snapshot: Snapshot | None, pid: int) -> str:
    """A process in words: "rank 1 +4" (with 4 descendants), "worker 2 of rank 0", "tensorboard"."""
    process = next((process for process in snapshot.processes if process.pid == pid), None) if snapshot else None
    if snapshot is None or process is None:
        return f"process {pid}"
    words = labels_of(snapshot)[pid]
    if process.role == "loader-worker" and process.rank is not None:
        words += f" of rank {process.rank}"
    below = len(family(snapshot.processes, pid)) - 1
    return f"{words} +{below}" if below else words


def serves(snapshot: Snapshot | None) -> bool:
    """Whether the run is a server: it answers requests and does not train."""
    return snapshot is not None and snapshot.serving is not None and snapshot.kind != "training"


def lead_word(snapshot: Snapshot) -> str:
    """The word for a process with the role "rank": "server" in a server, which has no ranks, else "rank"."""
    return "server" if serves(snapshot) else "rank"


def matches(wanted: str, *texts: str | None) -> bool:
    """Whether every word of the filter `wanted` occurs in one of `texts`; an empty filter matches everything.

    A word in lower case ignores case; a word with a capital letter is matched exactly. `!word` must not occur.
    """
    known = [text for text in texts if text]
    return all(_holds(word, known) for word in wanted.split())


def _holds(word: str, texts: Iterable[str]) -> bool:
    if word == "!":
        return True
    part = word.removeprefix("!")
    occurs = any(part in (text.lower() if part == part.lower() else text) for text in texts)
    return occurs != word.startswith("!")


CodeView = Literal["lines", "tree", "flame"]


class View(msgspec.Struct, frozen=True, eq=False):
    """The state of the screen that panes draw from.

    `snapshot` is None until the first arrives. `code` is how the code is shown, `who` whose code. `live` is False for a
    replay. `notice` is a short line about what was just done. `filter` is the text that rows of lists and trees must
    match (see `matches`), empty to show all. `chosen` is the pid that the screen is narrowed to (with its descendants),
    such as that of a rank, None for all. `mark` is the Snapshot that figures are compared with, None without a mark.
    `recording` is the state of the recording in a word or two, None if there is none. `compared` compares this run with
    an earlier one of the same script, None without one.
    """

    snapshot: Snapshot | None = None
    appearance: Appearance = msgspec.field(default_factory=Appearance)
    title: str | None = None
    live: bool = True
    paused: bool = False
    code: CodeView = "lines"
    who: Who = EVERYBODY
    has_detached: bool = False
    notice: str | None = None
    filter: str = ""
    chosen: int | None = None
    mark: Snapshot | None = None
    recording: str | None = None
    compared: RunComparison | None = None

    def source(self, name: SourceName) -> SourceStatus | None:
        """The status of a source, None until it has reported one."""
        return self.snapshot.sources.get(name) if self.snapshot else None

    @property
    def can_detach(self) -> bool:
        """Whether a hook is in the live target, or asked for."""
        hook = None if self.has_detached else self.source("hook")
        return self.live and hook is not None and (hook.state != "absent" or hook.code is not None)

    def stale(self, name: SourceName) -> str | None:
        """The age of a source's newest data, with the reason; None unless the source is stale or failed."""
        status = self.source(name)
        if status is None or status.state not in ("stale", "failed") or status.age is None:
            return None
        # "Nothing new" would only repeat what the age says.
        reason = None if status.code == "nothing-new" else status.reason
        return f"{status.age:.0f} s old" + (f" · {reason}" if reason else "")

    @property
    def processes(self) -> tuple[ProcessSample, ...]:
        """The job's processes; empty while they are not known."""
        return self.snapshot.processes if self.snapshot else ()

    def narrowed_to(self, snapshot: Snapshot) -> list[ProcessSample]:
        """The processes in `snapshot` (the current one or the mark) that the screen is narrowed to."""
        pids = self.pids()
        return [process for process in snapshot.processes if pids is None or process.pid in pids]

    def ranks(self) -> dict[int, int]:
        """The pid of each rank, by number; of several with one number, that of one that has not ended."""
        ranks = [(p.rank, p.state != "Z", p.pid) for p in self.processes if p.role == "rank" and p.rank is not None]
        return {rank: pid for rank, _, pid in sorted(ranks)}

    @property
    def rank(self) -> int | None:
        """The number of the rank that the screen is narrowed to; None if it is not narrowed to a rank."""
        return next((rank for rank, pid in self.ranks().items() if pid == self.chosen), None)

    def process(self, pid: int) -> ProcessId | None:
        """The process that has this pid in the Snapshot, identified so that a reused pid is not mistaken for it; None
        once it is gone.
        """
        host = self.snapshot.host if self.snapshot else None
        return host.id_of(pid) if host else None

    def pids(self) -> frozenset[int] | None:
        """The pids of the process that the screen is narrowed to and of its descendants; None if it is not narrowed."""
        if self.snapshot is None or self.snapshot.host is None or self.chosen is None:
            return None
        return family(self.processes, self.chosen)

    def narrowed(self) -> str | None:
        """What the screen is narrowed to, in words; None if it shows everything."""
        if self.chosen is None:
            return None
        return process_words(self.snapshot, self.chosen) if self.rank is None else f"rank {self.rank}"
