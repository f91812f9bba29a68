"""The two parts of the evidence view: the list of verdicts, and all there is to know about one of them."""

from __future__ import annotations

from dataclasses import dataclass

from aitop.model.units import factor, percent
from aitop.model.verdict import Verdict, Where
from aitop.ui.fix_edit import Edit
from aitop.ui.line import Line, columns, lit, shorten, shorten_left, spread, wrap
from aitop.ui.page import page_lines, unjudged_lines
from aitop.ui.palette import BRIGHT, DIM, FAINT, GAIN, LOSS, TEXT, TITLE
from aitop.ui.panes.verdict import figure_style, looking_lines, shown_verdicts
from aitop.ui.view import View
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import base_name, confidence_dots, confidence_words, label, one_line, place, share_text

MARGIN = 2
# A figure at the right is not read with its line from further off.
WIDEST_GAIN = 120


@dataclass(frozen=True)
class Excerpt:
    """The user's coloured lines around a place; None when they could not be read, `reading` while that goes on."""

    lines: list[tuple[int, Line]] | None
    reading: bool = False


class VerdictList(Pane):
    """One line a verdict, the selected one marked. `notice` is about what was just done."""

    selected = 0
    notice = ""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        verdicts = shown_verdicts(view)
        self.top = max(0, min(self.top, self.selected), self.selected - height + 1)
        lines = [_list_line(verdict, width, number == self.selected) for number, verdict in enumerate(verdicts)]
        note = Line(self.notice or "↑↓ choose · pgup pgdn scroll · e edit · esc back", TEXT if self.notice else DIM)
        return Drawing(lines or [Line("no verdict yet", DIM)], "Why", note)


class EvidencePane(Pane):
    """Evidence, place with source, fixes and how sure; below them what could not be judged, and the verdict's page."""

    verdict: Verdict | None = None
    excerpts: dict[tuple[str, int], Excerpt] = {}  # noqa: RUF012 - replaced by the screen that owns it
    edits: dict[str, Edit | None] = {}  # noqa: RUF012 - as above

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if self.verdict is None:
            return Drawing(looking_lines(view, width, height), "Evidence")
        verdict = self.verdict
        lines = _what(verdict, width)
        if verdict.where:
            lines += _section("Where")
            for where in verdict.where:
                lines += self._where(where, width)
        if verdict.evidence:
            lines += _section("Evidence")
            for sentence in verdict.evidence:
                lines += _bullet("·", sentence, width)
        if verdict.fixes:
            lines += _section("What to do")
            for fix in verdict.fixes:
                gain = f"{factor(fix.speedup)} predicted" if fix.speedup is not None else ""
                lines += _bullet("→", fix.text, min(width, WIDEST_GAIN), gain)
                change = self.edits.get(fix.text)
                lines += edit_lines(change, width) if change is not None else []
        unjudged = unjudged_lines(view.snapshot.diagnosis, width) if view.snapshot else []
        if unjudged:
            lines += [*_section("Could not be judged"), *unjudged]
        lines += page_lines(verdict.id, width)
        return Drawing(lines, f"{verdict.id}{' · ' + verdict.subtype if verdict.subtype else ''}")

    def _where(self, where: Where, width: int) -> list[Line]:
        head = Line("  ").add(one_line(where.function), BRIGHT).add("  ").add(place(where), TEXT).add("  ")
        right = Line(f"{percent(where.share)} of samples" if where.share is not None else "", DIM)
        head.add(shorten_left(where.file, width - head.width - right.width - 2), FAINT)
        lines = [spread(head, right, min(width, WIDEST_GAIN))]
        excerpt = self.excerpts.get((where.file, where.line))
        if excerpt is None or excerpt.lines is None:
            if where.text:
                lines.append(source_line(where.line, Line(where.text, TEXT), True, width))
            if excerpt is not None:
                word = "reading the source…" if excerpt.reading else "source not readable"
                lines.append(Line(f"    {word}", FAINT))
            return lines
        return lines + [source_line(number, code, number == where.line, width) for number, code in excerpt.lines]


def _list_line(verdict: Verdict, width: int, selected: bool) -> Line:
    text, style = label(verdict)
    title = Line("▸ " if selected else "  ", BRIGHT).add(text, style)
    if verdict.subtype:
        title.add(f" {verdict.subtype}", TEXT)
    gain = factor(verdict.speedup) if verdict.speedup is not None and verdict.severity != "info" else ""
    where = place(verdict.where[0]) if verdict.where else ""
    cells = [
        (title, 34),
        (Line(share_text(verdict.share), DIM if verdict.share is None else figure_style(verdict)), 4),
        (Line(gain.rjust(6), GAIN), 6),
        (confidence_dots(verdict.confidence), 5),
    ]
    room = width - sum(cell + 2 for _, cell in cells)
    if room > 30:
        cells.append((Line(shorten(where, 24), TEXT), 24))
        room -= 26
    if room > 12:
        cells.append((Line(shorten(one_line(verdict.title), room), DIM), room))
    line = columns(cells).fit(width)
    return lit(line) if selected else line


def _what(verdict: Verdict, width: int) -> list[Line]:
    """The finding in a sentence, its figures, and how sure we are."""
    lines = [Line(text, BRIGHT) for text in wrap(one_line(verdict.title), width)]
    figures = Line()
    if verdict.share is not None:
        figures.add(percent(verdict.share), figure_style(verdict)).add(" of step time   ", DIM)
    if verdict.speedup is not None and verdict.severity != "info":
        figures.add(factor(verdict.speedup), GAIN).add(" as fast if it were gone   ", DIM)
    figures.join(confidence_dots(verdict.confidence)).add(f" {confidence_words(verdict.confidence)}", DIM)
    if verdict.ranks:
        ranks = Line(f"rank {', '.join(map(str, verdict.ranks))}", DIM)
        if figures.width + 3 + ranks.width > width:
            return [*lines, figures, ranks]
        figures.add("   ").join(ranks)
    return [*lines, figures]


def _section(title: str) -> list[Line]:
    return [Line(), Line(title, TITLE)]


def _bullet(mark: str, text: str, width: int, gain: str = "") -> list[Line]:
    """A sentence with a hanging indent; a predicted gain at the right of its first line."""
    room = width - 2 * MARGIN - (len(gain) + 2 if gain else 0)
    parts = wrap(text, max(8, room)) or [""]
    first = Line(" " * MARGIN).add(f"{mark} ", GAIN if mark == "→" else DIM).add(parts[0], TEXT)
    if gain:
        first = spread(first, Line(gain, GAIN), width)
    return [first, *(Line(" " * (MARGIN + 2)).add(part, TEXT) for part in parts[1:])]


def edit_lines(change: Edit, width: int) -> list[Line]:
    """The line that a fix changes, without its indentation, before and after; where it stands."""
    name = f"{base_name(change.file)}:{change.number}" if change.file else f"line {change.number}"
    head = Line(" " * (MARGIN + 2)).add(shorten_left(name, width // 3), TEXT).add("  ")
    below = Line().to(head.width)
    room = width - head.width - 2
    return [
        head.add("- ", LOSS).add(shorten(change.before.strip(), room), DIM),
        below.add("+ ", GAIN).add(shorten(change.after.strip(), room), TEXT),
    ]


def source_line(number: int, code: Line, guilty: bool, width: int) -> Line:
    """A numbered line of source, the guilty one marked."""
    line = Line("  ▌" if guilty else "   ", LOSS).add(str(number).rjust(5), BRIGHT if guilty else FAINT).add("  ")
    line = line.join(code).fit(width)
    return lit(line) if guilty else line
