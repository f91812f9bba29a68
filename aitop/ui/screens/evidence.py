"""The evidence screen: every verdict with its evidence, the lines of user code, the fixes, and the confidence."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import ClassVar

from textual.binding import Binding, BindingType

from aitop.diagnosis.catalogue import page
from aitop.diagnosis.fix_edit import Edit, SourceAround, editable, find_edits
from aitop.model.units import factor, percent
from aitop.model.verdict import BASES, Fix, Verdict, Where
from aitop.ui.editor import edit
from aitop.ui.messages import in_background
from aitop.ui.panes.verdict import figure_style, looking_lines, shown_verdicts, unjudged_lines
from aitop.ui.screens.code_line import Excerpt, read_excerpt, source_line
from aitop.ui.screens.headed import HeadedScreen
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT, GAIN, LOSS, TEXT, TITLE
from aitop.ui.widgets.line import Line, columns, hanging, lit, shorten, shorten_left, spread, wrapped
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import base_name, confidence_dots, confidence_words, label, one_line, place, share_text

MARGIN = 2
WIDEST_GAIN = 120
"""Figures at the right stand at most this far out: further away they are hard to read together with their line."""


class VerdictList(Pane, can_focus=False):
    """One line per verdict, the selected one marked. `notice` says what was just done."""

    selected = 0
    notice = ""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        verdicts = shown_verdicts(view)
        self.top = max(0, min(self.top, self.selected), self.selected - height + 1)
        lines = [_list_line(verdict, width, number == self.selected) for number, verdict in enumerate(verdicts)]
        note = Line(self.notice or "↑↓ choose · pgup pgdn scroll · e edit · esc back", TEXT if self.notice else DIM)
        judged = view.snapshot is not None and view.snapshot.diagnosis.verdicts
        nothing = f"no verdict is about rank {view.rank}" if judged else "no verdict yet"
        return Drawing(lines or [Line(nothing, DIM)], "Why", note)


class EvidencePane(Pane, can_focus=False):
    """A verdict with its confidence, places with source, evidence and fixes; then what could not be judged, and the
    verdict's page of the catalogue.

    `excerpts` are by file and line, `edits` by the text of their fix, None for a fix without a known edit.
    """

    verdict: Verdict | None = None

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self.excerpts: dict[tuple[str, int], Excerpt] = {}
        self.edits: dict[str, Edit | None] = {}

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if self.verdict is None:
            return Drawing(looking_lines(view, width, height), "Evidence")
        verdict = self.verdict
        sections = {
            "Where": [line for where in verdict.where for line in self._where(where, width)],
            "Evidence": [line for sentence in verdict.evidence for line in _bullet("·", sentence, width)],
            "What to do": [line for fix in verdict.fixes for line in self._fix(fix, width)],
            "Could not be judged": unjudged_lines(view.snapshot.diagnosis, width) if view.snapshot else [],
        }
        lines = _head(verdict, width)
        for title, section in sections.items():
            lines += [Line(), Line(title, TITLE), *section] if section else []
        lines += page_lines(verdict.id, width)
        return Drawing(lines, f"{verdict.id}{' · ' + verdict.subtype if verdict.subtype else ''}")

    def _where(self, where: Where, width: int) -> list[Line]:
        head = Line("  ").add(one_line(where.function), BRIGHT).add("  ").add(place(where), TEXT).add("  ")
        right = Line(f"{percent(where.share)} of samples" if where.share is not None else "", DIM)
        head.add(shorten_left(where.file, width - head.width - right.width - 2), FAINT)
        lines = [spread(head, right, min(width, WIDEST_GAIN))]
        excerpt = self.excerpts.get(where.at)
        if excerpt is None or excerpt.lines is None:
            if where.text:
                lines.append(source_line(where.line, Line(where.text, TEXT), True, width))
            if excerpt is not None:
                word = "reading the source…" if excerpt.reading else "source not readable"
                lines.append(Line(f"    {word}", FAINT))
            return lines
        return lines + [source_line(number, code, number == where.line, width) for number, code in excerpt.lines]

    def _fix(self, fix: Fix, width: int) -> list[Line]:
        gain = f"{factor(fix.speedup)} predicted" if fix.speedup is not None else ""
        lines, change = _bullet("→", fix.text, min(width, WIDEST_GAIN), gain), self.edits.get(fix.text)
        return lines + edit_lines(change, width) if change is not None else lines


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


def _head(verdict: Verdict, width: int) -> list[Line]:
    """The head of a verdict: its title, share, predicted speedup, confidence and ranks."""
    lines = wrapped(one_line(verdict.title), width, BRIGHT)
    figures = Line()
    if verdict.share is not None:
        figures.add(percent(verdict.share), figure_style(verdict)).add(f" of {BASES[verdict.base]}   ", DIM)
    if verdict.speedup is not None and verdict.severity != "info":
        figures.add(factor(verdict.speedup), GAIN).add(" as fast if it were gone   ", DIM)
    figures.join(confidence_dots(verdict.confidence)).add(f" {confidence_words(verdict.confidence)}", DIM)
    if verdict.ranks:
        ranks = Line(f"rank {', '.join(map(str, verdict.ranks))}", DIM)
        if figures.width + 3 + ranks.width > width:
            return [*lines, figures, ranks]
        figures.add("   ").join(ranks)
    return [*lines, figures]


def _bullet(mark: str, text: str, width: int, gain: str = "") -> list[Line]:
    """A sentence with a hanging indent, and a predicted gain at the right of its first line."""
    head = Line(" " * MARGIN).add(f"{mark} ", GAIN if mark == "→" else DIM)
    lines = hanging(head, text, width - (len(gain) + 2 if gain else 0))
    return [spread(lines[0], Line(gain, GAIN), width), *lines[1:]] if gain else lines


def edit_lines(change: Edit, width: int) -> list[Line]:
    """A fix as a two-line diff: file and line, and the source line before and after, without indentation."""
    name = f"{base_name(change.file)}:{change.number}" if change.file else f"line {change.number}"
    head = Line(" " * (MARGIN + 2)).add(shorten_left(name, width // 3), TEXT).add("  ")
    below = Line().to(head.width)
    room = width - head.width - 2
    return [
        head.add("- ", LOSS).add(shorten(change.before.strip(), room), DIM),
        below.add("+ ", GAIN).add(shorten(change.after.strip(), room), TEXT),
    ]


# The most cells of a line of prose: longer lines are hard to read.
WIDEST = 100


@lru_cache(maxsize=8)
def page_lines(verdict: str, width: int) -> tuple[Line, ...]:
    """The catalogue's page on a verdict id, wrapped to `width` or WIDEST; empty if there is none."""
    shown = page(verdict)
    if shown is None:
        return ()
    lines = [Line(), Line("─" * width, FAINT)]
    width = min(width, WIDEST)
    lines += wrapped(f"{shown.id}: {shown.summary}", width, BRIGHT)
    for title, blocks in shown.parts:
        lines += [Line(), Line(title, TITLE)]
        for number, block in enumerate(blocks):
            follows = number > 0 and not (block.kind == "item" and blocks[number - 1].kind == "item")
            lines += [Line()] if follows else []
            if block.kind == "code":
                lines += [Line("    ").add(text, BRIGHT) for text in block.text.split("\n")]
            else:
                lines += hanging(Line("· " if block.kind == "item" else "", DIM), block.text, width)
    return tuple(lines)


