"""A replay: the same panes, and a line that says where it stands and takes it elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from aitop.engine.replay import ReplayFeed
from aitop.sources.replay import Recording
from aitop.ui.screens.replay import clock, seconds_of

SLOW_LOADER = Path(__file__).parents[1] / "recordings" / "slow-loader.jsonl.gz"


@pytest.fixture
def replay():
    """A feed that plays a recording of 24 s, with or without its pace."""

    def make(speed):
        recording = Recording(SLOW_LOADER)
        return ReplayFeed(recording, speed)

    return make


def tick(eyes):
    snapshot = eyes.app.screen.view.snapshot
    return snapshot.tick if snapshot else 0


async def until_tick(eyes, *ticks):
    """Wait for the picture of one of these ticks of the recording."""
    await eyes.until_true(lambda: tick(eyes) in ticks, f"a picture of tick {ticks}")


async def until_measured(eyes, feed):
    """Wait until it is known how long the recording is."""
    await eyes.until_true(lambda: feed.position().duration is not None, "a measured recording")


def panes(eyes):
    """What all panes show, without the replay's own lines. Rows of code keep to the order in which they came up."""
    shown = {name: eyes.pane(name) for name in eyes.shown() - {"replay", "header", "footer"}}
    return {**shown, "code": sorted(shown["code"].split("\n"))}


async def test_played_and_sought_look_the_same(look_at, replay):
    played = replay(200.0)
    async with look_at(feed=played, size=(120, 70)) as eyes:
        await eyes.until_true(lambda: played.finished.is_set() and tick(eyes) == 28, "the end of the recording")
        at_the_end = panes(eyes)
        assert "INPUT-BOUND" in at_the_end["verdict"]
    sought = replay(1.0)
    async with look_at(feed=sought, size=(120, 70)) as eyes:
        await until_measured(eyes, sought)
        await eyes.press("ctrl+end")
        await until_tick(eyes, 28)
        assert panes(eyes) == at_the_end
        await eyes.press("left_square_bracket")
        await until_tick(eyes, *range(28))
        assert panes(eyes) != at_the_end
        await eyes.press("ctrl+end")
        await until_tick(eyes, 28)
        assert panes(eyes) == at_the_end


async def test_the_line_says_where_it_stands_and_the_keys_move_it(look_at, replay):
    feed = replay(1.0)
    async with look_at(feed=feed) as eyes:
        await eyes.press("space")
        await until_measured(eyes, feed)
        await eyes.until("0:23  ")
        assert "PAUSED" in eyes.pane("header")
        assert "‖" in eyes.pane("replay")
        await eyes.press("g", "0", ":", "1", "2", "enter")
        await until_tick(eyes, 15)
        await eyes.until("0:12 / 0:23")
        await eyes.press("full_stop", "full_stop", "comma")
        await until_tick(eyes, 16)
        await eyes.press("plus", "plus", "minus")
        await eyes.until("2×")
        await eyes.press("ctrl+home")
        await until_tick(eyes, 1)
        await eyes.press("g", "x", "5", "escape")
        assert "m:ss" not in eyes.pane("replay")
        assert tick(eyes) == 1
        await eyes.press("space")
        assert "PAUSED" not in eyes.pane("header")
        assert "▶" in eyes.pane("replay")


async def test_a_click_on_the_bar_goes_there(look_at, replay):
    feed = replay(1.0)
    async with look_at(feed=feed) as eyes:
        await eyes.press("space")
        await until_measured(eyes, feed)
        await eyes.until("0:23")
        line = eyes.pane("replay")
        start, end = line.index("●"), line.rindex("─")
        await eyes.pilot.click("#replay", offset=((start + end) // 2, 0))
        await until_tick(eyes, *range(13, 18))
        await eyes.press("home")
        await until_tick(eyes, 1)
        await eyes.press("right")
        await eyes.until("0:10 / 0:23")


async def test_marks_stand_where_the_verdict_changes(look_at, replay):
    feed = replay(1.0)
    async with look_at(feed=feed) as eyes:
        await eyes.press("space")
        await eyes.until_true(lambda: feed.position().marks and "◆" in eyes.pane("replay"), "a mark")
        await eyes.press("ctrl+end")
        await eyes.until("◆ input-bound")


async def test_there_is_room_for_it_at_every_size(look_at, replay):
    feed = replay(None)
    async with look_at(feed=feed, size=(30, 11)) as eyes:
        await eyes.until_true(feed.finished.is_set, "the end of the recording")
        for columns, rows in ((30, 11), (40, 12), (60, 16), (80, 24), (200, 50)):
            await eyes.resize(columns, rows)
            assert [cell_len(row) for row in eyes.text().split("\n")] == [columns] * rows
            assert ("replay" in eyes.shown()) == (rows >= 12)
            await eyes.press("z", "g", "z", "escape", "z")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (754.9, "12:34"), (3723, "1:02:03")])
def test_times_are_written_and_read(seconds, text):
    assert clock(seconds) == text
    assert seconds_of(text) == int(seconds)


def test_what_is_no_time_is_none():
    assert seconds_of("") is None
    assert seconds_of("1:x") is None
    assert seconds_of("90.5") == 90.5
