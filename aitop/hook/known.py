"""Objects of the program that were met already, told by their ids for as long as they live, and not kept alive."""

from __future__ import annotations

import weakref
from typing import Any

MOST = 64


class Known(dict[int, Any]):
    """By id, what is known of each object."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, Any] = {}

    def add(self, thing: Any, value: Any = None) -> None:
        """Know `thing` from now on. Raises TypeError where its end could not be told."""
        key = id(thing)
        if len(self) >= MOST:
            self.forget_all()

        def died(_: Any) -> None:
            self._alive.pop(key, None)
            self.pop(key, None)

        self._alive[key] = weakref.ref(thing, died)
        self[key] = value

    def forget_all(self) -> None:
        self.clear()
        self._alive.clear()