LIST_ROWS, LEAST_FOR_LIST = 8, 16


class EvidenceScreen(HeadedScreen):
    """A list of the verdicts at the top, and everything about the selected one below."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "previous verdict"),
        Binding("down,j", "select(1)", "next verdict"),
        Binding("pageup,shift+up", "scroll(-8)", "scroll the evidence"),
        Binding("pagedown,shift+down", "scroll(8)", "scroll the evidence"),
        Binding("e", "edit", "open the line in your editor"),
        Binding("escape,enter,q", "dismiss", "back"),
    ]

    def __init__(self, view: View, source_around: SourceAround | None) -> None:
        self.listing, self.evidence = VerdictList(id="verdicts"), EvidencePane(id="evidence")
        super().__init__(view, self.listing, self.evidence)
        self._source_around = source_around
        self._selected: tuple[str, str | None] | None = None

    def take(self, view: View) -> None:
        super().take(view)
        if self.is_mounted:
            self.show()

    def show(self) -> None:
        """Redraw everything. The selected verdict stays selected as long as it exists."""
        verdicts = shown_verdicts(self.view)
        at = self._position(verdicts)
        self.listing.display = self.header.display = self.size.height >= LEAST_FOR_LIST
        self.listing.styles.height = 2 + max(1, min(len(verdicts), LIST_ROWS, self.size.height // 3))
        self.listing.selected = at
        self.evidence.verdict = verdicts[at] if verdicts else None
        if self.evidence.verdict is not None:
            self._read_source(self.evidence.verdict)
            self._read_edits(self.evidence.verdict)
        super().show()

    def action_select(self, by: int) -> None:
        verdicts = shown_verdicts(self.view)
        if verdicts:
            chosen = verdicts[max(0, min(len(verdicts) - 1, self._position(verdicts) + by))]
            self._selected = (chosen.id, chosen.subtype)
            self.evidence.top = 0
            self.listing.notice = ""
            self.show()

    def action_scroll(self, by: int) -> None:
        self.evidence.action_scroll_by(by)

    def action_edit(self) -> None:
        verdict = self.evidence.verdict
        if verdict is None or not verdict.where:
            self.listing.notice = "this verdict points to no line"
        else:
            where = verdict.where[0]
            self.listing.notice = edit(self.app, where, self.view.process(where.pid))
        self.listing.redraw()

    def _position(self, verdicts: tuple[Verdict, ...]) -> int:
        keys = [(verdict.id, verdict.subtype) for verdict in verdicts]
        return keys.index(self._selected) if self._selected in keys else 0

    def _read_source(self, verdict: Verdict) -> None:
        """Read the source lines around each place of a verdict, once."""
        for where in verdict.where:
            if self._source_around is not None and where.at not in self.evidence.excerpts:
                read_excerpt(self, self._source_around, where.pid, where, partial(self._show_source, where))

    def _show_source(self, where: Where, excerpt: Excerpt) -> None:
        self.evidence.excerpts[where.at] = excerpt
        self.evidence.redraw()

    def _read_edits(self, verdict: Verdict) -> None:
        """Find the source lines that the fixes change, once: in the script and in the files that the verdict names."""
        read, target = self._source_around, self.view.snapshot.target if self.view.snapshot else None
        fixes = tuple(fix for fix in verdict.fixes if fix.text not in self.evidence.edits and editable(fix))
        if read is None or target is None or not fixes:
            return
        self.evidence.edits |= dict.fromkeys(fix.text for fix in fixes)
        named = [(target.pid, target.script or ""), *((one.pid, one.file) for one in verdict.where)]
        living = [(process, file) for pid, file in named if (process := self.view.process(pid)) is not None]
        files = dict.fromkeys(living)
        in_background(self, "edits", partial(find_edits, read, fixes, tuple(files)), self._edits_read)

    def _edits_read(self, edits: dict[str, Edit] | Exception) -> None:
        if not isinstance(edits, Exception):
            self.evidence.edits.update(edits)
        self.evidence.redraw()
