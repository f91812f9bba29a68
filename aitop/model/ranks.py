"""The ranks of a job compared with one another, and where each of them stands while none moves."""

from __future__ import annotations

from typing import Literal

import msgspec

from aitop.model.host import Role
from aitop.model.stacks import Frame

Doing = Literal["collective", "loading", "fetching", "unused", "sleeping", "serving", "own"]


class RankPhases(msgspec.Struct, frozen=True, kw_only=True):
    """The phases of a rank's step: mean seconds, or parts (0..1) of its time where only stacks tell.

    `wait` is the time in which it waited for other ranks or for the exchange with them; it is taken out of the phases
    that it lies in, so that `backward` and `forward` are the rank's own work.
    """

    data_wait: float
    forward: float
    backward: float
    optimizer: float
    outside: float
    wait: float | None = None


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank on this machine. `step` is the number of its last step, `p50` the median of its steps in seconds.

    `work` is the mean seconds that it worked itself in a step, without waits for other ranks. `lateness` is how many
    seconds after the first rank it had done its work, in the mean; `skew` is the same for each step, oldest first;
    `latest` is the share (0..1) of the steps in which no other rank was later. `samples` and `tokens` are means per
    step, `operations` the floating-point operations of a backward pass and its forward, by their shapes. `cpu` is in
    cores, `rss` and `gpu_memory` in bytes, `gpu_clock` in MHz. `run_delay` is the share of time in which its main
    thread waited for a core, `resting` that in which it neither ran nor waited for one. None is not measured.
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
    operations: float | None = None
    skew: tuple[float, ...] = ()
    cpu: float | None = None
    rss: int | None = None
    run_delay: float | None = None
    resting: float | None = None
    gpu: int | None = None
    gpu_busy: float | None = None
    gpu_memory: int | None = None
    gpu_clock: float | None = None


class CollectiveWait(msgspec.Struct, frozen=True, kw_only=True):
    """One of the collectives that each step calls, at the same `place` (from 1) in all ranks.

    `last` is the rank that most often came last: in the share `often` (0..1) of the steps. `waited` is the mean seconds
    that each other rank waited for the last one.
    """

    place: int
    last: int | None
    often: float
    waited: float


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks by number. `world_size` counts those on other machines too; None where nothing tells it.

    All other fields are about the `steps` that all ranks made, compared one by one. Times are mean seconds per step.
    `step` is the length of a step. `exchange` is the time from the arrival of the last rank to the end of each
    exchange, without the time in which that rank waited for a core that other programs had; `calls` is the part of it
    in the program's own calls of collectives. `apart` is how long a step would take if nothing were exchanged: threads
    that exchange also take cores from threads that compute. `uneven` is what a step would save if all ranks had the
    mean work of that step. `efficiency` is the share (0..1) of the time of all ranks in which they worked themselves;
    more ranks do no better than that. `held` is what a step would save if the rank with the pid `held_by` got a core
    whenever it could run, both in its work and to go on after each exchange; it is not part of `exchange`.
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
    """The newest collective in the dump of a rank by torch's Flight Recorder.

    `waiting` says that the rank waits in it; else it is the last one that it made. `sequence` is its number among the
    collectives of the `group`; `where` is the user's line, as file:line.
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
    """What is known about the exchange in a standstill beside the stacks: the dumps of torch's Flight Recorder.

    `local` says that the ranks meet at an address of this machine only, so that no rank is elsewhere.
    """

    time: float
    flights: tuple[FlightRecord, ...] = ()
    local: bool = False


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A process that stands still. `doing` is None where its stack is not known.

    `call` names the call that its main thread is in. `frames` are its stack, the outermost first; `where` the user's
    innermost line. `state` is the kernel's letter, `channel` what the kernel says it waits in. `step` is the number of
    the last step that it made. `sequence` is the number of the last collective that it called in the group of the whole
    job; those that DistributedDataParallel calls by itself count as well.
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
    """No rank has moved for `seconds`. `usual` is the length of the longest step before, None without steps.

    `gone` are the numbers of ranks of this machine that have ended. `elsewhere` is the number of ranks that are on
    other machines, or gone too. `notes` are of this standstill; None where they were not asked for yet.
    """

    seconds: float
    usual: float | None = None
    ranks: tuple[Standing, ...] = ()
    workers: tuple[Standing, ...] = ()
    gone: tuple[int, ...] = ()
    elsewhere: int = 0
    notes: ExchangeNotes | None = None
