"""Marks, pictures, recordings, colours: what somebody does with a session, key by key."""

import os
import stat
from pathlib import Path

import msgspec
import pytest
import sample_parts as parts
import sample_snapshots as samples
from eyes import Eyes
from pictures import StillFeed
from sample_parts import records, steps
from scripted_feeds import RunFeed, ScriptedFeed

from aitop.engine.recorder import Recorder
from aitop.engine.run_history import RunHistory
from aitop.model.serving import RequestRecord
from aitop.model.settings import Settings
from aitop.model.snapshot import Series, Tick
from aitop.model.source import SourceStatus
from aitop.model.steps import HookFacts, HookSample
from aitop.outputs.recording import RecordingWriter
from aitop.sources.replay import read_recording
from aitop.ui.app import MonitorApp
from aitop.ui.screens.monitor import CATCH_UP_SECONDS
from aitop.ui.theme.themes import THEMES


def later(seconds=0.18, wait=0.5, *, after=60.0):
    """The run a minute on, with other steps."""
    first = samples.input_bound()
    recent = tuple(
        msgspec.structs.replace(record, end=record.end + after, index=record.index + 300)
        for record in records(128, seconds, wait, seed=4)
    )
    return msgspec.structs.replace(first, time=first.time + after, steps=steps(recent))


