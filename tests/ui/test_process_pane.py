"""The process pane, narrowing, filter, folding and zoom: every key and the mouse, seen as rendered text."""

import msgspec
import sample_snapshots as samples
from sample_parts import MAIN, WORKERS

from aitop.model.source import SourceStatus
from aitop.ui.widgets.pane import Pane


def alone(snapshot, pid):
    """The same picture after a process has ended."""
    rest = tuple(process for process in snapshot.host.processes if process.pid != pid)
    return msgspec.structs.replace(snapshot, host=msgspec.structs.replace(snapshot.host, processes=rest))


def lit_row(eyes):
    return next(line for line in eyes.pane("processes").split("\n") if "▸ " in line[:5] or "● " in line[:5])


async def test_keys_of_the_process_tree(look_at):
    async with look_at(samples.two_ranks(), size=(100, 24)) as eyes:
        await eyes.press("T")
        assert eyes.shown() == {"header", "processes", "footer"}
        assert "launcher" in lit_row(eyes)
        for keys, expected in (
            (["down"], "rank 0"), (["end"], "worker 1"), (["home"], "launcher"), (["pagedown"], "worker 1"),
            (["pageup", "down", "left"], "rank 0 +2"), (["right"], "rank 0"), (["right"], "worker 0"),
            (["left"], "rank 0"),
        ):  # fmt: skip
            await eyes.press(*keys)
            assert expected in lit_row(eyes), keys
        await eyes.press("greater_than_sign", "greater_than_sign")
        assert "by cpu" in eyes.pane("processes")
        assert "cpu↓" in eyes.pane("processes")
        await eyes.press("I")
        assert "cpu↑" in eyes.pane("processes")
        await eyes.press("less_than_sign", "less_than_sign")
        assert "by role" in eyes.pane("processes")
        await eyes.press("f5")
        assert "verdict" in eyes.shown()


async def test_enter_narrows_every_pane_and_escape_shows_all_again(look_at):
    async with look_at(samples.two_ranks()) as eyes:
        await eyes.press("T", "down", "down", "enter")
        assert "only worker 0 of rank 0" in eyes.pane("header")
        assert "whole job" in eyes.pane("verdict")
        assert "whole job" in eyes.pane("memory")
        assert "whole job" in eyes.pane("gpu")
        assert "3732" not in eyes.pane("data")
        assert "train.py:96" not in eyes.pane("code")
        await eyes.press("escape")
        assert "only" not in eyes.pane("header")
        assert "whole job" not in eyes.text()
        assert "3732" in eyes.pane("data")


async def test_space_narrows_and_stays_and_again_lets_go(look_at):
    async with look_at(samples.two_ranks()) as eyes:
        await eyes.press("T", "down", "space")
        assert "only rank 0" in eyes.pane("header")
        assert eyes.shown() == {"header", "processes", "footer"}
        assert not eyes.app.screen.view.paused
        await eyes.press("space")
        assert "only" not in eyes.pane("header")


async def test_a_chosen_process_that_ends_shows_all_again(look_at):
    async with look_at(samples.two_ranks()) as eyes:
        await eyes.press("T", "down", "down", "enter")
        await eyes.give(alone(samples.two_ranks(), WORKERS[0]))
        assert eyes.app.screen.view.chosen is None
        assert f"process {WORKERS[0]} has ended" in eyes.pane("footer")


async def test_the_cursor_stays_on_its_process(look_at):
    async with look_at(samples.two_ranks(), size=(100, 24)) as eyes:
        await eyes.press("T", "end")
        assert str(WORKERS[3]) in lit_row(eyes)
        await eyes.give(alone(samples.two_ranks(), WORKERS[0]))
        assert str(WORKERS[3]) in lit_row(eyes)


async def test_the_filter_narrows_while_it_is_typed(look_at):
    async with look_at(samples.two_ranks(), size=(200, 50)) as eyes:
        await eyes.press("slash", *"rank 1")
        assert "filter /rank 1" in eyes.pane("filter")
        assert "footer" not in eyes.shown()
        assert "rank 0" not in eyes.pane("processes")
        assert "/rank 1" in eyes.pane("header")
        await eyes.press("backspace", "0")
        assert "rank 1" not in eyes.pane("processes")
        await eyes.press("enter")
        assert eyes.app.screen.view.filter == "rank 0"
        assert "footer" in eyes.shown()
        await eyes.press("escape")
        assert eyes.app.screen.view.filter == ""
        await eyes.press("f4", *"qt?", "escape")
        assert eyes.app.screen.view.filter == ""
        assert "rank 1" in eyes.pane("processes")


async def test_keys_and_mouse_fold_and_zoom_panes(look_at):
    async with look_at(samples.input_bound(), size=(200, 50)) as eyes:
        screen = eyes.app.screen
        for name in ("verdict", "gpu", "data", "processes"):
            pane = screen.query_one(f"#{name}", Pane)
            pane.focus()
            await eyes.press("minus")
            assert pane.size.height == 1
            assert eyes.pane(name).startswith("╭▸")
            await eyes.pilot.click(pane, offset=(1, 0))
            await eyes.pilot.pause()
            assert pane.size.height > 1, name
        pane = screen.query_one("#code", Pane)
        pane.focus()
        await eyes.press("z")
        assert eyes.shown() == {"header", "code", "footer"}
        await eyes.press("z")
        await eyes.pilot.click(pane, offset=(20, 0), times=2)
        await eyes.pilot.pause()
        assert eyes.shown() == {"header", "code", "footer"}
        await eyes.press("escape")
        assert "verdict" in eyes.shown()
        await eyes.pilot.click("#processes", offset=(20, 0), times=2)
        await eyes.pilot.pause()
        assert eyes.shown() == {"header", "processes", "footer"}, "a pane with rows as well"


async def test_a_click_sorts_what_is_old_as_well(look_at):
    snapshot = samples.two_ranks()
    old = {"host": SourceStatus(time=0.0, source="host", state="stale", age=9.0)}
    async with look_at(msgspec.structs.replace(snapshot, sources=snapshot.sources | old), size=(200, 50)) as eyes:
        assert "9 s old" in eyes.pane("processes")
        await eyes.pilot.click("#processes", offset=(eyes.pane("processes").split("\n")[1].index("cpu") + 1, 1))
        await eyes.pilot.pause()
        assert "cpu↓" in eyes.pane("processes")


async def test_a_click_sorts_folds_and_chooses(look_at):
    async with look_at(samples.two_ranks(), size=(200, 50)) as eyes:
        lines = eyes.pane("processes").split("\n")
        await eyes.pilot.click("#processes", offset=(lines[1].index("cpu") + 1, 1))
        await eyes.pilot.pause()
        assert "cpu↓" in eyes.pane("processes")
        row = next(number for number, line in enumerate(lines) if "rank 0" in line)
        await eyes.pilot.click("#processes", offset=(lines[row].index("▾"), row))
        await eyes.pilot.pause()
        assert "rank 0 +2" in eyes.pane("processes")
        await eyes.pilot.click("#processes", offset=(lines[row].index("rank"), row), times=2)
        await eyes.pilot.pause()
        assert eyes.app.screen.view.chosen == MAIN
