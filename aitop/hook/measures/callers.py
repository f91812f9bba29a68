"""Collects the lines of user code from which root modules are called and updated.

Stacks that are read within the process are never torn, unlike those that py-spy reads from outside.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ...protocol.events import BACKWARD, FORWARD, FORWARD_ALONE, OPTIMIZER_ENDS
from ..facts import LONGEST_NAME
from ..patches import Patches
from . import Measure
from .callsites import LONGEST_FILE, MOST_FRAMES, USER, Owners

if TYPE_CHECKING:
    from ..session import Session

# The phases by the events that end them.
PHASES = {FORWARD: "forward", FORWARD_ALONE: "forward", BACKWARD: "backward", OPTIMIZER_ENDS: "optimizer"}
# Most programs call and update their models from a handful of lines.
MOST_LINES = 128
# Ends of phases per look of the session whose stacks are read, a few microseconds each.
AT_ONCE = 4


class Callers(Measure):
    """Reads the stack where forwards, backwards and optimizer steps end, and collects the lines of user code on it."""

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self._session = session
        self._journal = session.journal
        self._owners = Owners(torch)
        self._lines: dict[tuple[str, str, int], str] = {}
        self._left = AT_ONCE
        self._journal.called = self.saw

    def look(self, now: int) -> None:
        self._left = AT_ONCE
        self._journal.called = self.saw

    def saw(self, kind: int) -> None:
        """Add the lines of user code that are on this thread's stack, on which a phase has just ended."""
        try:
            self._saw(PHASES.get(kind))
        except Exception:
            self._session.failed()

    def _saw(self, phase: str | None) -> None:
        if phase is None:
            return
        self._left -= 1
        if self._left <= 0 or len(self._lines) >= MOST_LINES:
            self._journal.called = None
        frame: Any = sys._getframe(2)
        for _ in range(MOST_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            if frame.f_lineno and self._owners.of(code.co_filename) == USER:
                key = phase, code.co_filename, frame.f_lineno
                if key not in self._lines and len(self._lines) < MOST_LINES:
                    self._lines[key] = getattr(code, "co_qualname", code.co_name)
            frame = frame.f_back

    def facts(self) -> dict[str, Any]:
        return {
            "callers": [
                # A path need not be text; JSON has to be.
                {
                    "phase": phase,
                    "file": file.encode(errors="replace").decode(),
                    "line": line,
                    "function": function[:LONGEST_NAME],
                }
                for (phase, file, line), function in self._lines.items()
                if len(file) <= LONGEST_FILE
            ]
        }
