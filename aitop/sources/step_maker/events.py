"""The events of a hook's ring, as aitop/hook/journal.py states them; a test holds the two equal."""

from __future__ import annotations

NOT_MEASURED = -1

LOADER, NEXT, NO_NEXT, FORWARD, FORWARD_ALONE, BACKWARD, OPTIMIZER_BEGINS, OPTIMIZER_ENDS = range(8)
SAVE, COLLECT, ASIDE = range(8, 11)
TRANSFER, BLOCKING, COLLECTIVE, GENERATE, SKIPPED = range(11, 16)
OWNER, TRAINED, TIMED, DEVICE, DEVICE_REST = range(16, 21)
PAUSE, RESTED, UNSEEN = range(21, 24)
KINDS = 24
# What a phase is made of is noted before its end.
PHASES = (LOADER, NEXT, NO_NEXT, FORWARD, FORWARD_ALONE, BACKWARD, OPTIMIZER_ENDS, SAVE)
# In these `start` and `end` are no moments.
UNTIMED = (DEVICE, DEVICE_REST)


# kind, start, end, a, b: what happened from `start` to `end` (monotonic nanoseconds); a and b depend on `kind`.
Event = tuple[int, int, int, int, int]
