"""A burst of torch.profiler in the run that is watched, asked for with `p`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from aitop.ui.background import deliver, in_background
from aitop.ui.panes.header import Header
from aitop.ui.panes.profile import ProfilePane
from aitop.ui.saving import write_new
from aitop.ui.view import View
from aitop.ui.words import plural

if TYPE_CHECKING:
    from aitop.engine.burst import Taken

STEPS = 5


@runtime_checkable
class Profilable(Protocol):
    """A feed whose target can be profiled. Raises an error that says in words why not."""

    def profile(self, steps: int, progress: Callable[[str], None]) -> Taken: ...


class Profiling(Message):
    """How far the burst is: waiting or running."""

    def __init__(self, state: str) -> None:
        super().__init__()
        self.state = state


class Profiled(Message):
    """The burst is over."""

    def __init__(self, taken: Taken | None, error: BaseException | None = None) -> None:
        super().__init__()
        self.taken = taken
        self.error = error


class TraceWritten(Message):
    """The trace is in `file`, or `error` says why not."""

    def __init__(self, file: Path | None, error: BaseException | None = None) -> None:
        super().__init__()
        self.file = file
        self.error = error


class ProfileScreen(Screen[None]):
    """Runs one burst when it opens, and shows what it found."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "write", "write the Chrome trace to a file here"),
        Binding("escape,q,p", "dismiss", "back"),
    ]

    def __init__(self, feed: Profilable, view: View) -> None:
        super().__init__()
        self._feed = feed
        self._taken: Taken | None = None
        self.view = view

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield ProfilePane(id="profile")

    def on_mount(self) -> None:
        pane = self.query_one(ProfilePane)
        pane.doing = "asking the run for a profile…"
        self._show()
        pane.focus()

        def work() -> Message:
            try:
                return Profiled(self._feed.profile(STEPS, lambda state: deliver(self, Profiling(state))))
            except Exception as error:
                return Profiled(None, error)

        in_background(self, "profile", work)

    def on_profiling(self, message: Profiling) -> None:
        steps = plural(STEPS, "step")
        doing = {"running": f"torch.profiler is on for {steps}…", "waiting": "waiting for the next step to begin…"}
        self.query_one(ProfilePane).doing = doing.get(message.state, message.state)
        self._show()

    def on_profiled(self, message: Profiled) -> None:
        pane = self.query_one(ProfilePane)
        self._taken = message.taken
        if message.taken is None:
            pane.problem = str(message.error)
        else:
            pane.profile = message.taken.profile
        self._show()

    def on_trace_written(self, message: TraceWritten) -> None:
        where = f"trace written to {message.file}" if message.file else f"trace not written: {message.error}"
        self.query_one(ProfilePane).written = where
        self._show()

    def action_write(self) -> None:
        taken = self._taken
        if taken is None:
            return

        def work() -> Message:
            try:
                written = write_new(Path.cwd(), f"aitop-{taken.profile.pid}", {".trace.json": taken.trace})
                return TraceWritten(written[0])
            except OSError as error:
                return TraceWritten(None, error)

        in_background(self, "trace", work)

    def _show(self) -> None:
        self.query_one(Header).show(self.view)
        self.query_one(ProfilePane).show(self.view)
