"""Read on from a bookmark, a history is the same as one read from the start."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from aitop.engine import replay as replay_module
from aitop.engine.bookmark import Bookmarks, lasting
from aitop.engine.history import History
from aitop.engine.replay import ReplayFeed
from aitop.model.snapshot import Tick
from aitop.model.steps import HookSample
from aitop.sources.replay import Recording, read_recording

SLOW_LOADER = Path(__file__).parents[1] / "recordings" / "slow-loader.jsonl.gz"


def minutes(count):
    """The recording over and over, with its times moved on."""
    header, events = read_recording(SLOW_LOADER)
    events = list(events)
    length, made = events[-1].time - events[0].time + 1.0, []
    for shift in range(int(count * 60 / length) + 1):
        for event in events:
            by = shift * length
            changes = {"time": event.time + by}
            if isinstance(event, HookSample):
                changes["steps"] = tuple(msgspec.structs.replace(one, end=one.end + by) for one in event.steps)
            made.append(msgspec.structs.replace(event, **changes))
    return header.target, made


@pytest.mark.parametrize("slow", [False, True], ids=["fast steps", "slow steps"])
def test_what_is_read_on_from_a_bookmark_is_what_was_read_from_the_start(slow):
    target, events = minutes(12)
    if slow:
        events = [msgspec.structs.replace(one, steps=one.steps[:1]) if isinstance(one, HookSample) else one
                  for one in events]  # fmt: skip
    whole, bookmarks, found = History(target), Bookmarks(target), 0
    for lines, event in enumerate(events, 1):
        whole.add(event)
        bookmarks.read(event, lines)
        if isinstance(event, Tick) and whole.tick_count % 150 == 0:
            mark = bookmarks.before(whole.tick_count, event.time)
            if mark is None:
                continue
            found += 1
            assert mark.lines < lines / 2
            again = lasting(mark.history)
            for late in events[mark.lines : lines]:
                again.add(late)
            assert again == whole
    assert found >= 1


def test_of_a_long_recording_few_bookmarks_are_kept():
    bookmarks = Bookmarks(read_recording(SLOW_LOADER)[0].target)
    for second in range(9000):
        bookmarks.read(Tick(time=float(second), wall=1e9 + second), second)
    assert 20 <= len(bookmarks._kept) <= 40
    assert bookmarks.before(8990, 8990.0).number > 8000
    assert bookmarks.before(200, 200.0) is None


def test_lines_can_be_passed_over_and_ticks_be_found_alone():
    whole = list(Recording(SLOW_LOADER).events())
    reader = Recording(SLOW_LOADER).events()
    seen = [next(reader) for _ in range(10)]
    at = reader.lines
    rest = Recording(SLOW_LOADER).events()
    rest.skip(at)
    assert seen + list(rest) == whole
    assert list(Recording(SLOW_LOADER).events().ticks()) == [one for one in whole if isinstance(one, Tick)]


def test_a_far_place_is_shown_at_once_and_again_when_all_is_known(monkeypatch):
    monkeypatch.setattr(replay_module, "MOST_JUDGED", 5)
    monkeypatch.setattr(replay_module, "LEAST_JUDGED", 2)
    recording = Recording(SLOW_LOADER)
    feed = ReplayFeed(recording.header.target, recording.events)
    shown, came = [], threading.Condition()

    def publish(snapshot):
        with came:
            shown.append(snapshot)
            came.notify_all()

    feed.pause()
    feed._outline.give_way(True)
    feed._outline.times = [one.time for one in recording.events() if isinstance(one, Tick)]
    feed._outline.measured.set()
    monkeypatch.setattr(feed._outline, "give_way", lambda wanted: None)
    feed.start(publish)
    feed.seek_to(1e9)
    with came:
        assert came.wait_for(lambda: shown, 10)
    assert feed._rough
    feed._outline._free.set()
    with came:
        assert came.wait_for(lambda: len(shown) == 2, 10)
    assert not feed._rough
    assert shown[0].tick == shown[1].tick
    feed.stop()
