"""What the hook watches beside the phases: each measure in a file of its own, named here.

A measure may put its own patches in and `note` events in the keeper's journal. It comes in when the hook does; if that
fails, the rest goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .collectives import Collectives
from .compiler import Compiler
from .device_calls import DeviceCalls
from .generation import Generation
from .inputs import Inputs
from .patches import Patches
from .scaler import Scaler
from .wrappers import Keeper

MOST_CALLS = 16


class Measure(Protocol):
    """`watches` names what the steps carry because of it (transfer, blocking, collective, tokens)."""

    watches: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """What it has to say, by the fields of `HookFacts`, fit for JSON. Asked every few seconds."""

    def look(self, now: int) -> None:
        """Called a few times a second in the thread that steps, between two of its calls into torch."""


# Each is called as `make(torch, patches, keeper)`.
MEASURES: tuple[Callable[[Any, Patches, Keeper], Measure], ...] = (
    DeviceCalls,
    Inputs,
    Generation,
    Scaler,
    Compiler,
    Collectives,
)


def gathered(measures: Sequence[Measure]) -> dict[str, Any]:
    """The facts of all measures: of call sites (`calls`) the dearest of any kind, of others the last word."""
    found: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for measure in measures:
        try:
            facts = measure.facts()
        except Exception:
            # What it has to say may change under its eyes; the rest can be said.
            facts = {}
        calls += facts.pop("calls", ())
        found.update(facts)
    calls.sort(key=lambda call: -(call.get("seconds") or 0.0))
    return found | {"watches": [name for measure in measures for name in measure.watches], "calls": calls[:MOST_CALLS]}
