"""Notes when torch.compile compiles, because the requests of a server wait meanwhile."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from ...protocol.events import COMPILE
from ..patches import Patches
from . import Measure

if TYPE_CHECKING:
    from ..session import Session

MODULE = "torch._dynamo.callback"


class Compiles(Measure):
    """Has torch.compile call it at the start and end of each compilation (only the outermost, where they nest)."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._journal = session.journal
        self._handler: Any = None
        self._since = 0
        self.look(0)

    def look(self, now: int) -> None:
        handler = getattr(sys.modules.get(MODULE), "callback_handler", None)
        # Register again if the callbacks are gone: a reset of torch.compile by the program drops them.
        if handler is not None and self._begins not in handler.start_callbacks:
            self._handler = handler
            handler.register_start_callback(self._begins)
            handler.register_end_callback(self._ends)

    def over(self) -> None:
        handler = self._handler
        if handler is not None and self._begins in handler.start_callbacks:
            handler.remove_start_callback(self._begins)
        if handler is not None and self._ends in handler.end_callbacks:
            handler.remove_end_callback(self._ends)

    # Torch calls them without an argument up to 2.7, since then with one.
    def _begins(self, *what: Any) -> None:
        self._since = time.monotonic_ns()

    def _ends(self, *what: Any) -> None:
        since, self._since = self._since, 0
        if since:
            self._journal.note(COMPILE, since, time.monotonic_ns())
