"""Lines, bars and charts: pure functions."""

import msgspec
import sample_parts as parts
import sample_snapshots as samples
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from aitop.model.snapshot import CallNode, ThreadShare
from aitop.ui.panes.code.call_tree import forest, merged
from aitop.ui.panes.code.hot_lines import hot_rows
from aitop.ui.panes.step import groups_of, phase_shares, scale_top, timeline
from aitop.ui.state import Who
from aitop.ui.theme.palette import DATA, FORWARD, HOST_CHART, PHASES, SAVE
from aitop.ui.theme.themes import Appearance
from aitop.ui.widgets.bars import bar, layered_bar, nice_ceiling, phase_bar, stacked
from aitop.ui.widgets.line import Line, columns, shorten, shorten_left, spread, wrap
from aitop.ui.widgets.plot import area
from aitop.ui.words import short_command, significant

texts = st.text(max_size=60)


@given(texts, st.integers(1, 40))
def test_lines_are_exactly_as_wide_as_asked(text, width):
    for line in (Line(text).fit(width), spread(Line(text), Line("x"), width), columns([(Line(text), width)])):
        assert cell_len(line.text) == line.width == width
    assert cell_len(shorten(text, width)) <= width
    assert cell_len(shorten_left(text, width)) <= width
    assert all(cell_len(part) <= max(2, width) for part in wrap(text, width))


def test_ascii_has_the_same_width():
    line = Line("●◐█▌ ⣿⣀⠀ ×µ–… 日本")
    strip = line.to_strip("#000000", Appearance(ascii=True))
    assert strip.text.isascii()
    assert len(strip.text) == cell_len(line.text)
    assert Line("240 ms → 180 ms").to_strip("#000000", Appearance(ascii=True)).text == "240 ms-> 180 ms"


def test_an_area_is_drawn_from_the_right_and_scales():
    def drawn(values, cells, height):
        return [line.text for line in area(values, cells, height, 1.0, HOST_CHART)]

    assert drawn([1.0, 1.0], 2, 1) == [" ⣿"]
    assert drawn([0.5, 0.5], 1, 2) == [" ", "⣿"]
    assert drawn([None, 1.0], 1, 1) == ["⢸"]
    assert drawn([0.0001, 0.0], 1, 1) == ["⡀"]


@given(
    st.lists(st.lists(st.floats(0, 10), min_size=2, max_size=5), max_size=30),
    st.integers(1, 30), st.integers(1, 8), st.floats(0, 20), st.booleans(),
)  # fmt: skip
def test_stacked_columns_fill_their_field(values, width, height, top, letters):
    columns_ = [tuple(zip(PHASES, column, strict=False)) for column in values]
    assert [line.width for line in stacked(columns_, width, height, top, letters=letters)] == [width] * height


def test_stacked_puts_the_lower_phase_over_the_upper_one():
    (line,) = stacked([((DATA, 0.5), (FORWARD, 0.5))], 1, 1, 1.0)
    ((glyph, style),) = line.spans
    assert glyph == "▄"
    assert (style.color, style.bgcolor) == (DATA.ink.color, FORWARD.ink.color)


def test_a_column_that_is_cut_off_says_so():
    (line,) = stacked([((DATA, 1.0), (SAVE, 9.0))], 1, 1, 2.0)
    assert line.spans == [("▲", SAVE.ink)]


@given(st.floats(0, 1), st.integers(1, 40))
def test_bars_fill_their_field(share, width):
    assert bar(share, width, HOST_CHART).width == width
    assert bar(None, width, HOST_CHART).width == width
    assert layered_bar([(share, HOST_CHART, "█"), (1.0, HOST_CHART, "▒")], width).width == width


def test_the_scale_is_round_and_holds():
    assert [nice_ceiling(value) for value in (0, 0.9, 1.0, 238, 401, 0.0031)] == [1.0, 1.0, 1.0, 300, 500, 0.004]
    assert scale_top([1.0] * 98 + [50.0, 50.0]) == 3.0
    assert scale_top([1.0] * 98 + [50.0, 50.0], low=True) == 1.5


