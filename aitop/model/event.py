"""Everything that flows into the engine, live or replayed."""

from __future__ import annotations

from typing import Union

from aitop.model.gpu import GpuSample
from aitop.model.host import HostSample
from aitop.model.ranks import ExchangeNotes
from aitop.model.snapshot import GrowthSites, Target, Tick
from aitop.model.source import SourceStatus
from aitop.model.stacks import StackDump, StackWindow
from aitop.model.steps import HookSample

Sample = Union[HostSample, GpuSample, StackWindow, HookSample]  # noqa: UP007 - msgspec needs the union at run time
Event = Union[Sample, SourceStatus, Target, Tick, GrowthSites, StackDump, ExchangeNotes]  # noqa: UP007