async def test_a_mark_shows_the_change_of_every_figure_and_whether_it_helped(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("m")
        assert "not enough steps yet (" in eyes.pane("verdict")
        await eyes.give(later())
        assert "faster (±0." in eyes.pane("verdict")
        assert "241 ms → 183 ms a step" in eyes.pane("verdict")
        assert "was " not in eyes.pane("verdict")
        healthy = msgspec.structs.replace(later(), diagnosis=samples.healthy().diagnosis)
        await eyes.give(healthy)
        assert "was input-bound" in eyes.pane("verdict")
        await eyes.give(later())
        assert "▲43%" in eyes.pane("header")
        assert "p50  ▼24%" in eyes.pane("step")
        assert "▼12" in eyes.pane("step")
        assert "=" in eyes.pane("gpu")
        assert "=" in eyes.pane("memory")
        assert "cores     =" in eyes.pane("data")
        await eyes.press("M")
        assert "▲43%" not in eyes.text()
        assert "since the mark" not in eyes.text()


async def test_a_mark_leaves_the_rate_in_a_small_header(look_at):
    first = samples.input_bound()
    target = msgspec.structs.replace(first.target, command="python my_training.py")
    named = msgspec.structs.replace(first, target=target)
    async with look_at(named, size=(80, 24)) as eyes:
        await eyes.press("m")
        second = later()
        await eyes.give(msgspec.structs.replace(second, target=target))
        assert "step/s" in eyes.pane("header") and "▲43%" in eyes.pane("header")


async def test_every_figure_of_every_pane_has_its_change(look_at):
    first = samples.measured()
    process = first.host.processes[-1]
    grown = msgspec.structs.replace(process, rss=2 * process.rss)
    host = msgspec.structs.replace(first.host, processes=(*first.host.processes[:-1], grown))
    device = msgspec.structs.replace(first.gpu.devices[0], temperature=first.gpu.devices[0].temperature + 7)
    gpu = msgspec.structs.replace(first.gpu, devices=(device, *first.gpu.devices[1:]))
    async with look_at(first, size=(200, 60)) as eyes:
        await eyes.press("m")
        await eyes.give(msgspec.structs.replace(first, time=first.time + 5, host=host, gpu=gpu))
        assert "▲100%" in eyes.pane("processes")
        assert "▲7" in eyes.pane("gpu")
        least = {"step": 12, "gpu": 6, "data": 5, "memory": 4, "code": 4, "processes": 10}
        changed = {name: eyes.pane(name).count(" = ") for name in least}
        assert [name for name, count in least.items() if changed[name] < count] == []


async def test_the_mark_of_an_earlier_session_shows_the_changes_of_the_series_of_the_gpu(look_at, tmp_path):
    def at(busy, power):
        first = samples.compared()
        names = {"gpu0.busy": busy, "gpu0.power": power}
        known = {
            name: Series(times=tuple(first.time - age for age in range(9, -1, -1)), values=(value,) * 10)
            for name, value in names.items()
        }
        return msgspec.structs.replace(first, series={**first.series, **known})

    target = samples.compared().target
    RunHistory(target, tmp_path).keep(at(0.9, 700.0), at(0.9, 700.0))

    class Marked(RunFeed):
        def marked(self):
            return RunHistory(target, tmp_path).mark()

    async with look_at(feed=Marked(at(0.3, 350.0)), size=(200, 60)) as eyes:
        assert "▼60" in eyes.pane("gpu") and "▼50" in eyes.pane("gpu")


async def test_no_change_is_not_called_one(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("m")
        await eyes.give(later(0.238, 0.68))
        assert "no change beyond noise (±" in eyes.pane("verdict")


async def test_marks_work_in_a_replay_and_survive_going_back(look_at):
    feed = ScriptedFeed(samples.input_bound(), live=False)
    async with look_at(feed=feed) as eyes:
        await eyes.press("m")
        await eyes.give(later())
        assert "faster" in eyes.pane("verdict")
        await eyes.give(later(after=-100.0))
        assert "not enough steps yet" in eyes.pane("verdict")


async def test_the_mark_stands_on_the_axes_of_the_step_charts(look_at):
    async with look_at(samples.measured(), size=(200, 60)) as eyes:
        await eyes.press("m")
        moved = msgspec.structs.replace(samples.measured(), time=samples.measured().time + 30)
        recent = tuple(msgspec.structs.replace(record, end=record.end + 10) for record in moved.steps.recent)
        await eyes.give(msgspec.structs.replace(moved, steps=msgspec.structs.replace(moved.steps, recent=recent)))
        assert "▲ mark" in eyes.pane("step")
        assert any("▼" in line and line.startswith("│   step  ") for line in eyes.pane("step").split("\n"))


async def test_without_a_picture_there_is_nothing_to_mark(look_at):
    async with look_at() as eyes:
        await eyes.press("m")
        assert "nothing to mark yet" in eyes.pane("footer")
        await eyes.press("M")
        assert "there is no mark" in eyes.pane("footer")


async def test_a_mark_without_the_hook_says_what_is_missing(look_at):
    async with look_at(samples.no_gpu_no_hook()) as eyes:
        await eyes.press("m")
        assert "step times need the hook" in eyes.pane("verdict")


async def test_s_saves_a_picture_and_text_and_overwrites_nothing(look_at, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with look_at(samples.input_bound()) as eyes:
        shown = eyes.pane("code")
        await eyes.press("s", "s")
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["aitop-3720-1.svg", "aitop-3720-1.txt", "aitop-3720-2.svg", "aitop-3720-2.txt"]
        text = (tmp_path / "aitop-3720-1.txt").read_text()
        assert all(line.rstrip() in text for line in shown.split("\n"))
        assert len(text.splitlines()) == 36
        assert "INPUT-BOUND" in (tmp_path / "aitop-3720-1.svg").read_text()
        assert stat.S_IMODE((tmp_path / names[0]).stat().st_mode) == 0o600
        assert "saved aitop-3720-2.svg" in eyes.pane("footer")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_folder_that_takes_no_files_is_said(look_at, tmp_path, monkeypatch):
    tmp_path.chmod(0o500)
    monkeypatch.chdir(tmp_path)
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("s")
        assert "nothing saved: Permission denied" in eyes.pane("footer")


async def test_a_folder_that_is_gone_is_said(look_at, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    async with look_at(samples.input_bound()) as eyes:
        eyes.app.screen.recorder = Recorder(lambda path, new: RecordingWriter(path, parts.target(), new=new))
        await eyes.press("s")
        assert "nothing saved: No such file" in eyes.pane("footer")
        await eyes.press("r")
        assert "not recording: No such file" in eyes.pane("footer")


async def test_r_records_from_here_on_and_stops(look_at, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder = Recorder(lambda path, new: RecordingWriter(path, parts.target(), new=new))
    recorder.write(SourceStatus(time=3.0, source="gpu", state="absent", reason="no driver"))
    recorder.write(Tick(time=4.0, wall=1.0))
    async with look_at(samples.input_bound(), size=(160, 36)) as eyes:
        eyes.app.screen.recorder = recorder
        await eyes.press("r")
        assert "●REC" in eyes.pane("header")
        recorder.write(Tick(time=5.0, wall=2.0))
        await eyes.give(samples.input_bound())
        await eyes.press("r")
        assert "●REC" not in eyes.pane("header")
        assert "recorded " in eyes.pane("footer")
    (path,) = tmp_path.iterdir()
    assert path.name == "aitop-3720-1.jsonl.gz"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    header, events = read_recording(path)
    assert [(type(event).__name__, event.time) for event in events] == [("SourceStatus", 4.0), ("Tick", 5.0)]
    assert header.target.pid == 3720


def test_a_recording_begins_with_what_the_hook_found_out_and_not_with_its_last_read(tmp_path):
    recorder = Recorder(lambda path, new: RecordingWriter(path, parts.target(), new=new))
    facts, request = HookFacts(way="attach", python="3.11", torch="2.13"), RequestRecord(end=2.0, seconds=1.0)
    recorder.write(HookSample(time=3.0, pid=3720, facts=facts, requests=(request,), alive=2, sequence=7, lost=1))
    recorder.write(Tick(time=4.0, wall=1.0))
    recorder.begin(tmp_path / "later")
    recorder.end()
    _, events = read_recording(tmp_path / "later")
    assert list(events) == [HookSample(time=4.0, pid=3720, facts=facts)]


async def test_a_full_disk_is_said_and_the_screen_goes_on(look_at):
    recorder = Recorder(lambda path, new: RecordingWriter(Path("/dev/full"), parts.target()))
    async with look_at(samples.input_bound(), size=(200, 36)) as eyes:
        eyes.app.screen.recorder = recorder
        await eyes.press("r")
        await eyes.give(samples.input_bound())
        assert "REC STOPPED" in eyes.pane("header")
        await eyes.press("r")
        assert "No space left on device" in eyes.pane("footer")


async def test_only_a_live_run_can_be_recorded(look_at):
    async with look_at(feed=ScriptedFeed(samples.input_bound(), live=False)) as eyes:
        await eyes.press("r")
        assert "only a live run can be recorded" in eyes.pane("footer")


async def test_c_goes_through_all_themes_and_back(look_at):
    async with look_at(samples.input_bound()) as eyes:
        grounds = []
        for _ in THEMES:
            grounds.append(eyes.rows()[0]._segments[0].style.bgcolor.name)
            await eyes.press("C")
        assert "theme: dark" in eyes.pane("footer")
        assert eyes.rows()[0]._segments[0].style.bgcolor.name == grounds[0]
        assert len(set(grounds)) == len(grounds) - 1  # dark and colour-blind have one ground


@pytest.mark.parametrize("theme", list(THEMES))
async def test_every_screen_draws_in_every_theme(theme):
    app = MonitorApp(StillFeed(samples.input_bound()), settings=Settings(theme=theme, ascii=theme == "monochrome"))
    async with app.run_test(size=(100, 30)) as pilot:
        eyes = Eyes(app, pilot)
        await eyes.until("INPUT-BOUND")
        await eyes.press("enter", "escape", "question_mark", "escape")
        text = eyes.text()
        assert "INPUT-BOUND" in text
        assert text.isascii() == (theme == "monochrome")
        assert ("enter why" in text) == (theme == "monochrome") != ("⏎ why" in text)
        colours = {
            segment.style.color.name for row in eyes.rows() for segment in row if segment.style and segment.style.color
        }
        assert (colours == {"default"}) == (theme == "monochrome")
        await eyes.press("T")
        keys = app.screen.query_one("#processes").drawn[-2].text
        assert ("enter narrow to it" in keys and "left/right fold" in keys) == (theme == "monochrome")


@pytest.mark.parametrize("theme", ["light", "monochrome"])
async def test_the_command_palette_finds_an_action_by_its_name(theme):
    app = MonitorApp(StillFeed(samples.input_bound()), settings=Settings(theme=theme, ascii=theme == "monochrome"))
    async with app.run_test(size=(100, 30)) as pilot:
        eyes = Eyes(app, pilot)
        await eyes.until("INPUT-BOUND")
        # Something moves there while it is open: to press keys one by one would wait for that to end at each.
        for key in ("ctrl+p", *"mark", "space", *"this"):
            app.simulate_key(key)
        await eyes.until("mark this moment")
        for key in ("down", "enter"):
            app.simulate_key(key)
        await eyes.until_true(lambda: len(app.screen_stack) == 1 and app.screen.view.mark is not None, "a mark")


async def test_a_slow_link_gets_the_newest_picture_when_it_has_caught_up(look_at, monkeypatch):
    async with look_at(samples.input_bound()) as eyes:
        monkeypatch.setattr("aitop.ui.screens.monitor.output_is_blocked", lambda: True)
        await eyes.give(samples.healthy())
        assert "COMPUTE-BOUND" not in eyes.text()
        monkeypatch.setattr("aitop.ui.screens.monitor.output_is_blocked", lambda: False)
        await eyes.until("COMPUTE-BOUND")


async def test_however_many_pictures_a_slow_link_skips_one_timer_catches_up(look_at, monkeypatch):
    timers = []

    def set_timer(seconds, callback):
        timers.append((seconds, callback))
        return timers[-1]

    async with look_at(samples.input_bound()) as eyes:
        monkeypatch.setattr(eyes.app.screen, "set_timer", set_timer)
        monkeypatch.setattr("aitop.ui.screens.monitor.output_is_blocked", lambda: True)
        for tick in range(8):
            await eyes.give(samples.healthy() if tick == 7 else samples.input_bound(tick=tick))
        assert [seconds for seconds, _ in timers] == [CATCH_UP_SECONDS]
        timers[0][1]()
        await eyes.pilot.pause()
        assert len(timers) == 2 and "COMPUTE-BOUND" not in eyes.text()
        monkeypatch.setattr("aitop.ui.screens.monitor.output_is_blocked", lambda: False)
        timers[1][1]()
        await eyes.until("COMPUTE-BOUND")
        assert len(timers) == 2


async def test_a_pause_before_the_first_picture_keeps_the_mark_of_the_earlier_run(look_at):
    feed = RunFeed()
    feed.marked = samples.healthy
    async with look_at(feed=feed) as eyes:
        await eyes.press("space")
        await eyes.give(samples.input_bound())
        assert "looking" in eyes.pane("verdict")
        await eyes.press("space")
        assert eyes.app.screen.view.mark is not None and "INPUT-BOUND" in eyes.pane("verdict")


async def test_a_notice_goes_while_the_picture_is_held(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("space", "M")
        assert "there is no mark" in eyes.pane("footer")
        for tick in range(8):
            await eyes.give(samples.input_bound(tick=tick))
        assert "there is no mark" not in eyes.pane("footer")


async def test_panes_are_folded_from_the_start_where_that_is_set():
    app = MonitorApp(StillFeed(samples.input_bound()), settings=Settings(folded=("code", "memory")))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert {pane.id for pane in app.screen.query("Pane") if pane.folded} == {"code", "memory"}
