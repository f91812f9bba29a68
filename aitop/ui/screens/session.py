"""What somebody does with a session: mark a moment, save the picture, record."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.engine.recorder import Recorder
from aitop.model.snapshot import Snapshot
from aitop.model.text import printable
from aitop.model.units import size
from aitop.ui.messages import SnapshotArrived
from aitop.ui.saving import free_stem, text_of, write_new
from aitop.ui.view import View

RECORDING_SUFFIX = ".jsonl.gz"
CATCH_UP_SECONDS = 0.5
NOTICE_TICKS = 6
"""Snapshots for which a notice stays."""


class SessionScreen(Screen[int]):
    """The part of the main screen that this file's title names. `view` and `_change` are the screen's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "mark", "mark this moment: every figure then shows its change"),
        Binding("M", "unmark", "forget the mark"),
        Binding("r", "record", "record to a file here, and stop"),
        Binding("s", "save", "save this screen here as a picture and as text"),
    ]

    view: View
    _newest: Snapshot | None
    recorder: Recorder | None = None
    _folded: frozenset[str] = frozenset()
    _noticed: str | None = None
    _ticks_to_read = 0

    def _change(self, **changes: object) -> None:
        raise NotImplementedError

    def fold(self, panes: Iterable[str]) -> None:
        """Begin with these panes folded."""
        self._folded = frozenset(panes)

    def action_mark(self) -> None:
        """From here on figures are held against those of now."""
        snapshot = self.view.snapshot
        if snapshot is None:
            self._change(notice="nothing to mark yet")
            return
        self._change(mark=snapshot, notice="marked: every figure now shows its change; M forgets it")

    def action_unmark(self) -> None:
        self._change(mark=None, notice="the mark is forgotten" if self.view.mark else "there is no mark")

    def action_save(self) -> None:
        """A picture (SVG) and a text file of what is on the screen."""
        pid = self.view.snapshot.target.pid if self.view.snapshot else os.getpid()
        pictures = {".svg": self.app.export_screenshot(title="aitop"), ".txt": text_of(self)}
        try:
            saved = write_new(Path.cwd(), f"aitop-{pid}", pictures)
        except OSError as error:
            self._change(notice=f"nothing saved: {_reason(error)}")
            return
        self._change(notice=f"saved {saved[0].name} and {saved[1].suffix} in {printable(str(saved[0].parent))}")

    def action_record(self) -> None:
        """Begin a recording in the working directory, or end the one that is under way."""
        recorder = self.recorder
        if recorder is None:
            self._change(notice="only a live run can be recorded")
            return
        ended = recorder.end()
        if ended is not None:
            kept = f"recorded {size(ended.written)} in {ended.path.name}"
            self._change(recording=None, notice=printable(ended.failed or kept))
            return
        pid = self.view.snapshot.target.pid if self.view.snapshot else os.getpid()
        try:
            folder = Path.cwd()
            name = free_stem(folder, f"aitop-{pid}", (RECORDING_SUFFIX,))
            recording = recorder.begin(folder / f"{name}{RECORDING_SUFFIX}")
        except Exception as error:
            self._change(notice=f"not recording: {_reason(error)}")
            return
        self._change(recording=self._recording_words(), notice=f"recording to {printable(str(recording.path))}")

    def _recording_words(self) -> str | None:
        """What the header says of the recording; None while there is none."""
        recording = self.recorder.recording if self.recorder else None
        if recording is None:
            return None
        return "REC STOPPED" if recording.failed else f"●REC {size(recording.written).rjust(7)}"

    def _link_is_behind(self) -> bool:
        """Whether the terminal has not yet taken what was drawn before; what has come in is drawn a little later."""
        if not getattr(self.app._driver, "behind", False):
            return False
        self.set_timer(CATCH_UP_SECONDS, self._catch_up)
        return True

    def _catch_up(self) -> None:
        """Draw the newest snapshot, if it is not on the screen yet."""
        if self._newest is not None and self._newest is not self.view.snapshot:
            self.post_message(SnapshotArrived(self._newest))

    def _at_tick(self) -> dict[str, str | None]:
        """What a new snapshot changes here: the size of the recording, and notices that were there long enough."""
        words, notice = self._recording_words(), self.view.notice
        if words != self.view.recording and self.recorder and self.recorder.recording:
            notice = printable(self.recorder.recording.failed or "") or notice
        if notice != self._noticed:
            self._noticed, self._ticks_to_read = notice, NOTICE_TICKS
        self._ticks_to_read -= 1
        return {"recording": words, "notice": notice if self._ticks_to_read > 0 else None}


def _reason(error: BaseException) -> str:
    """An error in words, without the number of an OSError."""
    return printable((error.strerror if isinstance(error, OSError) else None) or str(error))
