"""The first line of a recording."""

from __future__ import annotations

import msgspec

from aitop.model.snapshot import Target

RECORDING_VERSION = 1


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording is of, written by which `aitop`. `aitop_recording` is the version of the format.

    `created` is an ISO 8601 time in UTC. Every later line is one event (see model.event).
    """

    aitop_recording: int
    aitop: str
    target: Target
    created: str
