"""The code pane's tree, flame and filters, one line, and all stacks at once."""

import re
import threading
from datetime import datetime

import msgspec
import pytest
import sample_parts as parts
import sample_snapshots as samples
from scripted_feeds import RunFeed, ScriptedFeed
from textual.geometry import Offset

from aitop.errors import AitopError
from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.ui.state import EVERYBODY

FRAMES = (
    Frame("feed", "/home/ada/data.py", 31, True, "batch = queue.get()"),
    Frame("Queue.get", "/usr/lib/python3.11/queue.py", 171),
    Frame("main", "/home/ada/train.py", 9, True),
)


def dump():
    waiting = [
        ThreadStack(pid=3731, thread=f"feeder-{number}", main=False, frames=(0, 1), active=False) for number in range(7)
    ]
    busy = ThreadStack(pid=3720, thread="MainThread", main=True, frames=(2,), active=True, gil=True)
    return StackDump(time=parts.START, frames=FRAMES, threads=(busy, *waiting), refused=((3799, "not permitted"),))


def selected(eyes):
    return next((line.text for line in eyes.app.screen.query_one("#code").drawn if _lit(line)), None)


def _lit(line):
    return sum(1 for _, style in line.spans if style.bgcolor and style.bgcolor.name == "selected") > 1


def upper(eyes):
    """The code without what keeps it company below."""
    return eyes.pane("code").split("│ ── ")[0]


async def test_the_tree_is_walked_folded_and_unfolded(look_at):
    async with look_at(samples.input_bound(), size=(120, 60)) as eyes:
        await eyes.press("t")
        assert eyes.app.screen.focused.id == "code"
        assert "main" in selected(eyes)
        await eyes.press("down", "down", "down")
        assert "train_epoch" in selected(eyes)
        await eyes.press("left")
        assert "__next__" not in upper(eyes)
        await eyes.press("right")
        assert "__next__ › wait" in eyes.pane("code")
        await eyes.press("right")
        assert "__next__ › wait" in selected(eyes)
        await eyes.press("left", "left")
        assert "__next__" not in upper(eyes)
        await eyes.press("home", "enter")
        assert "train_epoch" not in upper(eyes)
        await eyes.press("end")
        assert "__getitem__" in selected(eyes)


async def test_enter_shows_the_line_with_its_verdict_and_source(look_at):
    async with look_at(samples.input_bound(), size=(120, 60), source_around=parts.source_around) as eyes:
        await eyes.press("t", "end", "enter")
        await eyes.until("raw = file.read()")
        text = eyes.pane("line")
        assert "__getitem__  100 % of the samples of worker ×4" in text
        assert "INPUT-BOUND" in text
        assert re.search(r"79%  ▌ +41 +image = decode_jpeg", text)
        await eyes.press("escape")
        assert "call tree" in eyes.pane("code")


async def test_the_flame_zooms_by_keys_and_back(look_at):
    async with look_at(samples.input_bound(), size=(120, 60)) as eyes:
        await eyes.press("f")
        assert "flame" in eyes.pane("code")
        assert "worker ×4" in eyes.pane("code")
        await eyes.press("down", "down", "down")
        assert "train_epoch  train.py:96" in eyes.pane("code")
        await eyes.press("enter")
        assert "loader-worker" not in upper(eyes)
        assert "main ›" in eyes.pane("code")
        await eyes.press("down", "right")
        assert "_call_impl  module.py:1750" in eyes.pane("code")
        await eyes.press("backspace")
        await eyes.press("escape", "escape", "escape")
        assert "worker ×4" in eyes.pane("code")
        await eyes.press("f")
        assert "hot lines" in eyes.pane("code")


async def test_the_flame_zooms_by_mouse_and_tells_what_is_pointed_at(look_at):
    async with look_at(samples.input_bound(), size=(120, 60)) as eyes:
        await eyes.press("f", "z")
        pane = eyes.app.screen.query_one("#code")
        row = next(number for number, line in enumerate(pane.drawn) if " train_epoch " in line.text)
        at = pane.drawn[row].text.index("train_epoch")
        await eyes.pilot.hover("#code", offset=Offset(at, row))
        assert "train_epoch  train.py:96" in eyes.pane("code")
        await eyes.pilot.click("#code", offset=Offset(at, row))
        await eyes.pilot.pause()
        assert "loader-worker" not in upper(eyes)
        row = next(number for number, line in enumerate(pane.drawn) if " train_epoch " in line.text)
        await eyes.pilot.click("#code", offset=Offset(10, row))
        await eyes.pilot.pause()
        assert "main" in pane.drawn[row].text


async def test_w_goes_through_parts_and_threads(look_at):
    async with look_at(samples.input_bound(), size=(120, 60)) as eyes:
        await eyes.press("t", "w")
        assert "call tree · main" in eyes.pane("code")
        assert "loader-worker" not in upper(eyes)
        await eyes.press("w")
        assert "call tree · workers" in eyes.pane("code")
        await eyes.press("W")
        assert "process 3731" in eyes.pane("code")
        await eyes.press("w")
        assert "Code · call tree ─" in eyes.pane("code") and "worker ×4" in upper(eyes)


@pytest.mark.parametrize("view", ["t", None])
async def test_the_share_of_the_line_is_renewed(look_at, view):
    snapshot = samples.input_bound()
    async with look_at(snapshot, size=(120, 60)) as eyes:
        eyes.app.screen.show_pane("code")
        await eyes.press(*([view, "end"] if view else []), "o")
        assert " % of the samples of" in eyes.pane("line") and " 0 % of" not in eyes.pane("line")
        stacks = msgspec.structs.replace(snapshot.stacks, lines=(), processes=snapshot.stacks.processes[:1], trees=())
        await eyes.give(msgspec.structs.replace(snapshot, stacks=stacks))
        assert " 0 % of the samples of" in eyes.pane("line")


