"""Jobs on this machine: as the cluster's own software names them, and as they are listed for the user to choose."""

from __future__ import annotations

from typing import Literal

import msgspec

Scheduler = Literal["slurm", "kubernetes", "ray"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job on this machine. `id` is Slurm's number, else the uid of the pod, else NODE/PID of the topmost process.

    `pid` is that process, `node` the name of this machine. `step` is Slurm's step; `pod` the name of the pod,
    `container` the id of the container; `ray_job` Ray's id of the job. `launcher` is the program that started the
    ranks, if it is a known one. None where there is none.
    """

    pid: int
    node: str
    id: str
    user: str
    scheduler: Scheduler | None = None
    step: str | None = None
    pod: str | None = None
    container: str | None = None
    ray_job: str | None = None
    launcher: str | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One job found here, to choose from: launcher, ranks and workers in one row. `pid` is what `--pid` would get.

    `framework` is torch, jax or tensorflow; None for a GPU user without one. `cpu` in cores over the tree, `rss` and
    `gpu_memory` in bytes. `age` in seconds since the start.
    """

    pid: int
    user: str
    command: str
    framework: str | None
    ranks: int
    workers: int
    age: float
    cpu: float | None = None
    rss: int | None = None
    gpus: tuple[int, ...] = ()
    gpu_memory: int | None = None
    mine: bool = True
