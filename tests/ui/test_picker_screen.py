"""Choosing a job."""

from contextlib import asynccontextmanager

import pytest
import sample_snapshots as samples

from aitop.ui.app import PickerApp
from aitop.ui.widgets.pane import Pane


@asynccontextmanager
async def picker(find, size=(120, 20)):
    app = PickerApp(find)
    async with app.run_test(size=size) as pilot:
        pane = app.screen.query_one("#candidates", Pane)
        while "looking for" in "".join(line.text for line in pane.drawn) or not pane.drawn:
            await pilot.pause(0.01)
        yield app, pilot, lambda: "\n".join(line.text for line in pane.drawn)


@pytest.mark.parametrize("size", [(20, 5), (80, 24), (120, 20), (200, 50)], ids=str)
async def test_a_row_a_job(size):
    async with picker(samples.candidates, size) as (_app, _pilot, text):
        assert "3720" in text()
        if size[0] >= 80:
            assert "811" in text()
            assert "torchrun" in text()


async def test_arrows_and_enter_choose():
    async with picker(samples.candidates) as (app, pilot, text):
        assert text().split("\n")[2].startswith("│ ▸     3720")
        await pilot.press("down", "down", "down", "up", "enter")
    assert app.return_value == 811


async def test_the_choice_stays_on_its_job_when_the_list_changes():
    jobs = samples.candidates()
    lists = [jobs, jobs[::-1]]
    async with picker(lambda: lists.pop(0) if lists else jobs[::-1]) as (app, pilot, text):
        await pilot.press("down", "r")
        while "99" not in text().split("\n")[2]:
            await pilot.pause(0.01)
        await pilot.press("enter")
    assert app.return_value == 811


async def test_the_cursor_stays_on_the_first_job_when_another_comes_before_it():
    jobs = samples.candidates()
    lists = [jobs[1:]]
    async with picker(lambda: lists.pop(0) if lists else jobs) as (app, pilot, text):
        assert "811" in text().split("\n")[2]
        await pilot.press("r")
        while "3720" not in text().split("\n")[2]:
            await pilot.pause(0.01)
        await pilot.press("enter")
    assert app.return_value == 811


async def test_a_job_that_is_gone_cannot_be_chosen():
    lists = [samples.candidates()]
    async with picker(lambda: lists.pop(0) if lists else []) as (app, pilot, text):
        await pilot.press("r")
        while "There is no AI process" not in text():
            await pilot.pause(0.01)
        await pilot.press("enter")
        assert app.is_running
        await pilot.press("q")
    assert app.return_value is None


@pytest.mark.parametrize("key", ["q", "escape"])
async def test_leaving_chooses_nothing(key):
    async with picker(samples.candidates) as (app, pilot, _text):
        await pilot.press(key)
    assert app.return_value is None


async def test_nothing_found_says_what_to_do():
    async with picker(list) as (app, pilot, text):
        assert "There is no AI process on this machine" in text()
        assert "aitop demo" in text()
        await pilot.press("enter", "down", "q")
    assert app.return_value is None


async def test_a_failing_search_is_told():
    def fail():
        raise OSError("/proc is not mounted")

    async with picker(fail) as (_app, _pilot, text):
        assert "/proc is not mounted" in text()


async def test_help_lists_the_keys():
    async with picker(samples.candidates) as (app, pilot, _text):
        await pilot.press("question_mark")
        await pilot.pause()
        help_text = "\n".join(line.text for line in app.screen.query_one("#help", Pane).drawn)
        assert "monitor the marked job" in help_text
