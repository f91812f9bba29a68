"""The evidence view: every verdict, its numbers, the user's own lines, the fixes."""

import threading

import msgspec
import sample_parts as parts
import sample_snapshots as samples

from aitop.diagnosis.catalogue import PARTS
from aitop.model.verdict import Abstention, Diagnosis


async def test_it_shows_evidence_source_fixes_and_certainty(look_at):
    async with look_at(samples.input_bound(), source_around=parts.source_around) as eyes:
        await eyes.press("enter")
        await eyes.until("raw = file.read()")
        text = eyes.text()
        assert "each step waits 152 ms of 238 ms for its batch" in text
        assert "/home/ada/vision/data/decode.py" in text
        assert "2.4× predicted" in text
        assert "fairly sure (84 %)" in text
        assert "CHECKPOINT-STALL" in text
        guilty = next(line for line in text.split("\n") if "decode_jpeg(raw, size=None)" in line)
        assert "▌" in guilty
        assert " 41 " in guilty


async def test_source_has_colours(look_at):
    async with look_at(samples.input_bound(), source_around=parts.source_around) as eyes:
        await eyes.press("enter")
        await eyes.until("raw = file.read()")
        spans = [span for line in eyes.app.screen.query_one("#evidence").drawn for span in line.spans]
        ink = {text.strip(): style.color.name for text, style in spans if text.strip() in ("def", "path", '"rb"')}
        assert len(set(ink.values())) == len(ink) >= 2


async def test_arrows_choose_and_the_choice_survives_new_snapshots(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("enter", "down")
        assert "torch.save took 902 ms" in eyes.pane("evidence")
        verdicts = samples.input_bound().diagnosis.verdicts
        swapped = Diagnosis(verdicts=(verdicts[1], verdicts[2], verdicts[0]))
        await eyes.give(msgspec.structs.replace(samples.input_bound(), diagnosis=swapped))
        assert "torch.save took 902 ms" in eyes.pane("evidence")
        await eyes.press("up", "up", "up")
        assert "torch.save took 902 ms" in eyes.pane("evidence")
        await eyes.press("down", "down", "down", "down")
        assert "each step waits" in eyes.pane("evidence")


async def test_source_is_read_of_the_very_process_that_the_verdict_names(look_at):
    """By its start as well: another process may have its pid by now, with other rights."""
    snapshot = samples.input_bound()
    asked = []

    def source(process, file, line):
        asked.append(process)
        return parts.source_around(process, file, line)

    async with look_at(snapshot, source_around=source) as eyes:
        await eyes.press("enter")
        await eyes.until("raw = file.read()")
    started = {process.pid: process.started for process in snapshot.host.processes}
    assert asked and all(process.started == started[process.pid] for process in asked)

    gone = msgspec.structs.replace(snapshot, host=msgspec.structs.replace(snapshot.host, processes=()))
    async with look_at(gone, source_around=source) as eyes:
        asked.clear()
        await eyes.press("enter")
        await eyes.until("source not readable")
        assert asked == []


async def test_unreadable_source_is_said_and_the_line_known_is_shown(look_at):
    def unreadable(process, file, line):
        raise PermissionError(file)

    for source_around in (unreadable, lambda process, file, line: None):
        async with look_at(samples.input_bound(), source_around=source_around) as eyes:
            await eyes.press("enter")
            await eyes.until("source not readable")
            assert "image = decode_jpeg(raw, size=None)" in eyes.pane("evidence")


async def test_slow_source_does_not_hold_up_the_screen(look_at):
    go_on = threading.Event()

    def slow(process, file, line):
        assert threading.current_thread() is not threading.main_thread()
        go_on.wait(10)
        return parts.source_around(process, file, line)

    async with look_at(samples.input_bound(), source_around=slow) as eyes:
        await eyes.press("enter")
        assert "reading the source…" in eyes.pane("evidence")
        await eyes.press("escape")
        assert "hot lines" in eyes.text()
        go_on.set()


async def test_source_is_read_once(look_at):
    asked = []

    def read(process, file, line):
        asked.append((file, line))
        return parts.source_around(process, file, line)

    async with look_at(samples.input_bound(), source_around=read) as eyes:
        await eyes.press("enter")
        await eyes.until("raw = file.read()")
        await eyes.give(samples.input_bound(tick=50))
        await eyes.give(samples.input_bound(tick=51))
        assert len(asked) == len(set(asked)) == 3


async def test_it_scrolls_and_closes_at_a_small_size(look_at):
    async with look_at(samples.input_bound(), size=(80, 24), source_around=parts.source_around) as eyes:
        await eyes.press("enter")
        await eyes.until("raw = file.read()")
        assert "What to do" not in eyes.pane("evidence")
        await eyes.press("pagedown", "pagedown")
        assert "What to do" in eyes.pane("evidence")
        await eyes.press("escape")
        assert "hot lines" in eyes.text()


async def test_without_a_verdict_it_says_what_is_missing(look_at):
    async with look_at(samples.waiting()) as eyes:
        await eyes.press("enter")
        assert "no verdict yet" in eyes.text()
        assert "4 of 20 steps seen: input-bound" in eyes.text()


async def test_it_has_help_and_is_saved_like_the_main_screen(look_at, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("enter", "question_mark")
        assert "scroll the evidence" in eyes.text() and "this help" in eyes.text()
        await eyes.press("escape", "s")
        assert "saved aitop-3720-1.svg and .txt" in eyes.pane("header")
        assert "What to do" in (tmp_path / "aitop-3720-1.txt").read_text()


async def test_the_screen_below_is_fresh_when_it_closes(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("enter")
        await eyes.give(samples.healthy())
        assert "COMPUTE-BOUND" in eyes.text()
        await eyes.press("escape")
        assert "COMPUTE-BOUND" in eyes.pane("verdict")


async def test_below_the_numbers_are_what_could_not_be_judged_and_the_page(look_at):
    abstained = tuple(Abstention(id=rule, reason="no GPU figures") for rule in ("sync-stall", "launch-bound"))
    shot = samples.input_bound()
    diagnosis = msgspec.structs.replace(shot.diagnosis, abstained=abstained)
    async with look_at(msgspec.structs.replace(shot, diagnosis=diagnosis), size=(80, 24)) as eyes:
        await eyes.press("enter")
        pages = []
        for _ in range(12):
            pages.append(eyes.pane("evidence"))
            await eyes.press("pagedown")
        listing = "\n".join(pages)
        assert "Could not be judged" in listing and "no GPU figures: sync-stall, launch-bound" in listing
        for part in PARTS:
            assert part in listing
        assert listing.index("What to do") < listing.index("Could not be judged") < listing.index("What it is")
        assert "DataLoader(..., num_workers=6, persistent_workers=True," in listing
        await eyes.press("down")
        assert "checkpoint-stall" in eyes.pane("evidence").splitlines()[0]


async def test_a_fix_is_shown_as_the_edit_that_it_is(look_at):
    asked = []

    def source(process, file, line):
        asked.append((file, line))
        return [(12, "    loader = DataLoader(data, num_workers=args.workers)")] if line == 0 else None

    async with look_at(samples.input_bound(), source_around=source) as eyes:
        await eyes.press("enter")
        await eyes.until("+ loader = DataLoader(data, num_workers=10)")
        assert "train.py:12  - loader = DataLoader(data, num_workers=args.workers)" in eyes.text()
        await eyes.give(samples.input_bound())
        looks = [(file, line) for file, line in asked if line == 0]
        assert len(looks) == len(set(looks))
