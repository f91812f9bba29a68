"""Charts over time, their cursor, and the figures beside them."""

import math

import msgspec
import sample_parts as parts
import sample_snapshots as samples
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style

from aitop.diagnosis.catalogue import FAMILIES
from aitop.model.snapshot import Series
from aitop.model.steps import pageable_share
from aitop.model.verdict import Verdict
from aitop.ui.panes.code.pane import gil_line
from aitop.ui.panes.data import copies, use_of
from aitop.ui.panes.step_figures import figure_lines, measured_figures
from aitop.ui.state import View
from aitop.ui.widgets.plot import Curve, TimeSpan, ago, curves, nearest, slots, span_of, time_axis, value_at

INK, OVER = Style(color="red"), Style(color="blue")


def series(*pairs):
    return Series(times=tuple(time for time, _ in pairs), values=tuple(value for _, value in pairs))


def test_values_fall_into_their_slots_and_are_held_only_so_long():
    span = TimeSpan(end=10.0, slot=1.0, cells=5)
    known = series((0.5, 4.0), (0.9, 2.0), (3.5, 1.0), (9.9, None), (9.95, 7.0))
    assert slots(known, span) == [4.0, None, None, 1.0, None, None, None, None, None, 7.0]
    assert slots(known, span, mean=True)[0] == 3.0
    assert slots(known, span, hold=2.0) == [4.0, 4.0, 4.0, 1.0, 1.0, 1.0, None, None, None, 7.0]
    assert value_at(slots(known, span), span, 9.0) == 7.0
    assert value_at(slots(known, span), span, 11.0) is None


def test_a_chart_keeps_its_shape_as_time_goes_on():
    values = series(*((number / 4, math.sin(number / 9) + 1) for number in range(200)))

    def drawn(now):
        span = span_of([values], now, 30)
        return curves([Curve(slots(values, span), INK, filled=True)], 30, 3, 2.0)[1].text

    first = drawn(50.1)
    assert drawn(50.9) == first
    assert drawn(52.5).startswith(first[1:-1])


def test_curves_fill_their_field_and_later_ones_lie_over_earlier_ones():
    layers = [Curve([4.0] * 8, INK, filled=True), Curve([8.0] * 8, OVER)]
    top, bottom = curves(layers, 4, 2, 8.0)
    assert (top.text, bottom.text) == ("⠉⠉⠉⠉", "⣿⣿⣿⣿")
    assert (top.spans[0][1], bottom.spans[0][1]) == (OVER, INK)
    assert curves([Curve([8.0] * 8, OVER, dashed=True)], 4, 2, 8.0)[0].text == "⠁⠁⠁⠁"


def test_a_line_has_no_gaps_where_it_jumps():
    rows = curves([Curve([1.0, 16.0], INK)], 1, 4, 16.0)
    assert [row.text for row in rows] == ["⢸", "⢸", "⢸", "⡸"]


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1e12)), max_size=60), st.integers(1, 24), st.integers(1, 6),
    st.one_of(st.none(), st.integers(0, 30)), st.booleans(),
)  # fmt: skip
def test_curves_are_exactly_as_wide_as_asked(values, cells, height, cursor, filled):
    drawn = curves([Curve(values, INK, filled=filled), Curve(values[::-1], OVER)], cells, height, 5e11, cursor)
    assert [line.width for line in drawn] == [cells] * height
    assert all(cell_len(line.text) == cells for line in drawn)


def test_the_cursor_lights_up_one_column():
    row = curves([Curve([1.0] * 8, INK, filled=True)], 4, 1, 1.0, cursor=2)[0]
    assert [len(text) for text, _ in row.spans] == [2, 1, 1]
    assert row.spans[1][1] != INK


def test_the_axis_tells_how_long_ago_things_were():
    assert time_axis(TimeSpan(end=300.0, slot=2.5, cells=60)).text.split() == ["-5", "m", "-2", "m", "30", "s", "now"]
    assert ago(100.0, 88.2).strip() == "12 s ago"
    assert ago(400.0, 90.0).strip() == "5 m 10 s ago"
    assert len({len(ago(400.0, moment)) for moment in (399.9, 300.0, 10.0)}) == 1
    assert [nearest([1.0, 2.0, 4.0], moment) for moment in (0.0, 1.4, 3.1, 9.0)] == [0, 0, 2, 2]


def test_what_a_worker_does_adds_up():
    assert use_of(None, 0.5) is None
    assert use_of(0.25, None) == (0.25, 0.0, None)
    assert use_of(0.25, 0.5) == (0.25, 0.25, 0.5)
    assert use_of(1.7, 0.5) == (1.0, 0.0, 0.0)


