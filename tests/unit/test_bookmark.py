"""Read on from a bookmark, a history is the same as one read from the start."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from aitop.engine import outline
from aitop.engine.core import Engine
from aitop.engine.history import KEEP_SECONDS, History
from aitop.engine.outline import SLACK_SECONDS, lasting
from aitop.engine.replay import ReplayFeed
from aitop.model.snapshot import Tick
from aitop.model.steps import HookSample
from aitop.outputs.recording import RecordingWriter
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
    whole, marks, compared = History(target), [], 0
    for lines, event in enumerate(events, 1):
        whole.add(event)
        if not isinstance(event, Tick):
            continue
        if whole.tick_count % 60 == 0:
            marks.append((event.time, lines, lasting(whole)))
        if marks and marks[0][0] <= event.time - KEEP_SECONDS - SLACK_SECONDS:
            _, begun, bookmark = marks.pop(0)
            again = lasting(bookmark)
            for late in events[begun:lines]:
                again.add(late)
            assert again == whole
            compared += 1
    assert compared >= 3


def test_lines_can_be_passed_over_and_ticks_be_found_alone():
    whole = list(Recording(SLOW_LOADER).events())
    reader = Recording(SLOW_LOADER).events()
    seen = [next(reader) for _ in range(10)]
    at = reader.lines
    rest = Recording(SLOW_LOADER).events()
    rest.skip(at)
    assert seen + list(rest) == whole
    assert list(Recording(SLOW_LOADER).events().ticks()) == [one for one in whole if isinstance(one, Tick)]


def test_a_far_place_is_reached_from_a_bookmark_and_looks_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(outline, "KEEP_SECONDS", 5.0)
    monkeypatch.setattr(outline, "SLACK_SECONDS", 0.0)
    monkeypatch.setattr(outline, "BOOKMARK_TICKS", 4)
    path = tmp_path / "two-minutes.jsonl"
    target, events = minutes(2)
    writer = RecordingWriter(path, target)
    for event in events:
        writer.write(event)
    writer.close()
    feed, shown, came = ReplayFeed(Recording(path)), [], threading.Condition()

    def publish(snapshot):
        with came:
            shown.append(snapshot)
            came.notify_all()

    feed.pause()
    feed.start(publish)
    feed._outline._thread.join(30)
    assert feed._outline.tick_to_read_from(100) > 80
    feed.seek_to(feed._outline.times[99] - feed._outline.times[0])
    with came:
        assert came.wait_for(lambda: shown, 10)
    feed.stop()
    engine = Engine(target)
    played = [snapshot for snapshot in map(engine.handle, events) if snapshot is not None][99]
    assert shown[0].tick == 100 and shown[0].time == played.time
    assert [one.id for one in shown[0].diagnosis.verdicts] == [one.id for one in played.diagnosis.verdicts]
    assert shown[0].steps.count == played.steps.count
