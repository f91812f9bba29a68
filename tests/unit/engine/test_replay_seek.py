"""A replay shows at a place what it shows when played there, from a bookmark too, and says where it stands."""

import threading
from types import SimpleNamespace

import msgspec
import pytest
from recorded_runs import SLOW_LOADER, snapshots_of
from run_events import TARGET, play, session

from aitop.engine import outline
from aitop.engine.core import Engine
from aitop.engine.history import KEEP_SECONDS, History
from aitop.engine.outline import SLACK_SECONDS, lasting
from aitop.engine.replay import ReplayFeed
from aitop.model.event import Event
from aitop.model.snapshot import Target, Tick
from aitop.model.steps import HookSample, StepRecord
from aitop.outputs.recording import RecordingWriter
from aitop.sources.replay import Recording, read_recording


@pytest.fixture(scope="module")
def played():
    """Every snapshot of the recording, as it comes when played from the start."""
    return [msgspec.json.encode(snapshot) for snapshot in snapshots_of("slow-loader")]


class Seen:
    """Takes what a feed publishes, and waits for a certain one."""

    def __init__(self):
        self.last = None
        self._came = threading.Condition()

    def __call__(self, snapshot):
        with self._came:
            self.last = snapshot
            self._came.notify_all()

    def at(self, tick):
        with self._came:
            assert self._came.wait_for(lambda: self.last is not None and self.last.tick == tick, 20), self.last
            return msgspec.json.encode(self.last)


@pytest.fixture
def replay():
    recording = Recording(SLOW_LOADER)
    feed = ReplayFeed(recording)
    feed.pause()
    yield feed
    feed.stop()


def test_every_place_reached_from_anywhere_is_what_playing_shows(replay, played):
    seen = Seen()
    replay.start(seen)
    assert replay.wait_until_measured(20)
    times = [snapshot.time for snapshot in snapshots_of("slow-loader")]
    assert len(times) == len(played)
    for tick in (9, 3, 20, 19, len(played), 1, 13, 14):
        replay.seek_to(times[tick - 1] - times[0])
        assert seen.at(tick) == played[tick - 1]
    replay.step(-1)
    assert seen.at(13) == played[12]
    replay.step(3)
    assert seen.at(16) == played[15]


def test_a_request_just_before_the_wait_for_a_tick_is_not_missed(replay, monkeypatch):
    replay.resume()
    replay._rewind()
    assert replay._ahead() is not None
    replay._take_tick(None)
    waits = []
    monkeypatch.setattr(replay._wake, "wait", lambda seconds: waits.append(seconds) or True)
    assert not replay._is_due() and len(waits) == 1
    for ask in (lambda: replay.step(1), replay.pause):
        ask()
        assert not replay._is_due() and len(waits) == 1


def test_it_says_where_it_stands_and_where_verdicts_change(replay, played):
    seen = Seen()
    replay.start(seen)
    assert replay.wait_until_outlined(30)
    times = [snapshot.time for snapshot in snapshots_of("slow-loader")]
    replay.seek_to(times[16] - times[0])
    assert seen.at(17) == played[16]
    position = replay.position()
    assert position.duration == pytest.approx(times[-1] - times[0])
    assert position.seconds == pytest.approx(times[16] - times[0])
    assert not position.playing
    assert [mark.words for mark in position.marks][:1] == ["input-bound"]


def test_seeks_add_up_and_the_ends_stop_them(replay, played):
    seen = Seen()
    replay.start(seen)
    assert replay.wait_until_measured(20)
    replay.seek_by(-10)
    assert seen.at(1) == played[0]
    for _ in range(20):
        replay.seek_by(10)
    assert seen.at(len(played)) == played[-1]
    replay.seek_to(0.0)
    assert seen.at(1) == played[0]


def test_a_step_back_during_a_step_forward_shows_the_right_place(played):
    """Two steps on and one back, faster than they can be gone."""
    recording = Recording(SLOW_LOADER)

    class Impatient:
        header = recording.header

        def events(self):
            for event in recording.events():
                if isinstance(event, Tick):
                    ticks.append(event)
                    if len(ticks) == 4:
                        feed.step(-1)
                yield event

    ticks, seen = [], Seen()
    feed = ReplayFeed(Impatient())
    # Nothing but the way of the feed itself is to read the events.
    feed._outline.start = lambda: None
    feed.step(4)
    feed.start(seen)
    try:
        assert seen.at(3) == played[2]
    finally:
        feed.stop()


def test_at_its_end_it_waits_and_goes_on_from_the_start(replay, played):
    seen = Seen()
    replay.set_speed(1e6)
    replay.start(seen)
    replay.resume()
    assert replay.finished.wait(20)
    seen.at(len(played))
    assert replay.position().ended
    replay.resume()
    replay.pause()
    assert seen.at(1) == played[0]
    assert not replay.position().ended


