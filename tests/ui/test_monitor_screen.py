"""The main screen: every state, every size, every key, seen as rendered text."""

import threading

import msgspec
import pytest
import sample_parts as parts
import sample_snapshots as samples
from rich.cells import cell_len
from sample_parts import gpus, h200
from scripted_feeds import RunFeed, ScriptedFeed

from aitop.model.gpu import MigDevice
from aitop.model.source import SourceStatus
from aitop.model.verdict import Diagnosis
from aitop.ui.screens.help import our_bindings
from aitop.ui.widgets.pane import Pane

SIZES = [(1, 1), (10, 3), (20, 5), (40, 12), (80, 24), (100, 30), (300, 70), (200, 18), (120, 36)]


async def test_verdict_is_legible_at_every_size_that_a_terminal_is_given(look_at):
    async with look_at(samples.input_bound(), size=(200, 50)) as eyes:
        for width, height in SIZES:
            await eyes.resize(width, height)
            text = eyes.text()
            if (width, height) > (10, 3):
                assert "INPUT-BOUND" in text
                assert "decode.py:41" in text
            assert [cell_len(row) for row in text.split("\n")] == [width] * height
        assert "memory" in eyes.shown()


@pytest.mark.parametrize("size", [(7, 2), (80, 24)], ids=str)
async def test_no_state_breaks_a_screen_that_starts_small(look_at, size):
    async with look_at(samples.waiting(), size=size) as eyes:
        for make in samples.ALL.values():
            await eyes.give(make())
            for keys in ("t", "z", "tab", "z", "enter"):
                await eyes.press(keys)
            assert [cell_len(row) for row in eyes.text().split("\n")] == [size[0]] * size[1]
            await eyes.press("escape", "t")


async def test_before_the_first_snapshot_it_says_that_it_looks(look_at):
    async with look_at() as eyes:
        assert "looking…" in eyes.pane("verdict")
        assert "host…" in eyes.pane("header")
        await eyes.give(samples.waiting())
        verdict = eyes.pane("verdict")
        assert "looking… 2 s · 0 stack samples" in verdict
        assert "4 of 20 steps seen: input-bound" in verdict
        await eyes.give(samples.input_bound())
        assert "INPUT-BOUND" in eyes.pane("verdict")


async def test_stale_values_are_dimmed_and_have_their_age(look_at):
    def inks(eyes, pane):
        lines = eyes.app.screen.query_one(f"#{pane}").drawn[1:-1]
        return {style.color for line in lines for text, style in line.spans[1:-1] if text.strip()}

    async with look_at(samples.input_bound()) as eyes:
        fresh = inks(eyes, "gpu")
        await eyes.give(samples.stale())
        assert "12 s old" in eyes.pane("gpu")
        assert "34 s old" in eyes.pane("step")
        assert "py-spy ended with code 1" in eyes.pane("code")
        assert not fresh & inks(eyes, "gpu")
        header = eyes.pane("header")
        assert "gpu◐" in header
        assert "stacks✗" in header


async def test_each_state_has_its_own_glyph_and_colour(look_at):
    looks = []
    async with look_at(samples.input_bound()) as eyes:
        for state in ("ok", "absent", "denied", "stale", "failed"):
            sources = parts.states(hook=(state, "why", None, 1.0))
            await eyes.give(msgspec.structs.replace(samples.input_bound(), sources=sources))
            spans = eyes.app.screen.query_one("#header").drawn[0].spans
            at = next(number for number, (text, _) in enumerate(spans) if text == "hook")
            looks.append((spans[at + 1][0], spans[at + 1][1].color))
    assert len({glyph for glyph, _ in looks}) == len({colour for _, colour in looks}) == 5


async def test_an_ended_target_keeps_its_last_picture_under_a_banner(look_at):
    async with look_at(samples.input_bound()) as eyes:
        assert "banner" not in eyes.shown()
        await eyes.give(samples.ended())
        assert "target ended: exited on its own after 41 m 08 s" in eyes.pane("banner")
        assert "INPUT-BOUND" in eyes.pane("verdict")


async def test_eight_gpus_get_a_line_each(look_at):
    async with look_at(samples.eight_gpus()) as eyes:
        gpu = eyes.pane("gpu")
        assert "8 × NVIDIA H200" in gpu
        assert "hw thermal slowdown" in gpu
        assert "lost: the driver no longer answers" in gpu
        assert [line[2:5].strip() for line in gpu.split("\n")[1:9]] == ["▸0", "▸1", "▸2", "▸3", "4", "5", "6", "▸7"]


