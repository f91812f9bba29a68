"""Everything that flows into the engine, live or replayed, and what a recording of it begins with."""

from __future__ import annotations

from typing import Union

import msgspec

from aitop.model.gpu import GpuSample
from aitop.model.host import HostSample
from aitop.model.ranks import ExchangeNotes
from aitop.model.serving import ServerSample
from aitop.model.snapshot import GrowthSites, Target, Tick
from aitop.model.source import SourceStatus
from aitop.model.stacks import StackDump, StackWindow
from aitop.model.steps import HookSample

# msgspec needs the unions at run time.
Sample = Union[HostSample, GpuSample, StackWindow, HookSample, ServerSample]  # noqa: UP007
Event = Union[Sample, SourceStatus, Target, Tick, GrowthSites, StackDump, ExchangeNotes]  # noqa: UP007

RECORDING_VERSION = 1


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording is of, written by which `aitop`. `aitop_recording` is the version of the format.

    `created` is an ISO 8601 time in UTC. Every later line is one event.
    """

    aitop_recording: int
    aitop: str
    target: Target
    created: str
