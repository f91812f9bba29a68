"""How little is written to the terminal when little changes, with the same picture in the end."""

import re

import msgspec
import pytest
import sample_snapshots as samples
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from sample_parts import records, steps
from textual.strip import Segment, Strip

from aitop.ui.changed_cells import ChangedCells

CONTROL_OR_CHARACTER = re.compile(r"\x1b\[(\d+);(\d+)H|\x1b\[(\d*)C|\x1b\[([0-9;]*)m|(.)")
CONSOLE = Console(color_system="truecolor", force_terminal=True)
UNSEEN_ON_BLANKS = ("ink", "attribute 1", "attribute 2", "attribute 3")


class Terminal:
    """Obeys what is written as a terminal does: cells with their style."""

    def __init__(self):
        self.cells = {}

    def feed(self, written):
        row, column, style = 1, 1, {}
        for to_row, to_column, right, codes, character in CONTROL_OR_CHARACTER.findall(written):
            if to_row:
                row, column = int(to_row), int(to_column)
            elif right:
                column += int(right)
            elif character:
                seen = {key: style[key] for key in style if character != " " or key not in UNSEEN_ON_BLANKS}
                self.cells[row, column] = (character, seen)
                for more in range(1, cell_len(character)):
                    self.cells[row, column + more] = ("", seen)
                column += cell_len(character)
            else:
                style = self.styled(style, codes.split(";"))
        assert not style, "the pen is plain between updates"

    @staticmethod
    def styled(style, codes):
        style = dict(style)
        while codes:
            code = codes.pop(0)
            if code in ("", "0"):
                style = {}
            elif len(code) == 1:
                style[f"attribute {code}"] = True
            else:
                which = "ink" if code[0] in "39" else "ground"
                if code in ("38", "48"):
                    count = {"2": 4, "5": 2}[codes[0]]
                    style[which], codes = codes[:count], codes[count:]
                elif code in ("39", "49"):
                    style.pop(which, None)
                else:
                    style[which] = code
        return style


def drawn(row, column, pieces):
    """What Textual writes for these pieces of text side by side."""
    segments = [Segment(text, style) for text, style in pieces]
    return f"\x1b[{row};{column}H{Strip(segments).render(CONSOLE)}"


STYLES = [
    Style(color="#ff0000", bgcolor="#000000"),
    Style(color="#00ff00", bgcolor="#000000", bold=True),
    Style(color="#00ff00", bgcolor="#202020", underline=True),
    Style(color="red", bgcolor="default", reverse=True),
    Style(color="color(200)", dim=True, italic=True),
    Style(),
]
PIECES = st.lists(st.tuples(st.text(alphabet="ab  ▅⣿", max_size=5), st.sampled_from(STYLES)), min_size=1, max_size=4)
UPDATES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 12), PIECES), min_size=1, max_size=8)


@given(st.lists(UPDATES, max_size=6))
def test_what_is_written_draws_the_same(updates):
    as_it_is, changes_only, cells = Terminal(), Terminal(), ChangedCells()
    for rows in updates:
        update = "\n".join(drawn(*row) for row in rows)
        as_it_is.feed(update)
        changes_only.feed(cells.changes(update))
        assert changes_only.cells == as_it_is.cells


def test_what_is_there_already_is_not_written():
    cells = ChangedCells()
    update = drawn(2, 5, [("before ", STYLES[0]), ("▅▅▅", STYLES[1])])
    assert "▅▅▅" in cells.changes(update)
    assert cells.changes(update) == ""
    cells.forget()
    assert "▅▅▅" in cells.changes(update)


def test_wide_and_combined_characters_stay_in_one_piece():
    cells = ChangedCells()
    for _ in range(2):
        assert "e\u0301te\u0301 火" in cells.changes(drawn(2, 5, [("e\u0301te\u0301 火", STYLES[0]), ("|", STYLES[1])]))


def test_half_of_a_wide_character_is_restored():
    terminal, cells = Terminal(), ChangedCells()
    for text, column in (("火", 4), ("a", 5), ("火", 4)):
        terminal.feed(cells.changes(drawn(1, column, [(text, STYLES[0])])))
    assert [terminal.cells[1, column][0] for column in (4, 5)] == ["火", ""]


@pytest.mark.parametrize("output", ["\x1b[?1049h", "\x07", "\x1b]52;c;QQ==\x07", "text"])
def test_what_is_no_update_is_passed_on(output):
    assert ChangedCells().changes(output) == output


def test_after_an_update_that_cannot_be_followed_all_is_written():
    cells = ChangedCells()
    update = drawn(1, 1, [("text", STYLES[0])])
    cells.changes(update)
    assert cells.changes(update + "\x1b[2J") == update + "\x1b[2J"
    assert "text" in cells.changes(update)


async def test_a_tick_writes_little_and_the_picture_is_the_same(look_at, monkeypatch):
    first = samples.measured()
    async with look_at(first) as eyes:
        terminal, cells, written = Terminal(), ChangedCells(), []

        def display(screen, update):
            if update is not None:
                written.append(cells.changes(update.render_segments(eyes.app.console)))
                terminal.feed(written[-1])

        monkeypatch.setattr(eyes.app, "_display", display)
        eyes.app.screen.refresh()
        await eyes.pilot.pause()
        whole = sum(map(len, written))
        written.clear()
        for seconds in (1.0, 2.0):
            await eyes.give(
                msgspec.structs.replace(first, time=first.time + seconds, steps=steps(records(128, 0.2, 0.6, seed=3)))
            )
        rows, columns = 36, 120
        shown = ["".join(terminal.cells[y + 1, x + 1][0] for x in range(columns)) for y in range(rows)]
        assert "\n".join(shown) == eyes.text()
        assert 0 < sum(map(len, written)) < 0.25 * whole
