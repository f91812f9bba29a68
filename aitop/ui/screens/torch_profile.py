"""The profile screen (key `p`): runs torch.profiler for a few steps in the watched process and shows the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from textual.binding import Binding, BindingType

from aitop.engine.feed import LazyFeed
from aitop.model.profile import Profile
from aitop.model.units import count, duration, percent, plural, size
from aitop.ui.messages import deliver, in_background
from aitop.ui.saving import write_new
from aitop.ui.screens.headed import HeadedScreen
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DEVICE_CHART, DIM, GAIN, HOST_CHART, STATE_FAILED, TEXT, TITLE, TROUGH
from aitop.ui.widgets.line import Line, columns, wrap, wrapped
from aitop.ui.widgets.pane import Drawing, Pane

if TYPE_CHECKING:
    from aitop.engine.torch_profile import TakenProfile


BAR = 24
NUMBER = 9
LEAST_NAME = 16


class ProfilePane(Pane):
    """Shows a profile. `profile` is None until it is there: `doing` then says what happens, `problem` why it failed.

    `written` says where the trace was written or, if `write_failed`, why it was not; None before that.
    """

    profile: Profile | None = None
    doing = ""
    problem: str | None = None
    written: str | None = None
    write_failed = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        profile = self.profile
        if profile is None or self.problem is not None:
            texts = [self.doing] if self.problem is None else wrap(self.problem, width)
            lines = [Line(text, STATE_FAILED if self.problem and not row else TEXT) for row, text in enumerate(texts)]
            return Drawing(lines, "Profile", Line("esc back", DIM))
        ink = STATE_FAILED if self.write_failed else GAIN
        lines = wrapped(self.written, width, ink) if self.written else []
        lines += [*_head(profile, width), Line(), *_classes(profile, width)]
        lines += [Line(), *_operators(profile, width)]
        if profile.kernels:
            lines += [Line(), *_kernels(profile, width)]
        return Drawing(lines, f"Profile of {profile.pid}", Line("w write trace · ↑↓ scroll · esc back", DIM))


def _head(profile: Profile, width: int) -> list[Line]:
    each = duration(profile.seconds / profile.steps) if profile.steps else "–"
    timed = f" in {duration(profile.seconds)}, {each} each with the profiler on"
    lines = [Line(plural(profile.steps, "step"), BRIGHT).add(timed, TEXT)]
    held = f"the run was held for {duration(profile.holds.total)} by this profile; {count(profile.events)} events"
    lines += wrapped(held, width, DIM)
    if profile.peak_memory is not None:
        lines.append(Line("peak memory allocated ", DIM).add(size(profile.peak_memory), TEXT))
    for use in profile.devices:
        total = use.busy + use.idle
        line = Line(f"device {use.device} idle ", DIM).add(percent(use.idle / total) if total else "–", BRIGHT)
        line.add(f" in {count(use.gaps)} gaps, the longest {duration(use.longest_gap)}", TEXT)
        if use.launch_delay is not None:
            line.add(f"; launch to kernel {duration(use.launch_delay)}", DIM)
        lines.append(line)
    return lines


def _classes(profile: Profile, width: int) -> list[Line]:
    ink = DEVICE_CHART if profile.kernels else HOST_CHART
    lines = [Line(f"{'device' if profile.kernels else 'host'} time by kind", TITLE)]
    for row in profile.classes:
        full = round(row.share * BAR)
        bar = Line("█" * full, ink).add("·" * (BAR - full), TROUGH)
        cells = [(Line(row.kind, TEXT), 14), (bar, BAR), (Line(percent(row.share).rjust(5), BRIGHT), 5)]
        lines.append(columns([*cells, (Line(duration(row.seconds).rjust(NUMBER), DIM), NUMBER)]).fit(width))
    return lines


def _operators(profile: Profile, width: int) -> list[Line]:
    device = any(row.device is not None for row in profile.ops)
    memory = any(row.allocated is not None for row in profile.ops)
    titles = ["calls", "host", "own", *(["device"] if device else []), *(["allocated"] if memory else [])]
    fit = max(1, min(len(titles), (width - LEAST_NAME) // (NUMBER + 1)))
    titles = titles[-fit:] if width < 60 else titles[:fit]
    lines = [_row(Line("operator", TITLE), [(title, DIM) for title in titles], width)]
    for op in profile.ops:
        figures = {
            "calls": (count(op.calls), DIM),
            "host": (duration(op.host), DIM),
            "own": (duration(op.self_host), BRIGHT),
            "device": (duration(op.device), BRIGHT),
            "allocated": (size(op.allocated), DIM),
        }
        lines.append(_row(Line(op.name), [figures[title] for title in titles], width))
    return lines


def _kernels(profile: Profile, width: int) -> list[Line]:
    lines = [_row(Line("kernel", TITLE), [("calls", DIM), ("device", DIM)], width)]
    for kernel in profile.kernels:
        figures = [(count(kernel.calls), DIM), (duration(kernel.device), BRIGHT)]
        lines.append(_row(Line(kernel.name), figures, width))
    return lines


def _row(name: Line, figures: list[tuple[str, Style]], width: int) -> Line:
    line = name.fit(width - len(figures) * (NUMBER + 1) - 1).add(" ")
    for text, style in figures:
        line.add(f" {text:>{NUMBER}}", style)
    return line


STEPS = 5


class ProfileScreen(HeadedScreen):
    """Profiles STEPS steps when it opens first, and shows the result.

    The run cannot be kept from a profile that it was asked for, so the screen stays installed until it is left with the
    result on it: opened again, it shows the same profile.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "write", "write the Chrome trace to a file here"),
        Binding("escape,q,p", "back", "back; a profile under way goes on, and p comes back to it"),
    ]

    def __init__(self, feed: LazyFeed, view: View) -> None:
        self.pane = ProfilePane(id="profile")
        super().__init__(view, self.pane)
        self._feed = feed
        self._taken: TakenProfile | None = None

    def take(self, view: View) -> None:
        super().take(view)
        if self.is_mounted:
            self.show()

    def on_mount(self) -> None:
        self.pane.doing = "asking the run for a profile…"
        self.pane.focus()

        def progress(state: str) -> None:
            deliver(self.call_later, self._under_way, state)

        in_background(self, "profile", lambda: self._feed.made().profile(STEPS, progress), self._profiled)

    def _under_way(self, state: str) -> None:
        steps = plural(STEPS, "step")
        doing = {"running": f"torch.profiler is on for {steps}…", "waiting": "waiting for the next step to begin…"}
        self.pane.doing = doing.get(state, state)
        self.show()

    def _profiled(self, answer: TakenProfile | Exception) -> None:
        if isinstance(answer, Exception):
            self.pane.problem = str(answer)
        else:
            self._taken, self.pane.profile = answer, answer.profile
        self.show()

    def action_back(self) -> None:
        self.dismiss()
        if self._taken is not None or self.pane.problem is not None:
            self.app.uninstall_screen(self)

    def action_write(self) -> None:
        if self._taken is not None:
            trace = {".trace.json": self._taken.trace}
            name = f"aitop-{self._taken.profile.pid}"
            in_background(self, "trace", lambda: write_new(Path.cwd(), name, trace), self._written)

    def _written(self, answer: list[Path] | Exception) -> None:
        self.pane.write_failed = isinstance(answer, Exception)
        where = f"not written: {answer}" if isinstance(answer, Exception) else f"written to {answer[0]}"
        self.pane.written = f"trace {where}"
        self.show()
