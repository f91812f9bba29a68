"""Ways into several processes at once: each in a thread of its own, a few at a time, so that none holds up another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from aitop.sources.source import SourceError, unexpected

AT_ONCE = 4
LOOK_SECONDS = 0.01

Found = TypeVar("Found")


class _Entry(Generic[Found]):
    """One call on its way: `found` or `error` once it is `done`."""

    def __init__(self, call: Callable[[int], Found], pid: int) -> None:
        self.found: Found | None = None
        self.error: SourceError | None = None
        self._thread = threading.Thread(target=self._run, args=(call, pid), name=f"aitop-hook-{pid}", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def _run(self, call: Callable[[int], Found], pid: int) -> None:
        try:
            self.found = call(pid)
        except SourceError as error:
            self.error = error
        except Exception as error:  # what fails in one process is no reason to leave the others
            self.error = unexpected(error)


class Entries(Generic[Found]):
    """Calls `enter` for processes, `AT_ONCE` at most at a time. All methods belong to one thread."""

    def __init__(self, enter: Callable[[int], Found]) -> None:
        self._enter = enter
        self._under_way: dict[int, _Entry[Found]] = {}

    def ask(self, pids: Iterable[int]) -> None:
        """Set out for these, as far as there is room; one that is under way is not begun again."""
        for pid in pids:
            if len(self._under_way) >= AT_ONCE:
                return
            if pid not in self._under_way:
                self._under_way[pid] = _Entry(self._enter, pid)

    def under_way(self) -> bool:
        """Whether any call has not been collected yet."""
        return bool(self._under_way)

    def collect(self, patience: float) -> list[tuple[int, Found | SourceError]]:
        """What has come of the calls that are done: waits for the first that ends, `patience` seconds at most."""
        deadline = time.monotonic() + patience
        while True:
            done = [pid for pid, entry in self._under_way.items() if entry.done]
            if done or not self._under_way or time.monotonic() >= deadline:
                break
            time.sleep(LOOK_SECONDS)
        results: list[tuple[int, Found | SourceError]] = []
        for pid in done:
            entry = self._under_way.pop(pid)
            if entry.error is not None:
                results.append((pid, entry.error))
            elif entry.found is not None:
                results.append((pid, entry.found))
        return results
