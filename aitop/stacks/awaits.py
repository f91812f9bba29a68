"""Tells for which line an event loop waits: a coroutine that awaits is on no stack. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from msgspec.structs import replace

from aitop.stacks.position import UPDATES
from aitop.stacks.reading import Seen


def awaited(stacks: Mapping[Seen, int]) -> dict[Seen, Seen]:
    """By each stack on which the event loop of a thread that trains waits, the stack of what is taken to await.

    That is the line whose coroutine was seen most often as it uses the network: it was about to await the answer, or
    had just got it. Empty where no such line was seen, or if the thread trains nothing: a server's event loop waits for
    requests, whatever else its handlers ask for.
    """
    waits = [seen for seen in stacks if _waits_in_loop(seen)]
    if not waits or not any(seen.phase in UPDATES for seen in stacks):
        return {}
    lines: defaultdict[tuple[str, int], Counter[Seen]] = defaultdict(Counter)
    for seen, count in stacks.items():
        if seen.handler == "event-loop" and seen.phase == "outside" and seen.work == "network" and seen.line:
            lines[seen.line.file, seen.line.line][seen] += count
    if not lines:
        return {}
    [(asks, _)] = max(lines.values(), key=Counter.total).most_common(1)
    return dict.fromkeys(waits, replace(asks, state="wait-network"))


def _waits_in_loop(seen: Seen) -> bool:
    """Whether asyncio's event loop waits for events."""
    if len(seen.frames) < 2 or seen.handler is not None:
        return False
    loop, wait = seen.frames[-2:]
    return loop.function.endswith("_run_once") and wait.file.endswith("/selectors.py")
