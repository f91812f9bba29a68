"""The ring's layout, version 2. The reader (aitop/sources/ring_format.py) states it again; a test holds them equal.

Header words are 8 bytes each, in the machine's byte order; all times are CLOCK_MONOTONIC nanoseconds.
Then comes an area of JSON (facts and allocators), then `CAPACITY` events of `STRIDE` bytes: signed words (journal.py).
"""

from __future__ import annotations

MEMFD_NAME = "aitop-hook"
MAGIC = int.from_bytes(b"AITOPRNG", "little")
VERSION = 2

# Words of the header, by index.
W_MAGIC, W_VERSION, W_PID, W_STRIDE, W_CAPACITY, W_JSON_ROOM = 0, 1, 2, 3, 4, 5
W_WRITTEN, W_STATE, W_WAY, W_CONTROL, W_INSTALLED = 6, 7, 8, 9, 10
# The JSON area is being written while W_FACTS_SEQ is odd.
W_FACTS_SEQ, W_FACTS_LENGTH = 11, 12
# A monitor's request for a burst of torch.profiler: a serial number above 16 bits, the steps below. See burst.py.
W_BURST = 13
# Lease slots: monitor's pid and deadline. A released slot keeps a deadline of 1, so that "never taken" is told apart.
W_SLOTS, SLOTS = 16, 8
# W_WRITTEN counts the events ever written, W_WRITING those and what is just being written: older ones than that less
# CAPACITY may be overwritten at any moment. Steps up to W_WRITTEN, roughly; until when it counts as training.
W_WRITING, W_STEPS, W_TRAINS_UNTIL = 32, 33, 34
# The collective that was called last has this number in the group of all ranks; 0 before the first.
W_SEQUENCE = 35

HEADER_SIZE = 4096
JSON_ROOM = 28672
RECORDS_AT = HEADER_SIZE + JSON_ROOM
CAPACITY = 65536
STRIDE = 40
SIZE = RECORDS_AT + CAPACITY * STRIDE

STATE_INSTALLED, STATE_REMOVING, STATE_REMOVED = 1, 2, 3
WAYS = ("attach", "run", "import")
CONTROL_LEAVE = 1

NOT_MEASURED = -1

# With the look after it, and an attach that a busy target takes late, less than two leases: a monitor may be killed
# before its first.
GRACE_NS = 6_000_000_000
