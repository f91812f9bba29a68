"""Choosing a job."""

import pytest
import sample_snapshots as samples
from choosing import choosing


def candidates_in_turn(*lists):
    """A search that finds these lists one after the other, and the last one ever after."""
    left = list(lists)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def row(eyes, number):
    return eyes.pane("candidates").split("\n")[number]


async def test_a_row_is_a_job_at_every_size():
    async with choosing(samples.candidates, (20, 5)) as eyes:
        for columns, rows in ((20, 5), (80, 24), (120, 20), (200, 50)):
            await eyes.resize(columns, rows)
            assert "3720" in eyes.pane("candidates")
            if columns >= 80:
                assert "811" in eyes.pane("candidates")
                assert "torchrun" in eyes.pane("candidates")


async def test_arrows_and_enter_choose():
    async with choosing(samples.candidates) as eyes:
        assert row(eyes, 2).startswith("│ ▸     3720")
        await eyes.pilot.press("down", "down", "down", "up", "enter")
    assert eyes.app.return_value == 811


async def test_the_choice_stays_on_its_job_when_the_list_changes():
    jobs = samples.candidates()
    async with choosing(candidates_in_turn(jobs, jobs[::-1])) as eyes:
        await eyes.press("down", "r")
        await eyes.until_true(lambda: "99" in row(eyes, 2), "the list the other way round")
        await eyes.pilot.press("enter")
    assert eyes.app.return_value == 811


async def test_the_cursor_stays_on_the_first_job_when_another_comes_before_it():
    jobs = samples.candidates()
    async with choosing(candidates_in_turn(jobs[1:], jobs)) as eyes:
        assert "811" in row(eyes, 2)
        await eyes.press("r")
        await eyes.until_true(lambda: "3720" in row(eyes, 2), "another job in the first row")
        await eyes.pilot.press("enter")
    assert eyes.app.return_value == 811


async def test_a_job_that_is_gone_cannot_be_chosen():
    async with choosing(candidates_in_turn(samples.candidates(), [])) as eyes:
        await eyes.press("r")
        await eyes.until("There is no AI process")
        await eyes.press("enter")
        assert eyes.app.is_running
        await eyes.pilot.press("q")
    assert eyes.app.return_value is None


@pytest.mark.parametrize("key", ["q", "escape"])
async def test_leaving_chooses_nothing(key):
    async with choosing(samples.candidates) as eyes:
        await eyes.pilot.press(key)
    assert eyes.app.return_value is None


async def test_a_search_without_result_says_what_to_do():
    async with choosing(list) as eyes:
        assert "There is no AI process on this machine" in eyes.pane("candidates")
        assert "aitop demo" in eyes.pane("candidates")
        await eyes.pilot.press("enter", "down", "q")
    assert eyes.app.return_value is None


async def test_a_failing_search_says_why():
    def fail():
        raise OSError("/proc is not mounted")

    async with choosing(fail) as eyes:
        assert "/proc is not mounted" in eyes.pane("candidates")


async def test_help_lists_the_keys():
    async with choosing(samples.candidates) as eyes:
        await eyes.press("question_mark")
        assert "monitor the marked job" in eyes.pane("help")
