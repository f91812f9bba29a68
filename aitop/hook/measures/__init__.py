"""What the hook watches beside the phases: each measure in a file of its own, named here.

A measure may put patches of its own in and note events in the keeper's journal. It comes in when the hook does; if that
fails, the rest goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..patches import Patches
from ..phases import Keeper
from .collectives import Collectives
from .device_calls import DeviceCalls
from .generation import Generation
from .inputs import Inputs
from .scaler import Scaler

MOST_CALLS = 16


class Measure(Protocol):
    """`watches` names the figures that steps have because of it (transfer, blocking, collective, tokens)."""

    watches: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """Return its facts, by the fields of `HookFacts`, fit for JSON. Called every few seconds."""

    def look(self, now: int) -> None:
        """Called a few times a second in the thread that steps, between two of its calls into torch."""


# Each is called as `make(torch, patches, keeper)`.
MEASURES: tuple[Callable[[Any, Patches, Keeper], Measure], ...] = (
    DeviceCalls,
    Inputs,
    Generation,
    Scaler,
    Collectives,
)


def gathered(measures: Sequence[Measure]) -> dict[str, Any]:
    """Return the facts of all measures: the call sites (`calls`) of all that cost most, of other facts the last."""
    result: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for measure in measures:
        try:
            facts = measure.facts()
        except Exception:
            # What it reports on may change meanwhile; the other measures still can report.
            facts = {}
        calls += facts.pop("calls", ())
        result.update(facts)
    calls.sort(key=lambda call: -(call.get("seconds") or 0.0))
    watches = [name for measure in measures for name in measure.watches]
    return result | {"watches": watches, "calls": calls[:MOST_CALLS]}
