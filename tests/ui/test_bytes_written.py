"""How little is written to the terminal when little changes, with the same picture in the end."""

import re

import msgspec
import sample_snapshots as samples
from sample_parts import records, steps

from aitop.ui.theme.palette import BRIGHT, DIM
from aitop.ui.widgets.line import Line, changed_columns

CUT_OR_TEXT = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[[0-9;]*m|(.)")


async def test_little_is_written_for_a_change_and_the_picture_is_the_same(look_at, monkeypatch):
    first = samples.measured()
    async with look_at(first) as eyes:
        seen = [list(row) for row in eyes.text().split("\n")]
        updates = []
        monkeypatch.setattr(eyes.app, "_display", lambda screen, update: updates.append(update))
        for seconds in (1.0, 2.0):
            await eyes.give(
                msgspec.structs.replace(first, time=first.time + seconds, steps=steps(records(128, 0.2, 0.6, seed=3)))
            )
        written = "".join(update.render_segments(eyes.app.console) for update in updates if update is not None)
        for row, column, character in CUT_OR_TEXT.findall(written):
            if row:
                y, x = int(row) - 1, int(column) - 1
            elif character:
                seen[y][x] = character
                x += 1
        assert "\n".join("".join(row) for row in seen) == eyes.text()
        whole = "".join(strip.render(eyes.app.console) for strip in eyes.rows())
        assert 0 < len(written) < 0.75 * len(whole)


def test_a_change_is_as_wide_as_the_pieces_that_differ():
    before = Line("step ", DIM).add("12", BRIGHT).add(" of ", DIM).add("90", BRIGHT).add(" done", DIM)
    after = Line("step ", DIM).add("13", BRIGHT).add(" of ", DIM).add("90", BRIGHT).add(" done", DIM)
    assert changed_columns(before, before) is None
    assert changed_columns(before, after) == (5, 7)
    assert changed_columns(Line("a long line", DIM), Line("a wide line", DIM)) == (0, 6)
    assert changed_columns(Line("火 火", DIM), Line(" 火火", DIM)) == (0, 3)
    assert changed_columns(Line("a火b", DIM), Line("a水b", DIM)) == (0, 3)
    assert changed_columns(Line("one", DIM), Line("one", BRIGHT)) == (0, 3)
    assert changed_columns(Line("a long line", DIM), Line("a long", DIM).add(" line", BRIGHT)) == (0, 11)
