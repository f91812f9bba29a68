"""What roomy panes show beside what they are about."""

import sample_snapshots as samples

from aitop.ui.panes.code.call_tree import forest
from aitop.ui.panes.code.flame import flame_below
from aitop.ui.panes.code.hot_lines import lines_below, room_below
from aitop.ui.panes.verdict import headline
from aitop.ui.state import EVERYBODY, View

STACKS = samples.input_bound().stacks
VIEW = View(snapshot=samples.input_bound())


def test_the_border_keeps_its_place_when_a_row_comes_or_goes():
    assert room_below(3, 30) == room_below(4, 30) == room_below(5, 30) == 24
    assert room_below(6, 30) == 21
    assert room_below(20, 24) == 0


def test_lines_fill_the_room_they_are_given():
    lines = lines_below(VIEW, "hot lines", 100, 6, pids=None)
    assert len(lines) == 6
    assert lines[0].text.startswith("── hot lines ─")
    assert "decode.py:41" in lines[1].text
    assert lines_below(VIEW, "hot lines", 100, 0, pids=None) == []


def test_the_lines_of_a_process_are_its_own():
    worker = next(process.pid for process in STACKS.processes if process.role == "loader-worker")
    text = "\n".join(line.text for line in lines_below(VIEW, "what it runs", 100, 12, pids=frozenset({worker})))
    assert "what it runs" in text
    assert "decode.py:41" in text
    assert "train_epoch" not in text
    assert lines_below(View(), "what it runs", 100, 12, pids=frozenset({worker})) == []


def test_a_flame_fills_the_room_it_is_given():
    nodes = forest(STACKS, None, EVERYBODY)
    drawn = flame_below(nodes, VIEW, 100, 8)
    assert len(drawn) == 8
    assert sum("train_epoch" in line.text for line in drawn) == 1
    assert flame_below([], VIEW, 100, 8) == []


def test_a_title_is_cut_between_clauses():
    verdict = samples.healthy().diagnosis.verdicts[0]
    assert "computes: nothing else is worth removing first" in headline(verdict, 116).text
    short = headline(verdict, 76).text
    assert "of each step computes  " in short
    assert "…" not in short


async def test_the_zoomed_verdict_has_all_of_them_and_zoomed_processes_what_they_run(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("z")
        assert eyes.pane("verdict").count("predicts") == 2
        assert "torch.save took 902 ms" in eyes.pane("verdict")
        await eyes.press("z", "T")
        assert "runs ──" in eyes.pane("processes")
    async with look_at(samples.waiting()) as eyes:
        await eyes.press("z")
        assert "looking…" in eyes.pane("verdict")
