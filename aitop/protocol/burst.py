"""The layout of the memory in which the hook hands out a profile (a burst of torch.profiler).

A header of 8-byte words, then at `TEXT_AT` the reason of a refusal, and at `TRACE_AT` the trace as torch wrote it.
"""

from __future__ import annotations

import struct

MEMFD_NAME = "aitop-burst"
# What a descriptor of that memory is called under /proc/PID/fd.
MEMFD_LINK = f"/memfd:{MEMFD_NAME} (deleted)"
MAGIC = int.from_bytes(b"AITOPBST", "little")
# Magic, serial number of the request, state, steps in the trace, begin and end (monotonic nanoseconds), how long the
# target was held up by starting, stopping and saving (nanoseconds), bytes of the trace or of the reason.
HEADER = struct.Struct("=10Q")
TEXT_AT, TEXT_ROOM, TRACE_AT = 128, 1024, 4096
WAITING, RUNNING, DONE, REFUSED = 1, 2, 3, 4
MOST_STEPS = 1000
# Folders that torch writes a trace into are called this, the pid, a hyphen, and what makes the name unique.
FOLDER_PREFIX = "aitop-burst-"