async def test_the_code_of_a_thread_is_left_with_esc_and_when_the_thread_has_ended(look_at):
    snapshot = samples.input_bound()
    async with look_at(snapshot, size=(120, 60)) as eyes:
        await eyes.press("w", "escape")
        assert eyes.app.screen.view.who == EVERYBODY
        await eyes.press("w", "w", "W")
        assert "process 3731" in eyes.pane("code")
        stacks = msgspec.structs.replace(snapshot.stacks, processes=snapshot.stacks.processes[:1], threads=(), trees=())
        await eyes.give(msgspec.structs.replace(snapshot, stacks=stacks))
        assert eyes.app.screen.view.who == EVERYBODY
        assert "nothing of process 3731 is seen any more" in eyes.pane("footer")


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_s_groups_all_stacks(look_at, size):
    class Dumping(RunFeed):
        def dump(self):
            nonlocal asked
            asked += 1
            return dump()

    asked = 0
    async with look_at(feed=Dumping(samples.input_bound()), size=size) as eyes:
        await eyes.press("S")
        await eyes.until("Queue.get")
        first = eyes.pane("groups").split("\n")[2]
        assert "7 threads" in first and "data.py:31" in first
        assert "no stacks of 3799: not permitted" in eyes.pane("groups")
        assert "batch = queue.get()" in eyes.pane("group")
        await eyes.press("down")
        assert "has GIL" in eyes.pane("group")
        for key, looks in (("S", 2), ("r", 3)):
            await eyes.press(key)
            await eyes.until_true(
                lambda looks=looks: asked == looks and "looking" not in eyes.pane("groups"), f"look number {looks}"
            )
        await eyes.press("e")
        assert "cannot be read from here" in eyes.pane("header")
        assert "cannot be read from here" not in eyes.pane("groups")
        await eyes.press("enter")
        assert eyes.shown() >= {"group"} and "groups" not in eyes.shown()
        await eyes.press("escape", "escape")
        assert "Verdict" in eyes.text()


async def test_stacks_name_ranks_and_their_workers_as_the_process_tree_does(look_at):
    class Dumping(RunFeed):
        def dump(self):
            pids = [process.pid for process in seen.processes if process.role in ("rank", "loader-worker")]
            threads = (ThreadStack(pid=pid, thread="MainThread", main=True, frames=(2,)) for pid in pids)
            return StackDump(time=parts.START, frames=FRAMES, threads=tuple(threads))

    seen = samples.two_ranks()
    async with look_at(feed=Dumping(seen), size=(120, 40)) as eyes:
        await eyes.press("S")
        await eyes.until("threads")
        threads = {line.split()[1]: " ".join(line.split()[2:]) for line in eyes.pane("group").split("\n")[1:7]}
        for process in seen.processes:
            if process.role in ("rank", "loader-worker"):
                name = f"{'worker of ' if process.role != 'rank' else ''}rank {process.rank} MainThread"
                assert threads[str(process.pid)].startswith(name)


async def test_a_held_key_asks_for_one_look_at_a_time(look_at):
    class Slow(RunFeed):
        def dump(self):
            asked.append(None)
            answers.wait(60)
            return dump()

    asked, answers = [], threading.Event()
    async with look_at(feed=Slow(samples.input_bound())) as eyes:
        await eyes.press("S")
        await eyes.press("S", "S", "r")
        assert len(asked) == 1
        answers.set()
        await eyes.until("Queue.get")


async def test_a_line_is_described_from_the_newest_snapshot(look_at):
    feed = RunFeed(samples.input_bound())
    async with look_at(feed=feed) as eyes:
        await eyes.press("f", "down", "down", "o")
        assert eyes.shown() >= {"line"}
        later = msgspec.structs.replace(samples.input_bound(), time=parts.START + 60)
        feed.publish(later)
        await eyes.pilot.pause()
        assert eyes.app.screen.pane.view.snapshot is later


async def test_where_nothing_can_be_looked_at_it_says_why_and_shows_what_was_seen(look_at):
    class Refusing(RunFeed):
        def dump(self):
            raise AitopError("stacks are switched off by --passive: they are not looked at")

    async with look_at(feed=Refusing(samples.input_bound())) as eyes:
        await eyes.press("S")
        await eyes.until("switched off by --passive")
        assert "most seen in 30 s" in eyes.pane("groups")
        assert "4 threads" in eyes.pane("groups")
    recorded = msgspec.structs.replace(samples.input_bound(), dump=dump(), time=parts.START + 5)
    async with look_at(feed=ScriptedFeed(recorded, live=False)) as eyes:
        await eyes.press("S")
        at = datetime.fromtimestamp(recorded.wall - 5)
        assert f"read at {at:%H:%M:%S}" in eyes.pane("groups")


async def test_o_shows_the_line_and_e_opens_it_from_every_screen(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("enter", "e")
        assert "decode.py cannot be read from here" in eyes.pane("verdicts")
        await eyes.press("escape", "f", "down", "down", "o")
        assert eyes.shown() >= {"line"}
        assert "main" in eyes.pane("line")
        await eyes.press("e")
        assert "train.py cannot be read from here" in eyes.text()
        await eyes.press("o")
        assert "Code · flame" in eyes.pane("code")
