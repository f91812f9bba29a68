"""An AI process found on this machine, to choose from."""

from __future__ import annotations

import msgspec


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One job: launcher, ranks and workers folded into one row. `pid` is what `--pid` would get.

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
