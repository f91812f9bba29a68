"""Sums up certain calls (count, time, bytes) by the line of user code that makes them.

Where there are many calls, only a random sample is added, scaled up. These tables have no lock: only the stepping
thread uses them, and autograd's own threads during its backward.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..facts import LONGEST_NAME

MOST_SITES = 128
MOST_FILES = 4096
MOST_FRAMES = 60
LOOKS_BETWEEN_TICKS = 64
LONGEST_FILE = 400
SHOWN = 16

NOBODYS, LIBRARY, USER = range(3)


class Sites:
    """The lines of user code that make one `kind` of calls (transfer, blocking, collective), with sums over them."""

    def __init__(self, kind: str, torch: Any) -> None:
        self._kind = kind
        self._owners = Owners(torch)
        self._sites: dict[tuple[str, str, int], _Site] = {}
        self._every = 1
        self._skip = 0
        self._calls = 0
        self._dice = 12345

    def add(self, name: str, length: int, size: int = -1, pageable: int = -1, counted: bool = True) -> None:
        """Add a call of `name` that took `length` nanoseconds to the line of user code that made it.

        It moved `size` bytes, `pageable` of them from memory that is not pinned; negative means not measured. With
        `counted` False only the time is added, because it belongs to a call that was counted already. Call this only
        if `wants_next` has just returned True.
        """
        frame = self._users_frame()
        if frame is None:
            return
        code = frame.f_code
        # Code that was generated at run time may have no line numbers.
        key = (name, code.co_filename, frame.f_lineno or 0)
        site = self._sites.get(key)
        if site is None:
            if len(self._sites) >= MOST_SITES:
                self._drop_cheapest()
            site = self._sites[key] = _Site(getattr(code, "co_qualname", code.co_name)[:LONGEST_NAME])
        times = self._every
        site.calls += times if counted else 0
        site.length += times * length
        if size >= 0:
            site.size += times * size
            site.sized = True
        if pageable >= 0:
            site.pageable += times * pageable
            site.pinning_known = True

    def wants_next(self) -> bool:
        """Return whether this call is to be added.

        Where there are many calls a random sample is taken, because calls repeat in patterns that a fixed stride could
        follow.
        """
        self._calls += 1
        if self._every == 1:
            return True
        self._skip -= 1
        if self._skip > 0:
            return False
        # A generator of our own: using `random` would change the program's random numbers.
        self._dice = (self._dice * 1103515245 + 12345) & 0x7FFFFFFF
        self._skip = 1 + (self._dice >> 8) % (2 * self._every - 1)
        return True

    def tick(self) -> None:
        """Set the sampling rate by the number of calls since the last tick. Called a few times a second."""
        self._every = max(1, self._calls // LOOKS_BETWEEN_TICKS)
        self._calls = 0

    def facts(self) -> list[dict[str, Any]]:
        """Return the sites that took the most time, as dicts with the fields of `CallSite` (model/steps.py)."""
        dearest = sorted(self._sites.items(), key=lambda item: -item[1].length)[:SHOWN]
        return [site.facts(self._kind, key) for key, site in dearest if len(key[1]) <= LONGEST_FILE]

    def _users_frame(self) -> Any:
        """Return the innermost frame of user code; without one, that of a library other than torch; else None."""
        frame: Any = sys._getframe(2)
        library = None
        for _ in range(MOST_FRAMES):
            if frame is None:
                break
            owner = self._owners.of(frame.f_code.co_filename)
            if owner == USER:
                return frame
            if owner == LIBRARY and library is None:
                library = frame
            frame = frame.f_back
        return library

    def _drop_cheapest(self) -> None:
        dearest = sorted(self._sites, key=lambda key: -self._sites[key].length)
        for key in dearest[MOST_SITES // 2 :]:
            del self._sites[key]


class Owners:
    """Tells whose code is in a file: nobody's (torch, the standard library, this hook), a library's or the user's."""

    def __init__(self, torch: Any) -> None:
        # The folder of the hook package, from the file name in our code object: an attached hook has no `__file__`.
        self._own = os.path.dirname(os.path.dirname(self.of.__code__.co_filename)) + os.sep
        self._torch = os.path.dirname(torch.__file__ or "") + os.sep
        # `sysconfig` knows this folder too, but importing it would hold up the target for most of a millisecond.
        standard = os.path.dirname(getattr(os, "__file__", None) or "")
        self._standard = (standard + os.sep,) if standard else ()
        self._known: dict[str, int] = {}

    def of(self, file: str) -> int:
        """Return NOBODYS, LIBRARY or USER."""
        owner = self._known.get(file)
        if owner is None:
            if len(self._known) >= MOST_FILES:
                self._known.clear()
            owner = self._known[file] = self._judge(file)
        return owner

    def _judge(self, file: str) -> int:
        if file.startswith(("<stdin>", "<console>", "<python-input-", "<ipython-input-")):
            return USER
        if file.startswith(("<", self._own, self._torch)) or "/torchinductor_" in file:
            return NOBODYS
        if "/site-packages/" in file or "/dist-packages/" in file:
            return LIBRARY
        return NOBODYS if file.startswith(self._standard) else USER


class _Site:
    """Sums over the calls of one line."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.calls = self.length = self.size = self.pageable = 0
        self.sized = self.pinning_known = False

    def facts(self, kind: str, key: tuple[str, str, int]) -> dict[str, Any]:
        name, file, line = key
        return {
            "kind": kind,
            "name": name,
            # A path need not be text; JSON has to be.
            "file": file.encode(errors="replace").decode(),
            "line": line,
            "function": self.function,
            "calls": self.calls,
            "seconds": round(self.length * 1e-9, 6),
            "bytes": self.size if self.sized else None,
            "pageable_bytes": self.pageable if self.pinning_known else None,
        }
