"""What the hook measures beside the phases of each step: a file each, in a row of `MEASURES`.

The core of the hook comes in first; then measures are loaded, a few in each tick, while the run goes on. To add
one: a file with a class like `Measure`, a row below, and its facts in `HookFacts` (model/steps.py). One that times
a phase of its own notes an event, which has a row in model/phases.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..patches import Patches

if TYPE_CHECKING:
    from ..session import Session

# Module and class of each, in the order in which they are loaded.
MEASURES = (
    "inputs.Inputs",
    "callers.Callers",
    "device_calls.DeviceCalls",
    "device.Device",
    "collectives.Collectives",
    "cost.Cost",
    "flops.Graphs",
    "burst.Burst",
    "generation.Generation",
    "scaler.Scaler",
    "denormals.Denormals",
    "compiles.Compiles",
    "serving.vllm.Vllm",
    "serving.batching.Batching",
    "serving.litserve.LitServe",
    "serving.http.Http",
)

# A web server without torch, which takes requests for other processes, only has this one.
FRONT = ("serving.http.Http",)
# Modules that such a process has loaded.
WEB_SERVERS = ("uvicorn.server", "gunicorn.workers", "aiohttp.web_protocol", "http.server")

# Those that are loaded at once where one of these modules is: such a process may never step, nor load any otherwise.
AT_ONCE = {"serving.vllm.Vllm": ("vllm.v1.core.sched.scheduler",), "serving.http.Http": WEB_SERVERS}


class Measure:
    """A measure may put patches in and note events in the session's journal. If one fails, the hook goes on without it.

    `watches` names the figures that steps have because of it (transfer, blocking, collective, tokens).
    """

    watches: tuple[str, ...] = ()

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        """Begin to measure."""

    def look(self, now: int) -> None:
        """Do what is due. Called a few times a second in the thread that steps, between two of its calls into torch."""

    def facts(self) -> dict[str, Any]:
        """Return its facts, by the fields of `HookFacts`, fit for JSON. Called about once a second."""
        return {}

    def over(self) -> None:
        """End it, as the hook leaves; patches and events are taken back by the session."""
