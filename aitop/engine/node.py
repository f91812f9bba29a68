"""Watches many jobs of this machine in one process, each with a feed of its own, at little cost for all together.

A new job is looked at every ten seconds of its first minute; after that all jobs take turns within one budget for
stack sampling. So the cost does not grow with their number: the more jobs there are, the less often each is sampled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from aitop.engine.feed import of_own_failure
from aitop.engine.live import LiveFeed, Shared
from aitop.errors import AitopError, NotPermittedError
from aitop.model.job import Job
from aitop.model.settings import Options
from aitop.model.snapshot import Snapshot, Target
from aitop.sources.devices import SharedDevices, device_users
from aitop.sources.host.discovery import candidates
from aitop.sources.host.identity import job_of, node_name
from aitop.sources.host.job import may_still_run, start_ticks, whole_jobs
from aitop.sources.host.target import look
from aitop.sources.stacks.pace import SharedBudget

# The part of a core for sampling the stacks of all jobs. Everything else takes about half as much again.
CORES = 0.008
# Seconds between two searches for jobs, each of which reads the list of all processes twice.
SEARCH_SECONDS = 15.0
# Jobs that are found together do not start their py-spy children all at once.
APART_SECONDS = 2.0


class JobReceiver(Protocol):
    """Takes the Snapshots of all jobs. The feeds' threads call it."""

    def take(self, job: Job, snapshot: Snapshot) -> None: ...

    def close(self, job: Job) -> None:
        """Note a job that aitop may not look into."""

    def drop(self, pid: int) -> None:
        """Forget the job whose topmost process this was."""


class _Watched:
    """A job with its feed. `ended` is set once the feed has published its last Snapshot.

    `failed` says in words how aitop itself failed on it, None where it did not.
    """

    def __init__(self, feed: LiveFeed, top: int, node: str, receiver: JobReceiver) -> None:
        self.feed = feed
        self.top = top
        self.ended = threading.Event()
        self.failed: str | None = None
        self._node = node
        self._receiver = receiver
        self._job: Job | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Hand on a Snapshot; called from the feed's thread."""
        if snapshot.target.ended is not None:
            self.failed = of_own_failure(snapshot)
            self._receiver.drop(self.top)
            self.ended.set()
            return
        if snapshot.host is None:
            return
        if self._job is None:
            ranks = [process.pid for process in snapshot.host.processes if process.role == "rank"]
            self._job = job_of(self.top, next(iter(ranks), self.top), self._node)
        self._receiver.take(self._job, snapshot)


class Node:
    """Watches the jobs of `pids`, or with None all jobs of this machine. `say` gets messages, one sentence each."""

    def __init__(
        self, pids: Sequence[int] | None, options: Options, receiver: JobReceiver, say: Callable[[str], None]
    ) -> None:
        self.name = node_name()
        # With its start, as the number of a process that has ended may be given to another one.
        self._pids = None if pids is None else {pid: start_ticks(pid) for pid in pids}
        self._options = options
        self._receiver = receiver
        self._say = say
        self._shared = Shared(SharedBudget(CORES), SharedDevices(options.interval))
        self._watched: dict[int, _Watched] = {}
        # Why a job is not watched, by its topmost process and that one's start time.
        self._refused: dict[tuple[int, int | None], str] = {}
        self._broken: set[tuple[int, int | None]] = set()
        # The topmost processes of jobs that are to be watched next.
        self._waiting: list[int] = []
        # The topmost process of a job may be a daemon of root's that its user may not look into. So, for each topmost
        # process, the process of the job by which it was found.
        self._member: dict[int, int] = {}
        self._search_at = 0.0
        # How many watched jobs have ended.
        self.ended = 0

    @property
    def over(self) -> bool:
        """Whether no job is watched, nor can be any more: all `pids` have ended."""
        if self._watched or self._waiting or self._pids is None:
            return False
        return not any(may_still_run(*one) for one in self._pids.items())

    def update(self) -> float:
        """Follow jobs that come and go, begin to watch at most one, and return the seconds until the next call."""
        self._end_over()
        now = time.monotonic()
        if not self._waiting and (self._pids is not None or now >= self._search_at):
            self._search_at = now + SEARCH_SECONDS
            self._waiting = self._running()
            self._forget_refused(self._waiting)
        while self._waiting:
            if self._begin(self._waiting.pop(0)) and self._waiting:
                return APART_SECONDS
        return min(self._options.interval, SEARCH_SECONDS)

    def _end_over(self) -> None:
        """End the feeds of jobs that have ended."""
        over = {top: watched for top, watched in self._watched.items() if watched.ended.is_set()}
        _stop_all(watched.feed for watched in over.values())
        for top, watched in over.items():
            del self._watched[top]
            if watched.failed is not None:
                # It would fail again, so it is not watched again.
                self._broken.add((top, start_ticks(top)))
            self.ended += 1
            self._say(watched.failed or f"the job of process {top} has ended")

    def stop(self) -> None:
        """End all feeds."""
        _stop_all(watched.feed for watched in self._watched.values())
        self._shared.devices.end()

    def _running(self) -> list[int]:
        """The topmost processes of jobs that are not watched yet."""
        known: set[int] = set().union(*(watched.feed.pids for watched in self._watched.values()))
        if self._pids is not None:
            pids: Iterable[int] = (pid for pid, start in self._pids.items() if may_still_run(pid, start))
        else:
            users = device_users() if self._options.gpu else {}
            pids = (candidate.pid for candidate in candidates(gpu_users=users))
        self._member = {min(whole_jobs([pid])): pid for pid in pids if pid not in known}
        return sorted(self._member.keys() - known)

    def _begin(self, top: int) -> bool:
        """Start to watch a job; False where that is refused."""
        if (top, start_ticks(top)) in self._broken:
            return False
        try:
            target = self._look(top)
        except AitopError as error:
            self._refuse(top, error)
            return False
        feed = LiveFeed([target], self._options, shared=self._shared)
        watched = self._watched[top] = _Watched(feed, top, self.name, self._receiver)
        feed.start(watched.publish)
        self._say(f"watching the job of process {top}")
        return True

    def _look(self, top: int) -> Target:
        member = self._member.get(top, top)
        try:
            return look(top, even_stopped=True)
        except NotPermittedError:
            if member == top:
                raise
            return look(member, even_stopped=True)

    def _refuse(self, top: int, error: AitopError) -> None:
        """Say why a job is not watched. Only one that aitop may not look into has series; a C++ program is no job."""
        key, why = (top, start_ticks(top)), str(error)
        if key[1] is None or self._refused.get(key) == why:
            return
        self._refused[key] = why
        if isinstance(error, NotPermittedError):
            self._receiver.close(job_of(top, top, self.name))
        self._say(why)

    def _forget_refused(self, running: Sequence[int]) -> None:
        for key in [key for key in self._refused if key[0] not in running or start_ticks(key[0]) != key[1]]:
            del self._refused[key]
            if key[0] not in self._watched:
                self._receiver.drop(key[0])


def _stop_all(feeds: Iterable[LiveFeed]) -> None:
    """Stop feeds side by side: each may take seconds."""
    endings = [threading.Thread(target=feed.stop) for feed in feeds]
    for ending in endings:
        ending.start()
    for ending in endings:
        ending.join()
