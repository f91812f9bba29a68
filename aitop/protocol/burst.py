"""The layout of the shared memory through which the hook hands out a profile (a burst of torch.profiler).

It holds a header of 8-byte words, the reason for a refusal at `TEXT_AT`, and the trace as torch wrote it at `TRACE_AT`.
"""

from __future__ import annotations

import struct

MEMFD_NAME = "aitop-burst"
# Link target of a descriptor of that memory under /proc/PID/fd.
MEMFD_LINK = f"/memfd:{MEMFD_NAME} (deleted)"
MAGIC = int.from_bytes(b"AITOPBST", "little")
# Magic, serial number of the request, state, steps in the trace, begin and end (CLOCK_MONOTONIC nanoseconds), how long
# starting, stopping and saving each held up the target (three words, nanoseconds), bytes of the trace or of the reason.
HEADER = struct.Struct("=10Q")
TEXT_AT, TEXT_ROOM, TRACE_AT = 128, 1024, 4096
WAITING, RUNNING, DONE, REFUSED = 1, 2, 3, 4
MOST_STEPS = 1000
# torch writes a trace into a folder named: this prefix, the pid, a hyphen, a random suffix.
FOLDER_PREFIX = "aitop-burst-"
