"""A burst of torch.profiler in a process that has the hook in: asked for, waited for, turned into figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aitop.engine.trace import TraceError, analyse
from aitop.errors import AitopError
from aitop.model.profile import Profile
from aitop.sources.ring.burst import serial_number, wait_for
from aitop.sources.ring.reader import HookRing
from aitop.sources.source import SourceError

LEAST_SECONDS, SECONDS_PER_STEP = 30.0, 10.0


@dataclass(frozen=True)
class Taken:
    """The figures of a burst, and its Chrome trace as torch wrote it."""

    profile: Profile
    trace: bytes


def take_profile(
    pid: int,
    steps: int,
    *,
    wanted: Callable[[], bool] = lambda: True,
    progress: Callable[[str], None] = lambda state: None,
) -> Taken:
    """Profile `steps` steps of process `pid`, whose hook somebody else keeps there.

    `progress` hears waiting, then running. Raises AitopError where there is no hook, the profiler does not start,
    the process ends or makes no steps, or `wanted` says that nobody waits any more.
    """
    try:
        ring = HookRing(pid)
    except SourceError as error:
        raise AitopError(f"no profile without the hook: {error}") from error
    try:
        serial = serial_number()
        ring.ask_for_burst(serial, steps)
        timeout = max(LEAST_SECONDS, SECONDS_PER_STEP * steps)
        burst = wait_for(pid, serial, timeout, wanted=wanted, progress=progress)
    except SourceError as error:
        ring.ask_for_burst(0, 0)
        raise AitopError(error.reason) from error
    finally:
        ring.close()
    try:
        return Taken(analyse(burst.trace, pid=pid, steps=burst.steps, holds=burst.holds), burst.trace)
    except TraceError as error:
        raise AitopError(f"the profile of process {pid} cannot be read: {error}") from error
