"""The layout of the ring: anonymous shared memory in the target, written by its hook and read by monitors.

It has three areas: a header of 8-byte words in the machine's byte order, JSON text (facts and allocator figures), and
`CAPACITY` events of `STRIDE` bytes (see events.py). All times are nanoseconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

MEMFD_NAME = "aitop-hook"
# Link target of a descriptor of that memory under /proc/PID/fd.
MEMFD_LINK = f"/memfd:{MEMFD_NAME} (deleted)"
MAGIC = int.from_bytes(b"AITOPRNG", "little")
VERSION = 2

WORD = 8
# Words of the header, by index.
W_MAGIC, W_VERSION, W_PID, W_STRIDE, W_CAPACITY, W_JSON_ROOM = 0, 1, 2, 3, 4, 5
# W_WRITTEN: number of events written so far. W_INSTALLED: when the hook came in.
# Word 9 is free.
W_WRITTEN, W_STATE, W_WAY, W_INSTALLED = 6, 7, 8, 10
# W_FACTS_SEQ: sequence lock of the JSON area, odd while it is being written. W_FACTS_LENGTH: bytes of the text in it.
W_FACTS_SEQ, W_FACTS_LENGTH = 11, 12
# A monitor's request for a profile: serial number in the bits above 16, number of steps below.
W_BURST = 13
# Lease slots, two words each: the monitor's pid and the deadline of its lease. A released slot has pid 0 and the
# deadline RELEASED, which distinguishes it from a slot that was never taken (both words 0).
W_SLOTS, SLOTS = 16, 8
RELEASED = 1
# W_WRITING: number of events written so far, plus those being written now. Events older than W_WRITING - CAPACITY may
# be overwritten at any moment.
# W_STEPS: approximate number of steps up to W_WRITTEN. W_TRAINS_UNTIL: until when the run counts as training.
W_WRITING, W_STEPS, W_TRAINS_UNTIL = 32, 33, 34
# Sequence number, in the process group of all ranks, of the last collective that was called; 0 before the first.
W_SEQUENCE = 35
# Number of requests in flight plus one; 0 where requests are not watched.
W_ALIVE = 36
# Number of header words in use, including the lease slots.
HEADER_WORDS = W_ALIVE + 1

HEADER_SIZE = 4096
JSON_ROOM = 28672
RECORDS_AT = HEADER_SIZE + JSON_ROOM
CAPACITY = 65536
EVENT_WORDS = 5
STRIDE = WORD * EVENT_WORDS
SIZE = RECORDS_AT + CAPACITY * STRIDE

STATE_INSTALLED, STATE_REMOVED = 1, 3
# How the hook came in. W_WAY is an index into this tuple.
WAYS = ("attach", "run", "import")
