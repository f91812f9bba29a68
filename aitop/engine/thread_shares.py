"""What the threads of a window did: at work or waiting, and who held the interpreter's lock. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aitop.engine.stack_digest import Digest, Seen, ThreadKey
from aitop.model.snapshot import ThreadShare
from aitop.model.stacks import StackWindow

WAITING = frozenset({"queue", "lock", "sleep", "io-network"})
STEPPING = frozenset({"data_wait", "forward", "backward", "optimizer"})
# A main thread that does more than this besides waiting is the one to look at.
MAIN_WORKS = 0.1


def lead_thread(threads: Mapping[ThreadKey, Mapping[Seen, int]]) -> ThreadKey | None:
    """The thread of a process that steps: the main one, unless that only waits while another runs the model.

    None where the main thread was not sampled and no other one steps.
    """
    main = next((key for key in threads if key.main), None)
    if main is not None and (_stepping(threads[main]) or _working(threads[main]) > MAIN_WORKS):
        return main
    others = {key: _stepping(stacks) for key, stacks in threads.items() if not key.main}
    most = max(others, key=lambda key: others[key], default=None)
    if most is not None and others[most]:
        return most
    # A step may be so long that its model was not met yet.
    busy = [key for key in others if _working(threads[key]) > 0.5 and any(seen.line for seen in threads[key])]
    return busy[0] if main is not None and len(busy) == 1 else main


def _stepping(stacks: Mapping[Seen, int]) -> int:
    return sum(count for seen, count in stacks.items() if seen.phase in STEPPING and not seen.importing)


def _working(stacks: Mapping[Seen, int]) -> float:
    """Share of samples that do something else than wait."""
    samples = sum(stacks.values())
    return sum(count for seen, count in stacks.items() if seen.activity not in WAITING) / samples if samples else 0.0


def thread_shares(windows: Sequence[StackWindow], merged: Digest) -> tuple[ThreadShare, ...]:
    """Every sampled thread, the main one of each process first, then by the share in which it held the lock.

    `gil` is None for processes of which no window asked.
    """
    asked: dict[int, int] = {}
    held: dict[tuple[int, str], int] = {}
    for window in windows:
        for pid, looks in {hold.pid: hold.asked for hold in window.gil or ()}.items():
            asked[pid] = asked.get(pid, 0) + looks
        for hold in window.gil or ():
            held[hold.pid, hold.thread] = held.get((hold.pid, hold.thread), 0) + hold.samples
    shares = [
        (not key.main, _share(key, stacks, asked.get(key.pid), held.get((key.pid, key.thread), 0)))
        for key, stacks in merged.items()
    ]
    return tuple(share for _, share in sorted(shares, key=lambda pair: (pair[1].pid, pair[0], -(pair[1].gil or 0.0))))


def _share(key: ThreadKey, stacks: dict[Seen, int], asked: int | None, held: int) -> ThreadShare:
    samples = sum(stacks.values())
    waiting = sum(count for seen, count in stacks.items() if seen.activity in WAITING)
    return ThreadShare(
        pid=key.pid,
        thread=key.thread,
        samples=samples,
        active=1.0 - waiting / samples if samples else None,
        gil=min(1.0, held / asked) if asked else None,
    )