def test_a_recording_that_breaks_off_can_be_played_to_there(tmp_path):
    whole = SLOW_LOADER.read_bytes()
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(whole[: len(whole) // 2])
    recording = Recording(torn)
    ticks = sum(isinstance(event, Tick) for event in Recording(torn).events())
    assert ticks > 3
    feed = ReplayFeed(recording)
    feed.pause()
    seen = Seen()
    feed.start(seen)
    assert feed.wait_until_measured(20)
    feed.seek_to(1e9)
    seen.at(ticks)
    feed.stop()


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
                changes["steps"] = tuple(msgspec.structs.replace(record, end=record.end + by) for record in event.steps)
            made.append(msgspec.structs.replace(event, **changes))
    return header.target, made


@pytest.mark.parametrize("slow", [False, True], ids=["fast steps", "slow steps"])
def test_the_history_from_a_bookmark_on_equals_that_from_the_start(slow):
    target, events = minutes(8.5)
    if slow:
        events = [msgspec.structs.replace(event, steps=event.steps[:1]) if isinstance(event, HookSample) else event
                  for event in events]  # fmt: skip
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
    assert list(Recording(SLOW_LOADER).events().ticks()) == [event for event in whole if isinstance(event, Tick)]


def test_a_far_place_is_reached_from_a_bookmark_and_looks_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(outline, "KEEP_SECONDS", 5.0)
    monkeypatch.setattr(outline, "SLACK_SECONDS", 0.0)
    monkeypatch.setattr(outline, "BOOKMARK_TICKS", 4)
    path = tmp_path / "half-a-minute.jsonl"
    target, events = minutes(0.4)
    writer = RecordingWriter(path, target)
    for event in events:
        writer.write(event)
    writer.close()
    feed, seen = ReplayFeed(Recording(path)), Seen()
    feed.pause()
    feed.start(seen)
    assert feed.wait_until_outlined(30)
    assert feed._outline.bookmark_for(27).tick > 12
    times = [event.time for event in events if isinstance(event, Tick)]
    feed.seek_to(times[26] - times[0])
    seen.at(27)
    feed.stop()
    engine = Engine(target)
    played = [snapshot for snapshot in map(engine.handle, events) if snapshot is not None][26]
    assert seen.last.time == played.time
    assert [verdict.id for verdict in seen.last.diagnosis.verdicts] == [
        verdict.id for verdict in played.diagnosis.verdicts
    ]
    assert seen.last.steps.count == played.steps.count


@pytest.mark.parametrize("length", [0.2, 1.0, 3.0])
def test_every_checkpoint_is_marked_where_it_was_written(tmp_path, length):
    path, every = tmp_path / "saves.jsonl", round(9 / length)
    writer = RecordingWriter(path, Target(pid=1, command="python train.py"))
    ends = [100.05 + number * length for number in range(1, round(60 / length))]
    saving = [end for number, end in enumerate(ends[:-2]) if number % every == every // 2]
    steps = [
        StepRecord(index=number, end=end, seconds=length, save=0.1 if end in saving else 0.0, kind="train")
        for number, end in enumerate(ends)
    ]
    ticks = [Tick(time=100.0 + second, wall=1e9 + second) for second in range(61)]
    events = [HookSample(time=step.end, pid=1, steps=(step,)) for step in steps]
    for event in sorted((*events, *ticks), key=lambda event: event.time):
        writer.write(event)
    writer.close()
    read = outline.Outline(Recording(path))
    read.start()
    assert read.wait(30)
    marked = [mark.seconds for mark in read.marks if mark.words == "checkpoint"]
    assert len(saving) >= 5 and marked == [int(end) + 1 - 100.0 for end in saving]


class Recorded:
    """What a recording of these events gives."""

    header = SimpleNamespace(target=TARGET)

    def __init__(self, make):
        self.events = lambda: iter(make())


def test_a_replay_gives_the_same_snapshots():
    events = session(10, data_wait=0.05, forward=0.03)
    decoder = msgspec.json.Decoder(Event)
    replayed = []
    feed = ReplayFeed(Recorded(lambda: [decoder.decode(msgspec.json.encode(event)) for event in events]), speed=None)
    feed.start(replayed.append)
    assert feed.finished.wait(10)
    feed.stop()
    live = play(events)
    assert [msgspec.json.encode(snapshot) for snapshot in replayed] == [
        msgspec.json.encode(snapshot) for snapshot in live
    ]


def test_a_paused_replay_waits():
    feed = ReplayFeed(Recorded(lambda: session(50)), speed=None)
    feed.pause()
    seen = []
    feed.start(seen.append)
    assert not feed.finished.wait(0.2)
    assert seen == []
    feed.resume()
    assert feed.finished.wait(10)
    feed.stop()
    assert len(seen) == 50


def test_a_replay_that_fails_says_so():
    def broken():
        yield from session(3)
        raise RuntimeError("a bug of ours")

    seen = []
    feed = ReplayFeed(Recorded(broken), speed=None)
    feed.start(seen.append)
    assert feed.finished.wait(10)
    feed.stop()
    assert "a bug of ours" in seen[-1].target.ended
