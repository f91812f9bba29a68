"""What the hook watches beside the phases: each measure in a file of its own, named here.

A measure may put its own patches in and `note` events in the keeper's journal. It comes in when the hook does; if that
fails, the rest goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .patches import Patches
from .wrappers import Keeper


class Measure(Protocol):
    """`watches` names what the steps carry because of it (transfer, blocking, collective, tokens), "" for nothing."""

    watches: str

    def facts(self) -> dict[str, Any]:
        """What it has to say, by the fields of `HookFacts`, fit for JSON. Asked every few seconds."""

    def look(self, now: int) -> None:
        """Called a few times a second in the thread that steps, between two of its calls into torch."""


# Each is called as `make(torch, patches, keeper)`.
MEASURES: tuple[Callable[[Any, Patches, Keeper], Measure], ...] = ()
