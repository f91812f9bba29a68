"""How little is written to the terminal when little changes, with the same picture in the end."""

import re

import msgspec
import sample_snapshots as samples
from rich.cells import cell_len
from sample_parts import records, steps

from aitop.ui.line import _ONE_CELL_EACH, Line, changed_cells
from aitop.ui.palette import BRIGHT, DIM
from aitop.ui.thrift import condensed, narrowed

CUT_OR_TEXT = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[[0-9;]*m|(.)")


async def test_only_what_changes_is_written_and_the_picture_is_the_same(look_at, monkeypatch):
    first = samples.measured()
    async with look_at(first) as eyes:
        seen = [list(row) for row in eyes.text().split("\n")]
        updates = []
        monkeypatch.setattr(eyes.app, "_display", lambda screen, update: updates.append(update))
        for seconds in (1.0, 2.0):
            await eyes.give(
                msgspec.structs.replace(first, time=first.time + seconds, steps=steps(records(128, 0.2, 0.6, seed=3)))
            )
        updates = [update for update in updates if update is not None]
        written = "".join(narrowed(update).render_segments(eyes.app.console) for update in updates)
        usual = "".join(update.render_segments(eyes.app.console) for update in updates)
        for row, column, character in CUT_OR_TEXT.findall(written):
            if row:
                y, x = int(row) - 1, int(column) - 1
            elif character:
                seen[y][x] = character
                x += 1
        assert "\n".join("".join(row) for row in seen) == eyes.text()
        assert 0 < len(condensed(written)) < 0.7 * len(condensed(usual))


def test_changed_cells_are_told_and_near_ones_put_together():
    before = Line("a long line of many words", DIM)
    assert changed_cells(before, Line("a long line of many words", DIM)) == []
    assert changed_cells(before, Line("a lONg line of many words", DIM)) == [(3, 5)]
    assert changed_cells(before, Line("A lonG line of many wordS", DIM)) == [(0, 6), (24, 25)]
    assert changed_cells(before, Line("a long line", DIM).add(" of many words", BRIGHT)) == [(11, 25)]


def test_no_half_of_a_wide_character_changes_alone():
    assert changed_cells(Line("a火b", DIM), Line("a水b", DIM)) == [(1, 3)]
    assert changed_cells(Line("火 火", DIM), Line(" 火火", DIM)) == [(0, 3)]
    assert changed_cells(Line("e", DIM), Line("e\u0301", DIM)) == [(0, 1)]


def test_what_counts_as_one_cell_each_is():
    known = [chr(code) for code in range(0x3000) if _ONE_CELL_EACH.fullmatch(chr(code))]
    assert len(known) > 600
    assert {cell_len(character) for character in known} == {1}