def test_figures_are_there_only_where_they_were_measured():
    assert figure_lines(measured_figures(View(samples.input_bound())), 60, 5) == []
    assert copies(View(samples.input_bound()), samples.input_bound(), 60) is None
    speed, syncs, exchange, compiler, scaler = (
        line.text for line in figure_lines(measured_figures(View(samples.measured())), 100, 5)
    )
    assert "347 TFLOP/s" in speed
    assert "35%" in speed
    assert "249K tokens/s" in speed
    assert "3.00 calls/step" in syncs
    assert "12 ms" in syncs
    assert "item train.py:105" in syncs
    assert "4.00 calls/step" in exchange
    assert "61 % overlapped" in exchange
    assert "3 again" in compiler
    assert "size mismatch" in compiler
    assert "4 steps skipped" in scaler


def test_few_rows_show_the_figures_side_by_side():
    (line,) = figure_lines(measured_figures(View(samples.measured())), 70, 1)
    assert " ".join(line.text.split(" · ")[0].split()) == "speed 347 TFLOP/s MFU 35%"
    assert "syncs 3.00 calls/step" in line.text
    assert line.width <= 70
    assert figure_lines(measured_figures(View(samples.measured())), 70, 0) == []


def test_copies_say_how_much_of_them_is_pageable():
    text = copies(View(samples.measured()), samples.measured(), 90).text
    assert "38 MB/step" in text
    assert "75% pageable" in text
    assert "to train.py:98" in text
    facts = samples.measured().facts
    untold = tuple(msgspec.structs.replace(call, pageable_bytes=None) for call in facts.calls)
    assert pageable_share(untold) is None


def test_threads_that_hold_the_lock_are_named_and_idle_ones_not():
    stacks = samples.measured().stacks
    text = gil_line(stacks, None, 100).text
    assert text.split()[:3] == ["GIL", "37%", "main"]
    assert "24% tensorboard-writer" in text
    assert "idle" not in text
    assert gil_line(stacks, frozenset({1}), 100) is None
    assert gil_line(parts.stacks(), None, 100) is None


async def test_every_verdict_about_memory_stands_beside_the_memory(look_at):
    measured = samples.measured()
    async with look_at(samples.healthy()) as eyes:
        for verdict in dict(FAMILIES)["memory"]:
            assert verdict not in eyes.pane("memory")
            verdicts = (Verdict(id=verdict, severity="warning", title="Memory runs out", confidence=0.9),)
            diagnosis = msgspec.structs.replace(measured.diagnosis, verdicts=verdicts)
            await eyes.give(msgspec.structs.replace(measured, diagnosis=diagnosis))
            assert verdict in eyes.pane("memory").split("\n")[0]


async def test_each_pane_shows_what_belongs_to_it(look_at):
    async with look_at(samples.measured(), size=(200, 50)) as eyes:
        for pane, words in (
            ("step", ("TFLOP/s", "syncs", "exchange", "skipped", "last 127 steps", "-5 m")),
            ("gpu", ("100%▕", "busy")),
            ("data", ("copies", "pageable", "busy", "idle", "3731")),
            ("memory", ("peak", "split  12%", "retry  2", "OOM  1", "oom-risk")),
            ("code", ("GIL   37% main",)),
        ):
            assert [word for word in words if word not in eyes.pane(pane)] == [], pane


async def test_the_cursor_reads_off_values_and_leaves_at_the_right_edge(look_at):
    async with look_at(samples.measured(), size=(200, 50)) as eyes:
        before = eyes.pane("step")
        assert "s ago" not in before
        await eyes.press("tab", "left", "left")
        assert " ago  step 14,1" in eyes.pane("step")
        there = eyes.app.screen.focused.cursor
        await eyes.give(samples.measured())
        assert eyes.app.screen.focused.cursor == there
        await eyes.press(*["shift+left"] * 6)
        assert "p50" in eyes.pane("step").split("\n")[-2]
        assert " ago " in eyes.pane("step").split("\n")[-2]
        await eyes.press("escape")
        assert eyes.pane("step").split("\n")[3:] == before.split("\n")[3:]
        await eyes.press("left", "right", "right")
        assert eyes.app.screen.focused.cursor is None


async def test_every_pane_with_charts_has_a_cursor(look_at):
    async with look_at(samples.measured(), size=(200, 50)) as eyes:
        await eyes.press("tab")
        for pane, word in (("gpu", "busy"), ("data", "ready"), ("memory", "of")):
            await eyes.press("tab", "left", "left", "left")
            assert eyes.app.screen.focused.id == pane
            line = next(line for line in eyes.pane(pane).split("\n") if " ago  " in line)
            assert word in line
            await eyes.press("escape", "z", "escape")
            assert "verdict" in eyes.shown()


async def test_a_hook_on_its_way_in_is_said_to_be(look_at):
    async with look_at(samples.hook_on_its_way()) as eyes:
        assert "hook waiting for the target" in eyes.pane("step")
        assert "is inside one long call" in eyes.pane("step")
        assert "hook…" in eyes.pane("header")


async def test_without_a_gpu_the_step_has_its_room(look_at):
    async with look_at(samples.no_gpu_no_hook(), size=(200, 50)) as eyes:
        assert eyes.app.screen.query_one("#step").size.width == 112
        await eyes.give(samples.measured())
        assert eyes.app.screen.query_one("#step").size.width == 56
