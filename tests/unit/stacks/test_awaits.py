"""For which line an event loop waits."""

from collections import Counter

from stack_maker import stack

from aitop.stacks.awaits import awaited
from aitop.stacks.reading import read_stack

RUN = (
    "user/train.py:90 <module>",
    "std/asyncio/runners.py:118 Runner.run",
    "std/asyncio/base_events.py:607 run_forever",
)
WAITS = (*RUN, "std/asyncio/base_events.py:1884 BaseEventLoop._run_once", "std/selectors.py:468 EpollSelector.select")
RUNS = (*RUN, "std/asyncio/base_events.py:1922 BaseEventLoop._run_once", "std/asyncio/events.py:80 Handle._run")
TRAINS = (*RUNS, "user/train.py:40 learn", "torch/_tensor.py:623 Tensor.backward")
COUNTS = (*RUNS, "user/train.py:41 learn")


def asks(line, *above):
    return (*RUNS, *above, f"user/places.py:{line} ask", "aiohttp/client.py:900 ClientSession._request")


def read(*samples):
    return Counter({read_stack(stack(*frames)): count for frames, count in samples})


def line_of(stacks):
    [(wait, for_what)] = awaited(stacks).items()
    assert wait.frames[-1].function == "EpollSelector.select" and for_what.state == "wait-network"
    return for_what.line.line, [frame.line for frame in for_what.via]


def test_a_wait_is_for_the_line_that_was_seen_most_often_as_it_uses_the_network():
    stacks = read((WAITS, 200), (TRAINS, 60), (COUNTS, 30), (asks(12, "user/train.py:38 learn"), 3), (asks(19), 2))
    assert line_of(stacks) == (12, [90, 38])


def test_no_line_is_named_without_one_that_uses_the_network_or_where_nothing_is_trained():
    assert awaited(read((WAITS, 200), (TRAINS, 60), (COUNTS, 30))) == {}
    assert awaited(read((WAITS, 200), (COUNTS, 60), (asks(12), 3))) == {}, "a server, perhaps"
    assert awaited(read((TRAINS, 60), (asks(12), 3))) == {}, "it never waits"
