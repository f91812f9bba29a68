"""Which windows ask who holds the interpreter's lock and who is on a core."""

from collections import Counter

from aitop.sources.stacks.pace import RARELY, GilWatch
from aitop.sources.stacks.speedscope import ThreadSamples


def asked(watch: GilWatch, windows: int, first: int = 0) -> str:
    """Of each window: - nothing, g the lock, b both."""
    return "".join(
        "-" if not watch.due(first=number < first) else "b" if watch.cores else "g" for number in range(windows)
    )


def test_both_are_asked_in_the_first_windows_and_then_rarely():
    windows = asked(GilWatch(), 22, first=3)
    assert windows == "bbb-----b-----b-----b-"
    assert "-" * RARELY not in windows


def test_while_other_threads_hold_the_lock_it_alone_is_asked_in_every_window():
    watch = GilWatch()
    assert asked(watch, 3, first=3) == "bbb"
    assert watch.taken(1, [ThreadSamples("metrics", False, Counter({(0,): 8}))], 24)
    assert asked(watch, 5) == "ggg--"
