"""Runs one source in a thread of its own, so that its failures and its slowness stay its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from aitop.errors import own_error
from aitop.model.event import Event
from aitop.model.source import SourceState, SourceStatus, StatusCode
from aitop.sources.source import Source, SourceError, unexpected

FIRST_RETRY_SECONDS = 2.0
LAST_RETRY_SECONDS = 30.0
Result = TypeVar("Result")


class SourceRunner:
    """Opens, reads, retries and closes one source, and emits its samples and its state as events.

    `check` is to be called now and then by the owner: it turns a read that takes too long into the state `stale`.
    """

    def __init__(self, source: Source, emit: Callable[[Event], None]) -> None:
        self.source = source
        self._emit = emit
        self._stopping = threading.Event()
        self._busy_since: float | None = None
        self._state: SourceState | None = None
        self._reason: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"aitop-{source.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Ask the thread to stop after the present read, whose samples are still emitted."""
        self._stopping.set()
        self.source.finish()

    def ask_to_stop(self) -> None:
        self._stopping.set()
        self.source.interrupt()

    def join(self, timeout: float) -> bool:
        """Wait for the thread, which closes its source; False if it hangs in a call (it is a daemon)."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def check(self, now: float) -> None:
        busy_since = self._busy_since
        if busy_since is not None and now - busy_since > self.source.patience and self._state != "stale":
            self._set("stale", f"no answer for more than {self.source.patience:g} s")

    def _run(self) -> None:
        retry = FIRST_RETRY_SECONDS
        while not self._stopping.is_set():
            try:
                self._timed(self.source.open)
                while not self._stopping.is_set():
                    started = time.monotonic()
                    for sample in self._timed(self.source.read):
                        self._emit(sample)
                    self._set("ok", self.source.note)
                    retry = FIRST_RETRY_SECONDS
                    self._stopping.wait(max(0.0, started + self.source.interval - time.monotonic()))
            except Exception as error:  # a broken source must not take the others with it
                failure = error if isinstance(error, SourceError) else unexpected(error)
                self._set(failure.state, failure.reason, failure.remedy, failure.code)
                if failure.transient:
                    retry = FIRST_RETRY_SECONDS
            self._close()
            self._stopping.wait(retry)
            retry = min(retry * 2, LAST_RETRY_SECONDS)

    def _timed(self, call: Callable[[], Result]) -> Result:
        self._busy_since = time.monotonic()
        try:
            return call()
        finally:
            self._busy_since = None

    def _close(self) -> None:
        try:
            self.source.close()
        except Exception as error:
            self._set("failed", own_error(error))

    def _set(
        self, state: SourceState, reason: str | None, remedy: str | None = None, code: StatusCode | None = None
    ) -> None:
        if (state, reason) != (self._state, self._reason):
            self._state, self._reason = state, reason
            now, name = time.monotonic(), self.source.name
            self._emit(SourceStatus(time=now, source=name, state=state, reason=reason, remedy=remedy, code=code))
