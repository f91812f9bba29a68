"""A run beside the last one of its script: a word in the header, and a screen with what makes the difference."""

import msgspec
import sample_snapshots as samples


async def test_the_header_says_how_fast_the_run_is_beside_the_last_one(look_at):
    async with look_at(samples.compared(), size=(160, 40)) as eyes:
        assert "1.33× faster than yesterday" in eyes.pane("header")
        # Some seconds later it may be another factor; until then nothing flickers.
        first = samples.compared()
        alike = msgspec.structs.replace(first, before=None, time=first.time + 1.0)
        await eyes.give(alike)
        assert "1.33× faster than yesterday" in eyes.pane("header")
        await eyes.give(msgspec.structs.replace(alike, time=first.time + 6.0))
        assert "faster than" not in eyes.pane("header")
        # Sought back in a recording.
        await eyes.give(first)
        assert "1.33× faster than yesterday" in eyes.pane("header")


async def test_a_narrow_header_does_without(look_at):
    async with look_at(samples.compared(), size=(80, 24)) as eyes:
        assert "faster than" not in eyes.pane("header")
        assert "step/s" in eyes.pane("header")


async def test_the_screen_shows_what_makes_the_difference(look_at):
    async with look_at(samples.compared(), size=(100, 40)) as eyes:
        await eyes.press("b")
        shown = eyes.text()
        assert "FASTER  1.33× the throughput" in shown
        assert "Change by phase" in shown
        assert "loader workers: 2 →" in shown
        await eyes.press("escape")
        assert "Change by phase" not in eyes.text()


async def test_the_stacks_of_both_runs_are_coloured_by_change(look_at):
    async with look_at(samples.compared(), size=(100, 30)) as eyes:
        await eyes.press("b", "f")
        shown = eyes.pane("changes")
        assert "■ takes longer  ■ takes less  ■ within chance" in shown
        assert "Change by phase" not in eyes.text()
        await eyes.press("down", "down")
        function, before, after = "main", *(f"{seconds * 1e3:.0f} ms" for seconds in (0.24, 0.18))
        assert f"{before} → {after} · ■ takes less" in eyes.pane("changes")
        assert function in eyes.pane("changes")
        await eyes.press("f")
        assert "Change by phase" in eyes.text()


async def test_a_leaf_of_the_flame_stays_what_it_is(look_at):
    async with look_at(samples.compared(), size=(100, 30)) as eyes:
        await eyes.press("b", "f")
        leaf = next(number for number, line in enumerate(eyes.pane("changes").split("\n")) if " forw…" in line)
        at = eyes.pane("changes").split("\n")[leaf].index(" forw…") + 1
        await eyes.pilot.click("#changes", offset=(at, leaf), times=2)
        await eyes.press("enter", "o")
        assert "forward " in eyes.pane("changes").split("\n")[-2]
        assert "takes longer" in eyes.text()


async def test_a_click_on_the_foot_of_the_flame_selects_no_cell_behind_it(look_at):
    async with look_at(samples.compared(), size=(100, 8)) as eyes:
        await eyes.press("b", "f")
        foot = len(eyes.pane("changes").split("\n")) - 2
        before = eyes.pane("changes")
        await eyes.pilot.click("#changes", offset=(4, foot))
        assert eyes.pane("changes") == before


async def test_a_high_screen_shows_words_and_stacks(look_at):
    async with look_at(samples.compared(), size=(120, 50)) as eyes:
        await eyes.press("b")
        assert "Change by phase" in eyes.text() and "takes longer" in eyes.text()


async def test_without_an_earlier_run_it_says_so(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("b")
        assert "no earlier run of this script is known" in eyes.text()
