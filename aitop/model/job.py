"""Which job a process belongs to, by the names that the cluster's own software gave it."""

from __future__ import annotations

from typing import Literal

import msgspec

Scheduler = Literal["slurm", "kubernetes", "ray"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job on this machine. `id` is Slurm's number, else the uid of the pod, else NODE/PID of the topmost process.

    `pid` is that process, `node` the name of this machine. `step` is Slurm's step; `pod` the name of the pod,
    `container` the id of the container; `ray_job` Ray's id of the job. `launcher` is the program that started the
    ranks, of those that are known. None where there is none.
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
