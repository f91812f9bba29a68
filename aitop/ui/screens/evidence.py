"""Why: every verdict with its evidence, the user's own lines, the fixes and how sure all that is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.model.verdict import Fix, Verdict
from aitop.ui.background import in_background
from aitop.ui.code_lines import Place
from aitop.ui.editor import edit
from aitop.ui.fix_edit import Edit, edit_of, editable
from aitop.ui.messages import EditsFound, SourceRead
from aitop.ui.panes.evidence import EvidencePane, Excerpt, VerdictList
from aitop.ui.panes.header import Header
from aitop.ui.panes.verdict import shown_verdicts
from aitop.ui.view import View

SourceAround = Callable[[int, str, int], "list[tuple[int, str]] | None"]
"""The target's own source around (pid, file, line) as numbered lines, line 0: all; None when it cannot be read."""

LIST_ROWS = 8


class EvidenceScreen(Screen[None]):
    """Verdicts at the top, one of them selected; all there is to know about it below."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "previous verdict"),
        Binding("down,j", "select(1)", "next verdict"),
        Binding("pageup,shift+up", "scroll(-8)", "scroll the evidence"),
        Binding("pagedown,shift+down", "scroll(8)", "scroll the evidence"),
        Binding("e", "edit", "open the line in your editor"),
        Binding("escape,enter,q", "dismiss", "back"),
    ]

    def __init__(self, view: View, source_around: SourceAround | None) -> None:
        super().__init__()
        self.view = view
        self._source_around = source_around
        self._selected: tuple[str, str | None] | None = None
        self._excerpts: dict[tuple[str, int], Excerpt] = {}
        self._edits: dict[str, Edit | None] = {}
        self._looking = 0

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield VerdictList(id="verdicts", focusable=False)
        yield EvidencePane(id="evidence", focusable=False)

    def on_mount(self) -> None:
        self.show(self.view)

    def on_resize(self, event: events.Resize) -> None:
        self.show(self.view)

    @property
    def reading(self) -> bool:
        """Whether source is still being read."""
        return self._looking > 0 or any(excerpt.reading for excerpt in self._excerpts.values())

    def show(self, view: View) -> None:
        """Take a new view; the selected verdict stays selected while it is there."""
        self.view = view
        verdicts = shown_verdicts(view)
        at = self._position(verdicts)
        listing, evidence = self.query_one(VerdictList), self.query_one(EvidencePane)
        small = self.size.height < 16
        rows = max(1, min(len(verdicts), LIST_ROWS, self.size.height // 3))
        listing.display = not small
        self.query_one(Header).display = not small
        listing.styles.height = rows + 2
        listing.selected = at
        evidence.verdict = verdicts[at] if verdicts else None
        evidence.excerpts, evidence.edits = self._excerpts, self._edits
        if evidence.verdict is not None:
            self._read_source(evidence.verdict)
            self._read_edits(evidence.verdict)
        for pane in (self.query_one(Header), listing, evidence):
            pane.show(view)

    def on_source_read(self, message: SourceRead) -> None:
        self._excerpts[message.place] = Excerpt(message.lines)
        self.query_one(EvidencePane).redraw()

    def on_edits_found(self, message: EditsFound) -> None:
        self._edits.update(message.edits)
        self._looking -= 1
        self.query_one(EvidencePane).redraw()

    def action_select(self, by: int) -> None:
        verdicts = shown_verdicts(self.view)
        if verdicts:
            chosen = verdicts[max(0, min(len(verdicts) - 1, self._position(verdicts) + by))]
            self._selected = (chosen.id, chosen.subtype)
            self.query_one(EvidencePane).top = 0
            self.query_one(VerdictList).notice = ""
            self.show(self.view)

    def action_scroll(self, by: int) -> None:
        self.query_one(EvidencePane).action_scroll_by(by)

    def action_edit(self) -> None:
        """Open the first place of the selected verdict."""
        verdict = self.query_one(EvidencePane).verdict
        listing = self.query_one(VerdictList)
        if verdict is None or not verdict.where:
            listing.notice = "this verdict points to no line"
        else:
            where = verdict.where[0]
            listing.notice = edit(self.app, Place(where.pid, where.file, where.line, where.function))
        listing.redraw()

    def _position(self, verdicts: tuple[Verdict, ...]) -> int:
        keys = [(verdict.id, verdict.subtype) for verdict in verdicts]
        return keys.index(self._selected) if self._selected in keys else 0

    def _read_source(self, verdict: Verdict) -> None:
        """Ask for the lines around each place once, off this thread: the file may be slow, gone or huge."""
        read = self._source_around
        for where in verdict.where:
            place = (where.file, where.line)
            if read is None or place in self._excerpts:
                continue
            self._excerpts[place] = Excerpt(None, reading=True)

            in_background(self, "source", partial(read_source, read, where.pid, place))

    def _read_edits(self, verdict: Verdict) -> None:
        """Look once for the lines that the fixes change, in the script and in the files that the verdict names."""
        read, target = self._source_around, self.view.snapshot.target if self.view.snapshot else None
        fixes = [fix for fix in verdict.fixes if fix.text not in self._edits and editable(fix)]
        if read is None or target is None or not fixes:
            return
        self._edits |= dict.fromkeys(fix.text for fix in fixes)
        self._looking += 1
        files = dict.fromkeys([(target.pid, target.script or ""), *((one.pid, one.file) for one in verdict.where)])
        in_background(self, "edits", partial(find_edits, read, tuple(fixes), tuple(files)))


def find_edits(source_around: SourceAround, fixes: tuple[Fix, ...], files: tuple[tuple[int, str], ...]) -> EditsFound:
    """The first line in these files (pid, path) that each fix changes, as a message. May be slow; never raises."""
    found: dict[str, Edit] = {}
    for pid, file in files:
        try:
            lines = source_around(pid, file, 0) or []
        except Exception:
            # As below: what cannot be read has no line to change.
            lines = []
        for fix in fixes:
            edit_found = edit_of(fix, lines) if fix.text not in found else None
            if edit_found is not None:
                found[fix.text] = edit_found._replace(file=file)
    return EditsFound(found)


def read_source(source_around: SourceAround, pid: int, place: tuple[str, int]) -> SourceRead:
    """The coloured lines around a place (file, line), as a message. May be slow; never raises."""
    from aitop.ui.syntax import coloured  # noqa: PLC0415 - the lexer is slow to load, and this is not the UI thread

    try:
        lines = source_around(pid, *place)
        return SourceRead(place, coloured(lines) if lines else None)
    except Exception:
        # Whatever keeps the file from being read: the view says that it is not readable.
        return SourceRead(place, None)
