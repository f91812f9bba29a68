"""Which ways into a process are open, found out without entering it: only what is read is its memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from aitop.attach.already import hook_is_there
from aitop.attach.attempt import unreachable
from aitop.attach.carriers import first_folder, may_look_into_us
from aitop.attach.preflight import check_alive, check_consent, check_torch, open_memory
from aitop.attach.python_image import locate_python
from aitop.attach.refusal import AttachRefused
from aitop.attach.target import Target
from aitop.attach.ways import WAYS, WayIn


@dataclass(frozen=True)
class Survey:
    """What stands in the way of the hook, before it is tried.

    `ways` has each way in with what closes it, None where it is open; empty where the process as a whole cannot be
    entered, and `refused` says why. `folder` takes the file that carries the hook, as the target names it; "" where
    memory of ours carries it, and no file is needed.
    """

    already: bool
    ways: tuple[tuple[str, str | None], ...] = ()
    folder: str | None = None
    refused: AttachRefused | None = None

    @property
    def open(self) -> tuple[str, ...]:
        """The names of the ways that are open, best first."""
        return tuple(name for name, obstacle in self.ways if obstacle is None)


def survey(pid: int, ways: Sequence[WayIn] = WAYS) -> Survey:
    """Look at process `pid`; never raises for what the process is."""
    already = hook_is_there(pid)
    try:
        status = check_alive(pid)
        memory = open_memory(status)
    except AttachRefused as refused:
        return Survey(already, refused=refused)
    found: list[tuple[str, str | None]] = []
    folder = None
    try:
        check_consent(pid)
        target = Target(status, memory, locate_python(pid, memory))
        found = [(way.name, way.obstacle(target)) for way in ways]
        needs_file = any(way.alone and obstacle is None for way, (_, obstacle) in zip(ways, found, strict=True))
        folder = "" if not needs_file and may_look_into_us(status) else first_folder(status)
        check_torch(pid)
    except AttachRefused as refused:
        return Survey(already, tuple(found), folder, refused)
    except OSError as error:
        return Survey(already, tuple(found), folder, unreachable(status, error))
    finally:
        memory.close()
    return Survey(already, tuple(found), folder)


def readable(pid: int) -> bool:
    """Whether the kernel lets us at the process's memory; asking touches nothing."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
