"""The states of the sources of facts, and why one does not work."""

from __future__ import annotations

from typing import Literal

import msgspec

SourceName = Literal["host", "gpu", "stacks", "hook", "server"]
SourceState = Literal["ok", "absent", "denied", "stale", "failed"]
# For programs, where the state alone does not say enough. `waiting-for-target`: the hook is asked for, and comes in as
# soon as the target is back in Python code. `nothing-new`: the source works, but has been silent.
StatusCode = Literal["waiting-for-target", "nothing-new"]

# The sources that every job may have. Only servers have "server".
SOURCE_NAMES: tuple[SourceName, ...] = ("host", "gpu", "stacks", "hook")


class SourceStatus(msgspec.Struct, frozen=True, kw_only=True, tag="status"):
    """One source's state since `time` (sampler's monotonic clock, seconds).

    `reason` says in words why the state is not `ok`; `remedy` is a command or an action that would mend it. `code` is
    for programs, `reason` for people.
    `age` is how old the newest data is, in seconds, None before the first.
    """

    time: float
    source: SourceName
    state: SourceState
    reason: str | None = None
    remedy: str | None = None
    age: float | None = None
    code: StatusCode | None = None