async def test_a_roomy_gpu_pane_shows_links_slices_clocks_and_what_older_devices_tell(look_at):
    slices = (MigDevice(index=0, name="MIG 3g.71gb", memory_total=70 << 30, memory_used=35 << 30),)
    device = h200(gpm=None, nvlinks_active=18, nvlink_received=2e9, nvlink_sent=1e9, mig_devices=slices, fan=0.4)
    seen = msgspec.structs.replace(samples.input_bound(), gpu=gpus(device))
    async with look_at(seen, size=(160, 48)) as eyes:
        await eyes.press("tab", "tab", "z")
        shown = eyes.pane("gpu")
    for row in (
        "memory busy 12%",
        "nvlink  in 1.9 GB/s  out 954 MB/s  18 links",
        "mig 0    35.0 / 70 GB  MIG 3g.71gb",
        "1980 of 1980 MHz  not held back  memory 3201 MHz  fan 40%",
    ):
        assert row in shown, shown


async def test_at_80x24_hidden_gpus_are_counted(look_at):
    async with look_at(samples.eight_gpus(), size=(80, 24)) as eyes:
        assert "more · busy" in eyes.pane("gpu")


async def test_one_row_for_many_gpus_is_that_of_the_target(look_at):
    async with look_at(samples.eight_gpus(), size=(80, 16)) as eyes:
        assert "▸0  20%" in eyes.pane("gpu") and "+7 more" in eyes.pane("gpu")


async def test_healthy_runs_are_not_red(look_at):
    async with look_at(samples.healthy()) as eyes:
        assert "COMPUTE-BOUND" in eyes.pane("verdict")
        assert "faster" not in eyes.pane("verdict")


async def test_a_replay_says_so(look_at):
    feed = ScriptedFeed(samples.input_bound(), live=False)
    async with look_at(feed=feed) as eyes:
        assert "REPLAY" in eyes.pane("header")
        assert "detach" not in eyes.pane("footer")


