"""The ring's layout, version 1. The reader (aitop/sources/ring_format.py) states it again; a test holds them equal.

Header words are 8 bytes each, in the machine's byte order; all times are CLOCK_MONOTONIC nanoseconds.
Then comes an area of JSON (facts and allocators), then `CAPACITY` records of `STRIDE` bytes.
"""

from __future__ import annotations

MEMFD_NAME = "aitop-hook"
MAGIC = int.from_bytes(b"AITOPRNG", "little")
VERSION = 1

# Words of the header, by index.
W_MAGIC, W_VERSION, W_PID, W_STRIDE, W_CAPACITY, W_JSON_ROOM = 0, 1, 2, 3, 4, 5
W_WRITTEN, W_STATE, W_WAY, W_CONTROL, W_INSTALLED = 6, 7, 8, 9, 10
# The JSON area is being written while W_FACTS_SEQ is odd.
W_FACTS_SEQ, W_FACTS_LENGTH = 11, 12
# A monitor's request for a burst of torch.profiler: a serial number above 16 bits, the steps below. See burst.py.
W_BURST = 13
# Lease slots: monitor's pid and deadline. A released slot keeps a deadline of 1, so that "never taken" is told apart.
W_SLOTS, SLOTS = 16, 8

HEADER_SIZE = 4096
JSON_ROOM = 12288
RECORDS_AT = HEADER_SIZE + JSON_ROOM
CAPACITY = 4096
STRIDE = 256
SIZE = RECORDS_AT + CAPACITY * STRIDE

STATE_INSTALLED, STATE_REMOVING, STATE_REMOVED = 1, 2, 3
WAYS = ("attach", "run", "import")
CONTROL_LEAVE = 1

KIND_TRAIN, KIND_INFER = 0, 1
NOT_MEASURED = -1
# One record: signed 64-bit integers. `number` opens and closes it, so that a torn record shows.
FIELDS = (
    "number",
    "index",
    "kind",
    "end",
    "seconds",
    "data_wait",
    "loader_start",
    "prepare",
    "forward",
    "backward",
    "optimizer",
    "save",
    "evaluation",
    "gc",
    "transfer",
    "cpu",
    "forwards",
    "backwards",
    "samples",
    "queue_ready",
    "device_forward",
    "device_backward",
    "device_optimizer",
    "device_idle",
    "number_again",
)
RECORD_FORMAT = f"={len(FIELDS)}q"

GRACE_NS = 10_000_000_000
