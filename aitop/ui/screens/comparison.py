"""The comparison of this run with the last one of the same script: the change, its causes, and a flame of stacks."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace
from textual.binding import Binding, BindingType

from aitop.diagnosis.comparison_words import comparison_text
from aitop.model.run import ChangedNode
from aitop.ui.panes.code.call_tree import Node, TreePath
from aitop.ui.panes.code.flame import legend
from aitop.ui.panes.code.pane import CodePane
from aitop.ui.panes.since_mark import OUTCOMES
from aitop.ui.screens.headed import HeadedScreen
from aitop.ui.state import View
from aitop.ui.theme.palette import DIM, TEXT, Kind
from aitop.ui.widgets.line import Line, hanging
from aitop.ui.widgets.pane import Drawing, Pane

GREW = Kind("grew", "takes longer", "+", "loss")
SHRANK = Kind("shrank", "takes less", "-", "gain")
EVEN = Kind("even", "within chance", "=", "trough")
# From this height in rows on, both panes are shown.
BOTH = 44


class ComparisonPane(Pane):
    """The comparison as `aitop compare` prints it."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if view.compared is None:
            return Drawing()
        first, *others = comparison_text(view.compared).splitlines()
        lines = [Line(first, OUTCOMES[view.compared.change.verdict])]
        for text in others:
            indent = Line(" " * (len(text) - len(text.lstrip())))
            lines += [Line(text, TEXT)] if Line(text).width <= width else hanging(indent, text.lstrip(), width, TEXT)
        note = Line("f stacks · ↑↓ scroll · esc back", DIM)
        return Drawing(lines, f"Compared with {view.compared.before.file}", note)


class ChangesPane(CodePane):
    """The stacks of both runs in one flame, coloured by change. The width of a cell is the sum of its times in both."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        trees = view.compared.stacks if view.compared is not None else {}
        nodes = [changed_node(tree, (), role) for role, tree in trees.items()]
        lines, foot = self._flame(nodes, view, width, height)
        lines = lines or [Line("one of the runs has no stacks to compare", DIM)]
        return Drawing(lines, "Stacks of both, by change · f words", legend((GREW, SHRANK, EVEN)), foot=foot)

    def action_look(self) -> None:
        """Do nothing: a node of two runs is no line of one of them. The screen would take the key and close."""


def changed_node(tree: ChangedNode, above: TreePath, name: str = "") -> Node:
    """The node for the flame view; a chain of library functions that each call only one other becomes one node."""
    last, frames = tree, 1
    while last.whose not in ("", "user") and len(last.children) == 1 and last.children[0].whose != "user":
        last, frames = last.children[0], frames + 1
    file, _, line = tree.place.rpartition(":")
    path = (*above, (name or tree.function, file))
    children = tuple(changed_node(child, path) for child in last.children)
    both = tree.before_ms + tree.after_ms
    return Node(
        path, name or tree.function, file, int(line or 0), round(both * 1e3), 1.0, "user", tree.whose == "user",
        children, frames, last.function if frames > 1 else "", times=(tree.before_ms, tree.after_ms),
        change=EVEN if not tree.sure else GREW if tree.after_ms > tree.before_ms else SHRANK,
    )  # fmt: skip


class ComparisonScreen(HeadedScreen):
    """Shows the comparison, as it is when the screen opens: text and stacks or, in a low terminal, one of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,b,backspace", "dismiss", "back"),
        Binding("f", "switch", "words or stacks"),
    ]

    def __init__(self, view: View) -> None:
        self.words, self.stacks = ComparisonPane(id="comparison"), ChangesPane(id="changes")
        super().__init__(view, self.words, self.stacks)
        self._stacks_chosen = False

    def take(self, view: View) -> None:
        super().take(replace(view, compared=self.view.compared))

    def action_switch(self) -> None:
        """Switch between the text and the stacks."""
        self._stacks_chosen = not self._stacks_chosen
        self.show()

    def show(self) -> None:
        both = self.size.height >= BOTH
        self.words.display, self.stacks.display = both or not self._stacks_chosen, both or self._stacks_chosen
        self.stacks.styles.height = "40%" if both else "1fr"
        (self.stacks if self._stacks_chosen else self.words).focus()
        # The panes get their size, and draw themselves, in the next layout.
        super().show()