async def test_space_holds_the_picture_and_goes_on_with_the_newest(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("space")
        assert "PAUSED" in eyes.pane("header")
        await eyes.give(samples.healthy())
        assert "INPUT-BOUND" in eyes.pane("verdict")
        await eyes.press("space")
        assert "PAUSED" not in eyes.pane("header")
        assert "COMPUTE-BOUND" in eyes.pane("verdict")


async def test_panes_are_drawn_once_for_a_new_size_and_only_where_the_focus_moves_for_tab(look_at, monkeypatch):
    drawings = []
    async with look_at(samples.measured(), size=(120, 36)) as eyes:
        for pane in eyes.app.screen.query(Pane):
            draw = pane.draw
            monkeypatch.setattr(
                pane, "draw", lambda *rest, pane=pane, draw=draw: drawings.append(pane.id) or draw(*rest)
            )
        await eyes.resize(130, 40)
        assert sorted(drawings) == sorted(eyes.shown())
        drawings.clear()
        await eyes.press("tab")
        assert set(drawings) <= {"verdict", "step", "footer"}


async def test_tab_moves_the_focus_and_z_zooms_what_has_it(look_at):
    async with look_at(samples.input_bound()) as eyes:
        assert eyes.app.screen.focused.id == "verdict"
        await eyes.press("tab")
        assert eyes.app.screen.focused.id == "step"
        await eyes.press("z")
        assert eyes.shown() == {"header", "step", "footer"}
        assert eyes.app.screen.query_one("#step").size == (120, 34)
        await eyes.press("escape")
        assert "code" in eyes.shown()
        await eyes.press("shift+tab")
        assert eyes.app.screen.focused.id == "verdict"


async def test_long_content_scrolls_in_the_focused_pane(look_at):
    snapshot = samples.input_bound()
    line = snapshot.stacks.lines[4]
    many = tuple(msgspec.structs.replace(line, line=number, samples=500 - number) for number in range(100))
    stacks = msgspec.structs.replace(snapshot.stacks, lines=many)
    async with look_at(msgspec.structs.replace(snapshot, stacks=stacks)) as eyes:
        await eyes.press("tab", "tab", "tab", "tab", "tab")
        assert eyes.app.screen.focused.id == "code"
        assert "more ↓" in eyes.pane("code")
        assert "train.py:0 " in eyes.pane("code")
        await eyes.press("pagedown", "pagedown")
        assert "train.py:20 " in eyes.pane("code")
        assert "train.py:0 " not in eyes.pane("code")
        await eyes.press("end")
        assert "train.py:99 " in eyes.pane("code")
        assert "more" not in eyes.pane("code")
        await eyes.press("home")
        assert "train.py:0 " in eyes.pane("code")


async def test_number_keys_narrow_to_a_rank(look_at):
    async with look_at(samples.two_ranks()) as eyes:
        assert "2 ranks" in eyes.pane("header")
        assert "1-9 rank" in eyes.pane("footer")
        await eyes.press("2")
        assert "only rank 1" in eyes.pane("header")
        assert "CHECKPOINT-STALL" in eyes.pane("verdict")
        assert "3732" in eyes.pane("data")
        assert "3731" not in eyes.pane("data")
        await eyes.press("1")
        assert "only rank 0" in eyes.pane("header")
        assert "INPUT-BOUND" in eyes.pane("verdict")
        await eyes.press("escape")
        assert "2 ranks" in eyes.pane("header")
        await eyes.press("9")
        assert "2 ranks" in eyes.pane("header")
        assert "there are only 2 ranks" in eyes.pane("footer")


@pytest.mark.parametrize("size", [(120, 36), (36, 8)])
async def test_a_rank_that_no_verdict_is_about_is_not_looked_at_for_ever(look_at, size):
    snapshot = samples.two_ranks()
    verdicts = tuple(msgspec.structs.replace(verdict, ranks=(0,)) for verdict in snapshot.diagnosis.verdicts[:2])
    snapshot = msgspec.structs.replace(snapshot, diagnosis=Diagnosis(verdicts=verdicts))
    async with look_at(snapshot, size=size) as eyes:
        await eyes.press("2")
        shown = " ".join(eyes.pane("verdict").replace("│", " ").split())
        assert "No verdict is about rank 1" in shown and "looking" not in shown
        assert "2 are about rank 0: input-bound, checkpoint-stall · 0 shows all" in shown
        await eyes.press("enter")
        assert "no verdict yet" not in eyes.text()
        assert "No verdict is about rank 1" in eyes.pane("evidence")


async def test_one_rank_has_no_rank_key(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("1")
        assert "1 rank" in eyes.pane("header")
        assert "1-9" not in eyes.pane("footer")


async def test_d_takes_the_hook_out_and_says_so(look_at):
    feed = RunFeed(samples.input_bound())
    async with look_at(feed=feed) as eyes:
        assert "d detach" in eyes.pane("footer")
        await eyes.press("d")
        await eyes.until("the hook is out of the target")
        assert feed.asked == ["detach"]
        assert "d detach" not in eyes.pane("footer")
        await eyes.press("d")
        await eyes.until("there is no hook to take out")
        assert feed.asked == ["detach"]


async def test_d_pressed_again_meanwhile_takes_nothing_out(look_at):
    class Slow(RunFeed):
        def detach(self):
            super().detach()
            return out.wait(60)

    out, feed = threading.Event(), Slow(samples.input_bound())
    async with look_at(feed=feed) as eyes:
        await eyes.press("d")
        await eyes.until("taking the hook out…")
        await eyes.press("d", "d")
        await eyes.pilot.pause(0.05)
        assert "taking the hook out…" in eyes.pane("footer")
        out.set()
        await eyes.until("the hook is out of the target")
        assert feed.asked == ["detach"]


async def test_without_a_hook_there_is_no_key_to_take_it_out(look_at):
    seen = samples.input_bound()
    off = msgspec.structs.replace(seen.sources["hook"], state="absent", reason="switched off by --no-hook")
    feed = RunFeed(msgspec.structs.replace(seen, sources={**seen.sources, "hook": off}))
    feed.has_hook = False
    async with look_at(feed=feed) as eyes:
        assert "d detach" not in eyes.pane("footer")
        await eyes.press("d")
        await eyes.until("there is no hook to take out")
        assert feed.asked == []


async def test_a_hook_that_nothing_is_known_of_yet_does_not_come_in_after_d(look_at):
    seen = samples.input_bound()
    sources = {name: status for name, status in seen.sources.items() if name != "hook"}
    feed = RunFeed(msgspec.structs.replace(seen, sources=sources))
    async with look_at(feed=feed) as eyes:
        await eyes.press("d")
        await eyes.until("the hook is out of the target")
        assert feed.asked == ["detach"]


async def test_a_hook_that_stays_is_not_said_to_be_out(look_at):
    feed = RunFeed(samples.input_bound())
    feed.is_out = False
    async with look_at(feed=feed) as eyes:
        await eyes.press("d")
        await eyes.until("the hook stays: it came with the program, or another aitop uses it")
        assert "d detach" not in eyes.pane("footer")


async def test_a_failed_detach_says_why(look_at):
    feed = RunFeed(samples.input_bound())
    feed.problem = "the target does not answer"
    async with look_at(feed=feed) as eyes:
        await eyes.press("d")
        await eyes.until("could not detach: the target does not answer")


async def test_help_is_made_from_the_bindings(look_at):
    async with look_at(samples.input_bound(), size=(120, 64)) as eyes:
        bindings = [binding for binding in our_bindings(eyes.app.screen) if binding.description]
        assert bindings
        await eyes.press("f1")
        text = " ".join(eyes.pane("help").replace("│", " ").split())
        for binding in bindings:
            assert binding.description in text
        assert "1-9" in text
        await eyes.press("escape")
        assert "this help" not in eyes.text()


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("f10", 0), ("ctrl+c", 130)])
async def test_a_quitting_key_ends_it_with_its_code(look_at, key, code):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press(key)
        assert (eyes.app.return_code or 0) == code


