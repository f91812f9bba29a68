"""The line in which the filter is typed, in the place of the footer."""

from __future__ import annotations

from textual import events
from textual.message import Message

from aitop.model.text import printable
from aitop.ui.line import Line, shorten_left, spread
from aitop.ui.palette import BRIGHT, DIM, KEY, NOTICE, TEXT
from aitop.ui.view import View
from aitop.ui.widgets.pane import Drawing, Pane

LONGEST = 200


class Filtered(Message):
    """What is typed so far; `done` when the user is through with it."""

    def __init__(self, text: str, *, done: bool = False) -> None:
        super().__init__()
        self.text = text
        self.done = done


class FilterLine(Pane):
    """Takes every key while it has the focus: text narrows at once, enter keeps it, escape drops it."""

    framed = False

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self.typed = ""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        hint = (
            Line("⏎", KEY)
            .add(" keep  ", DIM)
            .add("esc", KEY)
            .add(" drop  ", DIM)
            .add("!word", KEY)
            .add(" without ", DIM)
        )
        room = max(1, width - 12)
        line = Line(" filter ", BRIGHT).add("/", KEY).add(shorten_left(self.typed, room), TEXT).add(" ", NOTICE)
        return Drawing([spread(line, hint, width) if line.width + hint.width < width else line])

    def on_key(self, event: events.Key) -> None:
        if event.key in ("enter", "tab"):
            self._end(event, self.typed)
        elif event.key == "escape":
            self._end(event, "")
        elif event.key in ("backspace", "ctrl+h"):
            self._take(event, self.typed[:-1])
        elif event.key == "ctrl+u":
            self._take(event, "")
        elif event.key == "ctrl+w":
            self._take(event, self.typed.rstrip().rpartition(" ")[0])
        elif event.is_printable and event.character is not None:
            self._take(event, self.typed + event.character)
        elif event.key in ("up", "down", "left", "right", "home", "end", "pageup", "pagedown"):
            _mine(event)

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._change(self.typed + " ".join(event.text.split()))

    def on_blur(self) -> None:
        """Clicked away from: what was typed stays."""
        self.post_message(Filtered(self.typed, done=True))

    def _take(self, event: events.Key, text: str) -> None:
        _mine(event)
        self._change(text)

    def _change(self, text: str) -> None:
        self.typed = printable(text)[:LONGEST]
        self.post_message(Filtered(self.typed))
        self.redraw()

    def _end(self, event: events.Key, text: str) -> None:
        _mine(event)
        self.typed = text
        self.post_message(Filtered(text, done=True))


def _mine(event: events.Key) -> None:
    """The key is used up: no binding sees it."""
    event.stop()
    event.prevent_default()
