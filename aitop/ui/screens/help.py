"""The help screen, made from the key bindings themselves, so that it cannot be wrong about a key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.keys import format_key
from textual.screen import ModalScreen, Screen

from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DIM, PHASES, RAISED, TEXT
from aitop.ui.widgets.line import Line, hanging, key_words
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import SOURCE_STATES

INDENT = 11
FUNCTION_KEY = re.compile(r"f\d+")
WIDTH = 76


class HelpPane(Pane):
    """Lists the keys, then explains signs and colours."""

    ground = RAISED

    def __init__(self, bindings: Iterable[Binding]) -> None:
        super().__init__(id="help")
        self._keys = described(bindings)

    def draw(self, view: View, width: int, height: int) -> Drawing:
        spelled = partial(key_words, appearance=view.appearance)
        lines = [
            Line(f"{spelled(keys)} ".ljust(INDENT), BRIGHT).add(spelled(binding.description), TEXT)
            for keys, binding in self._keys
        ]
        lines.append(Line())
        sources = Line("sources".ljust(INDENT), DIM)
        for glyph, style, meaning in SOURCE_STATES.values():
            sources.add(f"{glyph} {meaning}   ", style)
        phases = Line("phases".ljust(INDENT), DIM)
        for phase in PHASES:
            phases.add(f"{phase.letter if view.appearance.mono else '■'} {phase.name}   ", phase.ink)
        marks = "– not supported or not measured   … not yet   dimmed: old"
        cost = "CPU of aitop and the programs it starts, mean of 30 s, in % of one core; the hook's time in a step"
        lines += [sources, phases, Line("values".ljust(INDENT), DIM).add(marks, DIM)]
        lines.append(Line("cost".ljust(INDENT), DIM).add(cost, DIM))
        return Drawing([part for line in lines for part in _wrapped(line, width)], "Help")


class HelpScreen(ModalScreen[None]):
    """Shows the keys of a screen on top of that screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter,space,f1,f10", "dismiss", "close")]

    def __init__(self, bindings: Iterable[Binding], view: View) -> None:
        super().__init__()
        self._pane = HelpPane(bindings)
        self._pane.view = view

    def compose(self) -> ComposeResult:
        yield self._pane

    def on_mount(self) -> None:
        self._pane.styles.height = len(self._pane.draw(self._pane.view, WIDTH - 4, 0).lines) + 2
        self._pane.focus()


def our_bindings(screen: Screen[Any]) -> list[Binding]:
    """The bindings of a screen, then those of the app, without Textual's own.

    A key that a subclass binds again is not listed for its base class.
    """
    kinds = [kind for kind in (*type(screen).__mro__, *type(screen.app).__mro__) if kind.__module__.startswith("aitop")]
    listed: list[Binding] = []
    taken: set[str] = set()
    for kind in kinds:
        own = [binding for binding in vars(kind).get("BINDINGS", ()) if isinstance(binding, Binding)]
        listed += [binding for binding in own if binding.description and binding.key not in taken]
        taken.update(key.strip() for binding in own for key in binding.key.split(","))
    return listed


def key_name(key: str) -> str:
    """A key in the usual notation: "^p" for ctrl+p, "F1" for f1."""
    *modifiers, name = key.split("+")
    shown = name.upper() if FUNCTION_KEY.fullmatch(name) else format_key(name)
    return "".join("^" if modifier == "ctrl" else f"{modifier}+" for modifier in modifiers) + shown


def described(bindings: Iterable[Binding]) -> list[tuple[str, Binding]]:
    """For each description, all its keys in the usual notation ("1-9" for digits), and its first binding."""
    same: dict[str, list[Binding]] = {}
    for binding in bindings:
        same.setdefault(binding.description, []).append(binding)
    rows = []
    for group in same.values():
        names = [key_name(key.strip()) for binding in group for key in binding.key.split(",")]
        digits = len(names) > 2 and all(len(name) == 1 and name.isdigit() for name in names)
        rows.append((f"{names[0]}-{names[-1]}" if digits else " ".join(names), group[0]))
    return rows


def _wrapped(line: Line, width: int) -> list[Line]:
    """A line broken to `width`: between its pieces, or at spaces if it is only a head and a text."""
    if line.width <= width:
        return [line]
    if len(line.spans) == 2:
        (head, head_style), (text, style) = line.spans
        return hanging(Line(head, head_style), text, width, style)
    rows, current = [], Line()
    for text, style in line.spans:
        if current.width + len(text) > width and current.width:
            rows.append(current)
            current = Line(" " * INDENT)
        current.add(text, style)
    return [*rows, current]
