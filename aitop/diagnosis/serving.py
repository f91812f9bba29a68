"""Waiting for requests: a run that only infers and stands where others hand it something is at leisure, not held up."""

from __future__ import annotations

import re

from aitop.diagnosis.evidence import Lines, main_lines
from aitop.model.snapshot import HotLine, Snapshot

# Where a server is given its next request: nothing was asked for. Who asks a service (urlopen, execute) waits for data.
GIVEN = re.compile(
    r"\.(?:accept|recv\w*|receive\w*|poll|select|consume|b[lr]?pop\w*|xread\w*|serve_forever|handle_request)\(|\bstdin\b"
)
HANDED_OVER = frozenset({"queue", "lock", "sleep"})


def takes_request(line: HotLine) -> bool:
    """Whether a line of inference outside of every phase waits for the next request."""
    if line.phase != "outside" or line.activity == "log":
        return False
    return line.activity == "queue" or GIVEN.search(line.text or "") is not None


def leisure(snapshot: Snapshot) -> Lines:
    """Lines on which a run that only infers waits for requests, or rests; none in training."""
    if snapshot.kind != "inference":
        return Lines(0.0, ())
    return main_lines(
        snapshot, lambda line: line.phase == "outside" and (takes_request(line) or line.activity in HANDED_OVER)
    )
