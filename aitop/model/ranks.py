"""The ranks of a job side by side, and where all of them stand when none gets on."""

from __future__ import annotations

from typing import Literal

import msgspec

from aitop.model.host import Role
from aitop.model.stacks import Frame

Doing = Literal["collective", "loading", "fetching", "unused", "sleeping", "serving", "own"]


class RankPhases(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds of a rank's step. `wait` is what it waited for other ranks or for their exchange; it is taken out
    of the phases that it lies in, so that `backward` and `forward` are the rank's own.
    """

    data_wait: float
    forward: float
    backward: float
    optimizer: float
    outside: float
    wait: float | None = None


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank on this machine. `step` is the number of its last step, `p50` the median of its steps in seconds.

    `work` is what it did itself in a step, in mean seconds, without waiting for others; `lateness` how much later than
    the first of the ranks it was ready for the others, in mean seconds; `latest` the share (0..1) of the steps in which
    no other rank was later. `samples` and `tokens` are those of a mean step. `skew` is its lateness step by step,
    oldest first. `cpu` is in cores, `rss` and `gpu_memory` in bytes,
    `run_delay` the share of time in which its main thread waited for a core, `waited` the cores that all its threads
    waited for and did not get. None is not measured.
    """

    rank: int | None
    pid: int
    step: int | None = None
    p50: float | None = None
    phases: RankPhases | None = None
    work: float | None = None
    lateness: float | None = None
    latest: float | None = None
    samples: float | None = None
    tokens: float | None = None
    skew: tuple[float, ...] = ()
    cpu: float | None = None
    rss: int | None = None
    run_delay: float | None = None
    waited: float | None = None
    gpu: int | None = None
    gpu_busy: float | None = None
    gpu_memory: int | None = None
    gpu_clock: float | None = None


class CollectiveWait(msgspec.Struct, frozen=True, kw_only=True):
    """One of the collectives that each step calls, at the same `place` (from 1) in all ranks.

    `last` is the rank that most often came last, in the share `often` (0..1) of the steps; `waited` what the others
    waited for whoever was last, `exchange` what passed from then on: mean seconds.
    """

    place: int
    last: int | None
    often: float
    waited: float
    exchange: float


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks by number. `world_size` counts those on other machines too; None where nothing tells it.

    The rest is of the `steps` that all ranks made, compared one by one: `step` mean seconds of one, `exchange` what
    passed from the arrival of the last rank to the end of each exchange, without the time in which that rank waited
    for a core that other programs had, `calls` the part of it in calls of the program's own, `apart` what a step would
    take if nothing were exchanged: threads that exchange also take cores from those that compute. `uneven` is what a
    step would save if all ranks had the mean work of that step; `efficiency` the share (0..1) of the time of all ranks
    in which they worked themselves: more ranks do no better than that. `held` are mean seconds that a step would save
    if the rank with the pid `held_by` got a core whenever it could run, in its work and to go on after each exchange;
    not part of `exchange`.
    `collectives` are those that all ranks called in each of these steps, in order.
    """

    ranks: tuple[RankView, ...] = ()
    world_size: int | None = None
    steps: int = 0
    step: float | None = None
    exchange: float | None = None
    calls: float | None = None
    apart: float | None = None
    uneven: float | None = None
    held: float | None = None
    held_by: int | None = None
    efficiency: float | None = None
    collectives: tuple[CollectiveWait, ...] = ()


class FlightRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The newest collective in what torch's Flight Recorder dumped of a rank: one that it waited in, or its last one.

    `sequence` numbers the collectives of the `group`; `where` is the user's line, as file:line.
    """

    pid: int
    rank: int
    call: str
    state: str
    sequence: int
    group: str = ""
    waiting: bool = False
    where: str | None = None


class ExchangeNotes(msgspec.Struct, frozen=True, kw_only=True, tag="exchange-notes"):
    """What is known of the exchange in a standstill, beside the stacks: Flight Recorder's dumps.

    `local` tells that the ranks meet at an address of this machine alone: none of them is elsewhere.
    """

    time: float
    flights: tuple[FlightRecord, ...] = ()
    local: bool = False


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A process that stands still. `doing` is None where its stack is not known.

    `call` names the call that its main thread is in. `frames` are its stack, the outermost first; `where` the user's
    innermost line. `state` is the kernel's letter, `channel` what the kernel says it waits in. `step` is the last step
    it made. `sequence` numbers the last collective that it called in the group of the whole job, those included that
    DistributedDataParallel calls by itself.
    """

    pid: int
    rank: int | None
    role: Role
    doing: Doing | None = None
    call: str | None = None
    frames: tuple[Frame, ...] = ()
    where: Frame | None = None
    state: str | None = None
    channel: str | None = None
    step: int | None = None
    sequence: int | None = None


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """No rank has moved for `seconds`. `usual` is the longest pause between two steps before, None without steps.

    `gone` are ranks of this machine that have ended, by number. `elsewhere` ranks are on other machines, or gone too.
    `notes` are of this standstill; None where nobody was asked yet.
    """

    seconds: float
    usual: float | None = None
    ranks: tuple[Standing, ...] = ()
    workers: tuple[Standing, ...] = ()
    gone: tuple[int, ...] = ()
    elsewhere: int = 0
    notes: ExchangeNotes | None = None
