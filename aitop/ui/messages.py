"""What threads say to the screen. Facts come in as messages and nothing else."""

from __future__ import annotations

from textual.message import Message

from aitop.model.candidate import Candidate
from aitop.model.snapshot import Snapshot
from aitop.ui.code_lines import Place
from aitop.ui.fix_edit import Edit
from aitop.ui.line import Line


class SnapshotArrived(Message):
    """A new picture. A newer one takes the place of one that was not handled yet, so a slow screen never lags."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotArrived)


class FeedFailed(Message):
    """The feed could not start."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Detached(Message):
    """The hook was taken out, or `error` says why not."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error


class SourceRead(Message):
    """The user's numbered lines around a place (file, line), coloured; None when they could not be read."""

    def __init__(self, place: tuple[str, int], lines: list[tuple[int, Line]] | None) -> None:
        super().__init__()
        self.place = place
        self.lines = lines


class EditsFound(Message):
    """The lines of the user's own source that fixes change, by the text of the fix."""

    def __init__(self, edits: dict[str, Edit]) -> None:
        super().__init__()
        self.edits = edits


class LineWanted(Message):
    """A line of code is to be looked at."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place


class CandidatesFound(Message):
    """The jobs on this machine, or the `error` that kept us from looking."""

    def __init__(self, candidates: list[Candidate], error: BaseException | None = None) -> None:
        super().__init__()
        self.candidates = candidates
        self.error = error
