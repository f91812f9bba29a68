"""One line of the screen: pieces of styled text whose width in cells is known. All text enters through `Line.add`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from aitop.model.text import printable
from aitop.ui.theme.palette import DIM, FRAME, KEY, SELECTED, TEXT, on
from aitop.ui.theme.themes import Look, themed

Span = tuple[str, Style]
ELLIPSIS = "…"


def cut(text: str, width: int) -> str:
    """The longest start of `text` that takes at most `width` cells; a wide character is never halved."""
    if text.isascii():
        return text[: max(0, width)]
    end, taken = 0, 0
    for character in text:
        taken += cell_len(character)
        if taken > width:
            break
        end += 1
    return text[:end]


def shorten(text: str, width: int) -> str:
    """`text` cut at the end to `width` cells, the cut marked."""
    text = printable(text)
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    return cut(text, width - 1).rstrip() + ELLIPSIS


def shorten_left(text: str, width: int) -> str:
    """`text` cut at the start to `width` cells: the end of a path says more than its start."""
    text = printable(text)
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[1:]
    return ELLIPSIS + text


def wrap(text: str, width: int) -> list[str]:
    """`text` broken at spaces into lines of at most `width` cells; words that are longer are cut."""
    lines: list[str] = []
    current = ""
    for word in printable(text).split():
        joined = f"{current} {word}" if current else word
        if cell_len(joined) <= width:
            current = joined
            continue
        if current:
            lines.append(current)
        current = word
        while cell_len(current) > width > 0:
            head = cut(current, width) or current[0]
            lines.append(head)
            current = current[len(head) :]
    return [*lines, current] if current else lines


class Line:
    """Pieces of text side by side. Built by chaining; equal when text and styles are."""

    __slots__ = ("spans", "width")

    def __init__(self, text: str = "", style: Style = TEXT) -> None:
        self.spans: list[Span] = []
        self.width = 0
        if text:
            self.add(text, style)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self.spans == other.spans

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Line({self.text!r})"

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)

    def add(self, text: str, style: Style = TEXT) -> Line:
        """Append text, with control characters removed."""
        text = printable(text)
        if text:
            self.spans.append((text, style))
            self.width += cell_len(text)
        return self

    def join(self, other: Line) -> Line:
        self.spans.extend(other.spans)
        self.width += other.width
        return self

    def join_fitting(self, parts: Iterable[Line], width: int, gap: str = "  ") -> Line:
        """Append each of the parts that still fits, with `gap` between them."""
        between = ""
        for part in parts:
            if self.width + len(between) + part.width <= width:
                self.add(between, DIM).join(part)
                between = gap
        return self

    def to(self, column: int, fill: str = " ", style: Style = TEXT) -> Line:
        """Fill up to `column`; nothing if the line is longer."""
        return self.add(fill * (column - self.width), style) if column > self.width else self

    def extend(self, spans: Iterable[Span]) -> Line:
        """Append pieces, neighbours of one style as one."""
        for style, group in groupby(spans, key=itemgetter(1)):
            self.add("".join(text for text, _ in group), style)
        return self

    def fit(self, width: int) -> Line:
        """A line of exactly `width` cells: filled up with spaces, or cut with the cut marked."""
        if self.width == width:
            return self
        fitted = Line()
        if self.width < width:
            return fitted.join(self).to(width)
        for text, style in self.spans:
            room = width - 1 - fitted.width
            if cell_len(text) > room:
                fitted.add(cut(text, room), style)
                break
            fitted.add(text, style)
        return fitted.add(ELLIPSIS, DIM).fit(width) if width > 0 else Line()

    def restyled(self, style_of: Callable[[Style], Style]) -> Line:
        """The same text, each piece in what `style_of` makes of its style."""
        line = Line()
        line.spans = [(text, style_of(style)) for text, style in self.spans]
        line.width = self.width
        return line

    def to_strip(self, background: str, look: Look) -> Strip:
        """What Textual draws: pieces without a background of their own stand on `background`, which is a role."""
        text_of = to_ascii if look.ascii else str
        segments = [Segment(text_of(text), themed(on(style, background), look.theme)) for text, style in self.spans]
        return Strip(segments, self.width)


def hanging(head: Line, text: str, width: int, style: Style = TEXT) -> list[Line]:
    """`text` broken into lines of `width` cells: the first begins with `head`, the others stand under its text."""
    parts = wrap(text, max(8, width - head.width)) or [""]
    return [Line().join(Line() if row else head).to(head.width).add(part, style) for row, part in enumerate(parts)]


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` at the left edge and `right` at the right one; where both do not fit, the left gives way."""
    if right.width >= width:
        return right.fit(width)
    room = width - right.width
    return Line().join(left.fit(room)).join(right)


def rule(title: str, width: int, key: str = "") -> Line:
    """A horizontal rule with a title for what is below it, and the key that shows that in the whole pane."""
    line = Line("── ", FRAME).add(key, KEY).add(" " if key else "").add(title, DIM)
    return line.add(" ").to(width, "─", FRAME)


def key_hints(hints: Iterable[tuple[str, str]]) -> Line:
    """Keys, each with what it does in a word or two."""
    line = Line()
    for key, word in hints:
        line.add(key, KEY).add(f" {word}  ", DIM)
    return line


def columns(cells: Iterable[tuple[Line, int]], gap: int = 2) -> Line:
    """Lines side by side, each fitted to its width, so that nothing moves when a value gets longer."""
    row = Line()
    for cell, width in cells:
        if row.width:
            row.add(" " * gap)
        row.join(cell.fit(width))
    return row


def lit(line: Line) -> Line:
    """The line on the background of a selected row."""
    return line.restyled(lambda style: on(style, SELECTED))


_ASCII = str.maketrans(
    {
        "●": "*", "○": "o", "⊘": "!", "◐": "~", "✗": "x", "█": "#", "▌": "|", "▐": "|", "■": "#", "│": "|", "─": "-",
        "╭": "+", "╮": "+", "╰": "+", "╯": "+", "├": "|", "└": "`", "×": "x", "µ": "u", "–": "-", "…": ".", "·": ".",
        "→": ">", "⏎": "<", "▲": "^", "▼": "v", "↑": "^", "↓": "v", "▏": "|", "▕": "|", "▎": "|", "▍": "|", "▋": "#",
        "▊": "#", "▉": "#", "▁": "_", "▂": "_", "▃": "-", "▄": "-", "▅": "=", "▆": "=", "▇": "#", "°": "'", "≈": "~",
        "━": "=", "▸": ">", "▾": "v", "≥": ">", "≤": "<", "‘": "'", "’": "'", "“": '"', "”": '"', "—": "-", "░": ".",
        "▒": ":", "▓": "%", "⇄": "=", "←": "<",
    }
)  # fmt: skip
_DOTS = " .:-=+*#@"


@lru_cache(maxsize=2048)
def to_ascii(text: str) -> str:
    """`text` of the same width in ASCII: braille by how many dots are set, other characters by likeness."""
    text = text.translate(_ASCII)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else _ascii_of(c) for c in text)


def _ascii_of(character: str) -> str:
    if 0x2800 <= ord(character) <= 0x28FF:
        return _DOTS[(ord(character) - 0x2800).bit_count()]
    return "?" * cell_len(character)
