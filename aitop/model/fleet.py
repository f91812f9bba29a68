"""The jobs of a whole cluster and the ranks of one of them, as Prometheus knows them from `aitop export`.

A job is written as JSON as it stands here: names of fields that differ there are the contract of `fleet --format json`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from operator import itemgetter
from statistics import fmean

import msgspec

from aitop.model.verdict import SEVERITY_ORDER, Severity

LEAST_LEAD = 0.1
"""A rank is the straggler if the mean wait of the others, as a share of a step, is at least this much above its own."""
SORTED_BY = 0.05
"""Ranks change places only when one waits for about this much more of a step than another."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}", re.ASCII)


class CodeLine(msgspec.Struct, frozen=True, gc=False):
    """A line of the user's code."""

    file: str
    line: int


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first verdict of a job or a rank. `share` of the time lost (0..1), `speedup` the factor without the cause.

    `where` is None where the verdict points to no line.
    """

    verdict: str = msgspec.field(name="id")
    subtype: str | None = None
    severity: Severity = "info"
    share: float | None = None
    speedup: float | None = None
    where: CodeLine | None = None

    @property
    def name(self) -> str:
        """input-bound/workers, or the id alone."""
        return f"{self.verdict}/{self.subtype}" if self.subtype else self.verdict

    @property
    def place(self) -> str:
        """file:line without directories, empty where no line is known."""
        return f"{self.where.file.rstrip('/').rsplit('/', 1)[-1]}:{self.where.line}" if self.where else ""


class FleetJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job, of the `user` as far as that is known. `nodes` by name; `ranks`, of which `stalled` stand still.

    `lost` is the share of its devices' time (0..1) that it loses now to its first verdict with a share of the time,
    `wasted` the device-hours lost within the fleet's window. None is not measured, as where it uses no device.
    """

    job: str
    user: str | None = None
    nodes: tuple[str, ...]
    ranks: int
    stalled: int = 0
    lost: float | None = msgspec.field(default=None, name="lost_ratio")
    wasted: float | None = msgspec.field(default=None, name="wasted_device_hours")
    finding: Finding | None = msgspec.field(default=None, name="verdict")

    @property
    def nodes_text(self) -> str:
        """The first node, and how many there are besides it; empty where no node is known."""
        more = len(self.nodes) - 1
        return "".join(self.nodes[:1]) + (f" +{more}" if more > 0 else "")

    @property
    def finding_text(self) -> str:
        """That it is stalled, or the first verdict with its subtype; empty without one."""
        if self.stalled:
            return f"STALLED {self.stalled} of {self.ranks}"
        return self.finding.name if self.finding is not None else ""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs at one moment: `time` in monotonic seconds. `window` is what `wasted` looks back, in seconds.

    `watching` is the number of nodes whose exporter is there, whether they have a job or not.
    """

    time: float
    window: float
    jobs: tuple[FleetJob, ...] = ()
    watching: int = 0

    @property
    def ranks(self) -> int:
        """The ranks of all jobs."""
        return sum(job.ranks for job in self.jobs)

    @property
    def nodes(self) -> int:
        """How many nodes have a job."""
        return len({node for job in self.jobs for node in job.nodes})

    @property
    def wasted(self) -> float | None:
        """Device-hours that all jobs lost within the window; None where no job's are measured."""
        known = [job.wasted for job in self.jobs if job.wasted is not None]
        return sum(known) if known else None


class FleetRank(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank on one node. `rank` and `pid` are None where the exporter does not say them.

    `watched` is False where the exporter may not look into it. `step` is the mean length of a step in seconds, `wait`
    the share of it (0..1) in which the rank waits for others, `lost` the share of its device's time that the first
    verdict with a share of the time costs.
    """

    node: str
    rank: int | None
    pid: int | None
    watched: bool = True
    stalled: bool = False
    step: float | None = None
    wait: float | None = None
    lost: float | None = None
    finding: Finding | None = None

    @property
    def finding_text(self) -> str:
        """That it is stalled or may not be looked into, or the first verdict with its subtype; empty without one."""
        if self.stalled or not self.watched:
            return "STALLED" if self.stalled else "not permitted"
        return self.finding.name if self.finding is not None else ""


class JobRanks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one job over all its nodes, at one moment (monotonic seconds)."""

    time: float
    job: str
    ranks: tuple[FleetRank, ...] = ()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of asking Prometheus: the `answer`, or the `problem` in a sentence. `time` is in monotonic seconds."""

    time: float
    answer: Fleet | JobRanks | None = None
    problem: str = ""


def by_waste(jobs: Iterable[FleetJob]) -> list[FleetJob]:
    """Sort jobs: stalled ones first, then those that wasted most, and at last those where that is not measured.

    The latter are sorted by the share of their verdict times their ranks.
    """

    def order(job: FleetJob) -> tuple[bool, bool, float, float, str]:
        finding = job.finding
        # The share of a verdict of severity "info", such as that a run computes all the time, is no loss.
        share = finding.share or 0.0 if finding is not None and finding.severity != "info" else 0.0
        worst = -job.wasted if job.wasted is not None else 0.0
        return not job.stalled, job.wasted is None, worst, -share * job.ranks, job.job

    return sorted(jobs, key=order)


def straggler_of(ranks: Sequence[FleetRank]) -> FleetRank | None:
    """The rank that the others wait for: it waits clearly less than they do. None where no rank stands out."""
    known = sorted(((rank.wait, rank) for rank in ranks if rank.wait is not None), key=itemgetter(0))
    if len(known) < 2:
        return None
    (least, first), *others = known
    return first if fmean(wait for wait, _ in others) - least >= LEAST_LEAD else None


def by_lateness(ranks: Sequence[FleetRank]) -> list[FleetRank]:
    """Stalled ranks first, then those that wait least: the others wait for them. About equal ones by their numbers."""

    def order(rank: FleetRank) -> tuple[bool, bool, int, int, str]:
        number = rank.rank if rank.rank is not None else 1 << 30
        return not rank.stalled, rank.wait is None, round((rank.wait or 0.0) / SORTED_BY), number, rank.node

    return sorted(ranks, key=order)


def worst_of(ranks: Sequence[FleetRank]) -> FleetRank | None:
    """The rank to look at first: a stalled one, else the straggler, else the one with the most serious verdict."""

    def order(rank: FleetRank) -> tuple[bool, bool, int, float, int]:
        severity = SEVERITY_ORDER[rank.finding.severity] if rank.finding is not None else len(SEVERITY_ORDER)
        lost = rank.lost if rank.lost is not None else 0.0
        return not rank.stalled, rank is not straggler, severity, -lost, rank.rank if rank.rank is not None else 1 << 30

    straggler = straggler_of(ranks)
    return min(ranks, key=order, default=None)


def command_for(rank: FleetRank) -> str | None:
    """The shell command that opens aitop on this rank; None where its pid is not known or its node is no host name.

    A label may say anything, so only a valid host name gets into a command.
    """
    if rank.pid is None or not _HOST.fullmatch(rank.node):
        return None
    return f"ssh -t {shlex.quote(rank.node)} aitop --pid {rank.pid}"