async def test_a_click_on_a_key_does_what_the_key_does(look_at):
    async with look_at(samples.input_bound()) as eyes:
        at = eyes.pane("footer").index("space")
        await eyes.pilot.click("#footer", offset=(at + 1, 0))
        await eyes.pilot.pause()
        assert "PAUSED" in eyes.pane("header")


async def test_only_changed_lines_are_repainted(look_at):
    async with look_at(samples.input_bound()) as eyes:
        painted = []
        for pane in eyes.app.screen.query("Pane"):
            original = pane.refresh
            pane.refresh = lambda *regions, _pane=pane, _original=original, **given: (
                painted.append((_pane.id, len(regions))),
                _original(*regions, **given),
            )[1]
        same = samples.input_bound()
        await eyes.give(msgspec.structs.replace(same, tick=43))
        assert painted == []
        cost = msgspec.structs.replace(same.cost, monitor_cpu=0.02)
        await eyes.give(msgspec.structs.replace(same, tick=44, cost=cost))
        assert painted == [("footer", 1)]


async def test_the_last_line_says_that_it_looks_seldom(look_at):
    async with look_at(samples.input_bound()) as eyes:
        same = samples.input_bound()
        assert "looks seldom" not in eyes.text()
        cost = msgspec.structs.replace(same.cost, seldom=True)
        await eyes.give(msgspec.structs.replace(same, tick=43, cost=cost))
        assert "no core idle: looks seldom" in eyes.text()


async def test_a_slow_screen_drops_old_snapshots(look_at):
    async with look_at(samples.waiting()) as eyes:
        handled = []
        screen = eyes.app.screen
        original = screen._change
        screen._change = lambda **changes: (handled.append(changes["snapshot"].tick), original(**changes))
        for tick in range(100, 150):
            eyes.feed.publish(samples.waiting() if tick < 149 else msgspec.structs.replace(samples.waiting(), tick=149))
        await eyes.pilot.pause()
        assert handled[-1] == 149
        assert len(handled) < 25


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_how_to_get_in_is_in_sight_however_long_the_reason(look_at, size):
    reason = "process 4242 may not be looked into: only a process's ancestors may look into it (Yama ptrace_scope 1)"
    remedy = "sudo sysctl kernel.yama.ptrace_scope=0"
    refused = {name: SourceStatus(time=0.0, source=name, state="denied", reason=reason, remedy=remedy)
               for name in ("hook", "stacks")}  # fmt: skip
    seen = msgspec.structs.replace(samples.input_bound(), stacks=None, steps=None, facts=None, ledgers=())
    seen = msgspec.structs.replace(seen, sources={**seen.sources, **refused}, diagnosis=Diagnosis())
    async with look_at(seen, size=size) as eyes:
        assert remedy in " ".join(eyes.pane("code").replace("│", " ").split())
