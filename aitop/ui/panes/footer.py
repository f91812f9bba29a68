"""The footer line: keys and what watching costs, or the filter while the user types it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from textual import events
from textual.message import Message

from aitop.model.text import printable
from aitop.model.units import NOT_YET
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DIM, KEY, NOTICE, TEXT, clickable
from aitop.ui.widgets.line import Line, key_hints, key_words, shorten_left, spread
from aitop.ui.widgets.pane import Drawing, Pane

ROOM_FOR_COST = 50
ROOM_FOR_WORDS = 140
ROOM_FOR_REASON = 100
LEAST_COUNTED = 3.0
"""The cost is shown only after this many seconds, because starting costs more than watching."""
KEYS = (
    ("?", "help", "app.help"),
    ("q", "quit", "app.quit"),
    ("⏎", "why", "screen.why"),
    ("space", "pause", "screen.pause"),
    ("t", "tree", "screen.show_code('tree')"),
    ("T", "processes", "screen.processes"),
    ("/", "filter", "screen.filter"),
    ("z", "zoom", "screen.zoom"),
    ("d", "detach", "screen.detach"),
    ("p", "profile", "screen.profile"),
    ("tab", "pane", "screen.next_pane(1)"),
    ("f", "flame", "screen.show_code('flame')"),
    ("S", "stacks", "screen.stacks"),
    ("e", "edit", "screen.edit"),
)
KEY_WORDS_BY_PANE = {
    "processes": {"why": "narrow", "pause": "narrow, stay"},
    "code": {"why": "line"},
    "ranks": {"why": "enter"},
}
"""By focused pane: the words for keys that do something else there."""


class Footer(Pane, can_focus=False):
    """Keys at the left; at the right the newest notice or, without one, the cost."""

    framed = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        right = Line(view.notice, TEXT) if view.notice else cost_line(view, width) if width >= ROOM_FOR_COST else Line()
        focused = self.screen.focused.id if self.screen.focused is not None else None
        meant = KEY_WORDS_BY_PANE.get(focused or "", {})
        if focused == "code" and view.code == "flame":
            meant = {"why": "zoom in"}
        return Drawing([spread(_keys(view, width - right.width - 2, meant), right.add(" "), width)])


def cost_line(view: View, width: int) -> Line:
    """What watching costs: aitop's CPU (mean of half a minute), and the hook's time per step."""
    snapshot = view.snapshot
    cost = snapshot.cost if snapshot else None
    if snapshot is None or cost is None or cost.monitor_cpu is None or snapshot.window < LEAST_COUNTED:
        return Line(f"cost {NOT_YET}", DIM)
    core = " of a core" if width >= ROOM_FOR_WORDS else " core"
    line = Line("cost ", DIM).add(f"{cost.monitor_cpu * 100:4.1f} %", TEXT).add(core, DIM)
    if cost.hook_us_per_step is not None:
        unit = "forward" if snapshot.kind == "inference" else "step"
        line.add(" · ", DIM).add(f"{cost.hook_us_per_step:3.0f} µs/{unit}", TEXT)
        if cost.target_slowdown is not None and width >= ROOM_FOR_WORDS:
            line.add(f" {cost.target_slowdown * 100:5.2f} %", TEXT)
    if cost.seldom:
        line.add(" · no core idle: looks seldom" if width >= ROOM_FOR_REASON else " · seldom", DIM)
    return line


def _keys(view: View, room: int, meant: Mapping[str, str]) -> Line:
    line = Line(" ")
    keys = [key for key in KEYS if (key[0] != "d" or view.can_detach) and (key[0] != "p" or view.live)]
    if len(view.ranks()) > 1:
        keys[4:4] = [("1-9", "rank", ""), ("h", "hang", "screen.hang")]
    keys = [
        (key_words(key, view.appearance), meant.get(word, word), "" if word in meant else action)
        for key, word, action in keys
    ]
    for key, word, action in keys:
        is_on = (word == "pause" and view.paused) or word == view.code
        shown = {"pause": "go on", "tree": "lines", "flame": "lines"}.get(word, word) if is_on else word
        if line.width + len(key) + len(shown) + 3 > room:
            break
        style = clickable(KEY, action) if action else KEY
        plain = clickable(DIM, action) if action else DIM
        line.add(key, style).add(" " + shown, plain).add("  ")
    return line


LONGEST = 200
EDITS: dict[str, Callable[[str], str]] = {
    "backspace": lambda text: text[:-1],
    "ctrl+h": lambda text: text[:-1],
    "ctrl+u": lambda _: "",
    "ctrl+w": lambda text: text.rstrip().rpartition(" ")[0],
}
ENDS = ("enter", "tab", "escape")
WITHOUT_MEANING = ("up", "down", "left", "right", "home", "end", "pageup", "pagedown")


@dataclass
class Filtered(Message):
    """The filter text so far; `done` when the user has finished typing."""

    text: str
    done: bool = False


class FilterLine(Pane):
    """Takes every key while it has the focus. Each typed character filters at once; enter keeps the filter, escape
    clears it.
    """

    framed = False
    typed = ""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        hint = key_hints((("⏎", "keep"), ("esc", "drop"), ("!word", "without")), view.appearance)
        room = max(1, width - 12)
        line = Line(" filter ", BRIGHT).add("/", KEY).add(shorten_left(self.typed, room), TEXT).add(" ", NOTICE)
        return Drawing([spread(line, hint, width) if line.width + hint.width < width else line])

    def on_key(self, event: events.Key) -> None:
        typed = EDITS[event.key](self.typed) if event.key in EDITS else None
        if event.is_printable and event.character is not None:
            typed = self.typed + event.character
        if typed is None and event.key not in (*ENDS, *WITHOUT_MEANING):
            return
        event.stop()
        event.prevent_default()
        if event.key in ENDS:
            self.typed = "" if event.key == "escape" else self.typed
            self.post_message(Filtered(self.typed, done=True))
        elif typed is not None:
            self._change(typed)

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._change(self.typed + " ".join(event.text.split()))

    def on_blur(self) -> None:
        """Keep the filter as typed when the focus moves elsewhere."""
        self.post_message(Filtered(self.typed, done=True))

    def _change(self, text: str) -> None:
        self.typed = printable(text)[:LONGEST]
        self.post_message(Filtered(self.typed))
        self.redraw()
