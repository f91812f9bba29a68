"""A line of the screen: pieces of styled text with a known width in cells. All text enters through `Line.add`."""

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
from aitop.ui.theme.themes import Appearance, themed

Span = tuple[str, Style]
ELLIPSIS = "…"


def cut(text: str, width: int) -> str:
    """The longest prefix of `text` that takes at most `width` cells; a wide character is never split."""
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
    """`text` cut at its end to `width` cells, with an ellipsis if anything was cut."""
    text = printable(text)
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    return cut(text, width - 1).rstrip() + ELLIPSIS


def shorten_left(text: str, width: int) -> str:
    """`text` cut at its start to `width` cells, with an ellipsis: the end of a path says more than its start."""
    text = printable(text)
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[1:]
    return ELLIPSIS + text


def wrap(text: str, width: int) -> list[str]:
    """`text` broken at spaces into lines of at most `width` cells; longer words are broken too."""
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
    """Pieces of text side by side, built by chained calls that change the line. Equal if text and styles are equal."""

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
        """Append those parts that fit into `width`, with `gap` between them; a part that does not fit is skipped."""
        between = ""
        for part in parts:
            if self.width + len(between) + part.width <= width:
                self.add(between, DIM).join(part)
                between = gap
        return self

    def to(self, column: int, fill: str = " ", style: Style = TEXT) -> Line:
        """Fill the line up to `column`; no change if it is already longer."""
        return self.add(fill * (column - self.width), style) if column > self.width else self

    def extend(self, spans: Iterable[Span]) -> Line:
        """Append pieces, merging adjacent ones of the same style."""
        for style, group in groupby(spans, key=itemgetter(1)):
            self.add("".join(text for text, _ in group), style)
        return self

    def fit(self, width: int) -> Line:
        """The line with exactly `width` cells: padded with spaces, or cut with an ellipsis."""
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
        """A copy with `style_of` applied to the style of each piece."""
        line = Line()
        line.spans = [(text, style_of(style)) for text, style in self.spans]
        line.width = self.width
        return line

    def to_strip(self, background: str, appearance: Appearance) -> Strip:
        """The Strip that Textual draws. Pieces without a background get `background`, the name of a colour role."""
        text_of = to_ascii if appearance.ascii else str
        segments = [
            Segment(text_of(text), themed(on(style, background), appearance.theme)) for text, style in self.spans
        ]
        return Strip(segments, self.width)


def hanging(head: Line, text: str, width: int, style: Style = TEXT) -> list[Line]:
    """`text` broken into lines of `width` cells with a hanging indent: the first line begins with `head`."""
    parts = wrap(text, max(8, width - head.width)) or [""]
    return [Line().join(Line() if row else head).to(head.width).add(part, style) for row, part in enumerate(parts)]


def wrapped(text: str, width: int, style: Style = TEXT) -> list[Line]:
    """`text` broken at spaces into lines of at most `width` cells."""
    return [Line(part, style) for part in wrap(text, width)]


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` at the left edge and `right` at the right edge; if both do not fit, `left` is cut."""
    if right.width >= width:
        return right.fit(width)
    room = width - right.width
    return Line().join(left.fit(room)).join(right)


def rule(title: str, width: int, key: str = "") -> Line:
    """A horizontal rule with a title for what is below it and, if given, the key that shows it in the whole pane."""
    line = Line("── ", FRAME).add(key, KEY).add(" " if key else "").add(title, DIM)
    return line.add(" ").to(width, "─", FRAME)


_KEY_WORDS = {"←→": "left/right", "← →": "left/right", "←": "left", "→": "right", "⏎": "enter", "⌫": "bksp"}


def key_words(text: str, appearance: Appearance) -> str:
    """`text` with the signs of keys in words if they cannot be drawn: in ASCII enter and left would look the same."""
    if appearance.ascii:
        for sign, word in _KEY_WORDS.items():
            text = text.replace(sign, word)
    return text


def key_hints(hints: Iterable[tuple[str, str]], appearance: Appearance) -> Line:
    """A line of keys, each with what it does in a word or two."""
    line = Line()
    for key, word in hints:
        line.add(key_words(key, appearance), KEY).add(f" {word}  ", DIM)
    return line


def columns(cells: Iterable[tuple[Line, int]], gap: int = 2) -> Line:
    """Lines side by side, each padded or cut to its width, so that nothing moves when a value gets longer."""
    row = Line()
    for cell, width in cells:
        if row.width:
            row.add(" " * gap)
        row.join(cell.fit(width))
    return row


def lit(line: Line) -> Line:
    """The line highlighted as a selected row, by its background."""
    return line.restyled(lambda style: on(style, SELECTED))


_ASCII = str.maketrans(
    {
        "●": "*", "○": "o", "⊘": "!", "◐": "~", "✗": "x", "█": "#", "▌": "|", "▐": "|", "■": "#", "│": "|", "─": "-",
        "╭": "+", "╮": "+", "╰": "+", "╯": "+", "├": "|", "└": "`", "×": "x", "µ": "u", "–": "-", "…": ".", "·": ".",
        "→": ">", "⏎": "<", "▲": "^", "▼": "v", "↑": "^", "↓": "v", "▏": "|", "▕": "|", "▎": "|", "▍": "|", "▋": "#",
        "▊": "#", "▉": "#", "▁": "_", "▂": "_", "▃": "-", "▄": "-", "▅": "=", "▆": "=", "▇": "#", "°": "'", "≈": "~",
        "━": "=", "▸": ">", "▾": "v", "≥": ">", "≤": "<", "‘": "'", "’": "'", "“": '"', "”": '"', "—": "-", "░": ".",
        "▒": ":", "▓": "%", "⇄": "=", "←": "<", "▶": ">", "‖": "|", "◆": "*", "›": ">", "−": "-", "±": "~",
    }
)  # fmt: skip
_DOTS = " .:-=+*#@"


@lru_cache(maxsize=2048)
def to_ascii(text: str) -> str:
    """`text` in ASCII with the same width: braille by the number of its dots, other characters by likeness."""
    text = text.replace(" →", "->").translate(_ASCII)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else _ascii_of(c) for c in text)


def _ascii_of(character: str) -> str:
    if 0x2800 <= ord(character) <= 0x28FF:
        return _DOTS[(ord(character) - 0x2800).bit_count()]
    return "?" * cell_len(character)