def test_the_phase_bar_shows_every_phase_and_labels_what_fits():
    steps = samples.input_bound().steps
    line = phase_bar(phase_shares(steps), 60)
    assert line.width == 60
    assert " data 6" in line.text
    assert len(line.spans) == 6
    letters = phase_bar(phase_shares(steps), 60, letters=True).text
    assert "DDD" in letters
    assert "S" in letters


def test_saving_is_taken_out_of_what_is_outside():
    steps = samples.input_bound().steps
    shares = dict(phase_shares(steps))
    assert 0.05 < shares[SAVE] < 0.12
    assert abs(sum(share for share in shares.values() if share) - 1) < 0.01


def test_many_steps_are_put_together_in_columns_that_keep_their_place():
    records = parts.records(1000, 0.01, 0.5)
    first, later = (
        [line.text for line in timeline(groups_of(part, 52), 60, 8)] for part in (records[:988], records[:999])
    )
    assert "24 a column" in first[-1]
    assert "24 a column" in later[-1]
    assert [row[20:59] for row in first[:-1]] == [row[20:59] for row in later[:-1]]
    assert [row[20:59] for row in first[:-1]] != [row[19:58] for row in first[:-1]]


def test_equal_lines_of_workers_are_one_row():
    rows = hot_rows(parts.stacks())
    assert (rows[0].line, rows[0].who, round(rows[0].share, 2)) == (41, "worker ×4", 0.79)
    assert next(row for row in rows if row.line == 96).who == "main"
    only = hot_rows(parts.stacks(), frozenset({3731}))
    assert only[0].who == "worker ×1"
    assert round(only[0].share, 2) == 0.81


def test_equal_lines_of_threads_started_alike_are_one_row_and_threads_that_rest_have_none():
    handlers = [f"Thread-{number} (answer)" for number in (1, 2, 3)]
    [line, *_] = [line for line in parts.stacks().lines if line.role == "rank"]
    stacks = msgspec.structs.replace(
        parts.stacks(),
        lines=tuple(msgspec.structs.replace(line, thread=name, samples=30) for name in [*handlers, "watcher"]),
        threads=tuple(
            ThreadShare(pid=line.pid, thread=name, samples=100, active=0.01 if name == "watcher" else 0.3)
            for name in [*handlers, "watcher"]
        ),
    )
    assert [(row.who, round(row.share, 2)) for row in hot_rows(stacks)] == [("answer ×3", 0.3)]
    assert [row.who for row in hot_rows(stacks, None, Who(thread="watcher"))] == ["watcher"]


def test_trees_are_merged_by_function():
    def node(count, line, *below):
        return CallNode(function="f", file="a.py", line=line, samples=count, user=True, children=below)

    (function,) = merged([node(3, 7, node(2, 1)), node(4, 9, node(1, 1))])
    assert (function.samples, function.line, function.children[0].samples) == (7, 9, 3)


def test_a_root_without_a_file_is_not_a_row():
    stacks = parts.stacks()
    tree = CallNode(function="all", file="", line=0, samples=600, children=(parts.tree(),))
    process = msgspec.structs.replace(stacks.processes[0], tree=tree)
    nodes = forest(msgspec.structs.replace(stacks, processes=(process,)))
    assert nodes[0].children[0].function == "<module>"


def test_the_forest_has_ranks_first():
    nodes = forest(parts.stacks())
    assert [node.name for node in nodes] == ["main", "worker ×4"]
    assert nodes[0].children[0].share == 1.0


def test_figures_have_a_fixed_width():
    assert [significant(value, 5) for value in (0.42, 4.2, 42, 420, 4200, None)] == [
        " 0.42", " 4.20", " 42.0", "  420", "4.20K", "    –",
    ]  # fmt: skip


def test_commands_are_shown_without_directories_but_with_their_arguments():
    assert short_command("/opt/x/bin/python -u /home/ada/train.py --data /mnt/a") == "python -u train.py --data /mnt/a"
    assert short_command("") == ""


def test_a_column_that_has_only_begun_waits_until_it_has_half_of_its_steps():
    records = parts.records(1000, 0.01, 0.5)
    assert len(groups_of(records[:980], 52)) + 1 == len(groups_of(records[:990], 52))
    assert len(groups_of(records[:1], 52)) == 1
    assert len(groups_of(records[:40], 52)) == 40
