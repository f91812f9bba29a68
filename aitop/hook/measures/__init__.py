"""What the hook measures beside the phases of each step. Each measure is a file here and a row of `MEASURES`.

With `aitop run` or an import, all measures are loaded at once. An attach installs the core of the hook first and loads
most measures afterwards, a few per tick, while the run goes on.

To add one, write a file with a subclass of `Measure`, a row below, and fields for its facts in `HookFacts`
(model/steps.py). A measure that times a phase of its own notes an event, which needs a row in model/phases.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..patches import Patches

if TYPE_CHECKING:
    from ..session import Session

# Module and class of each measure, in the order in which they are loaded.
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
    "padding.Padding",
    "compiles.Compiles",
    "serving.vllm.Vllm",
    "serving.batching.Batching",
    "serving.litserve.LitServe",
    "serving.http.Http",
)

# The measures of a web server without torch, which forwards requests to other processes.
FRONT = ("serving.http.Http",)
# Such a process has at least one of these modules loaded.
WEB_SERVERS = (
    "uvicorn.server",
    "gunicorn.workers",
    "aiohttp.web_protocol",
    "tornado.httpserver",
    "grpc._server",
    "waitress.server",
    "http.server",
)

# Measures that an attach loads at once if one of these modules is there. Others are loaded at ticks, which such a
# process may never reach: it may never make a step.
AT_ONCE = {"serving.vllm.Vllm": ("vllm.v1.core.sched.scheduler",), "serving.http.Http": WEB_SERVERS}


class Measure:
    """One measurement of the hook. It may put patches in and note events in the session's journal.

    If it fails, the hook goes on without it. `watches` names the figures that it adds to steps (transfer, blocking,
    collective, tokens).
    """

    watches: tuple[str, ...] = ()

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        """Begin to measure. `torch` is None in a web server without torch."""

    def look(self, now: int) -> None:
        """Do what is due at `now` (ns). Called a few times a second, between the stepping thread's calls into torch."""

    def facts(self) -> dict[str, Any]:
        """Return its facts: JSON values by the names of the fields of `HookFacts`. Called about once a second."""
        return {}

    def over(self) -> None:
        """Clean up as the hook leaves. The session itself undoes the patches and writes the last events."""
