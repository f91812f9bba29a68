"""The comparison of two runs as a page: the answer, tables of what changed, and flame graphs coloured by change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aitop.diagnosis.comparison_words import headline, legend, parts_of, rows, settings_of, side_words, verdicts_of
from aitop.model.run import ChangedNode, RunComparison
from aitop.outputs.html.charts import Charts, Drawn
from aitop.outputs.html.page import rendered


def comparison_html(compared: RunComparison) -> str:
    """The page of a comparison."""
    tables = [(title, made) for title, parts in parts_of(compared).items() if (made := rows(title, parts))]
    return rendered(
        "comparison",
        Charts(flames=tuple(_flames(compared))),
        compared=compared,
        answer=headline(compared.change, compared.after.unit or "unit"),
        sides=[(name, side_words(side)) for name, side in (("before", compared.before), ("after", compared.after))],
        tables=tables,
        legend=legend(made for _, made in tables),
        verdicts=verdicts_of(compared),
        settings=settings_of(compared),
    )


def _flames(compared: RunComparison) -> Iterator[Drawn]:
    """Two flame graphs per role, one of each run, the longer one first."""
    for role, tree in compared.stacks.items():
        for after in sorted((False, True), reverse=tree.after_ms > tree.before_ms):
            yield {"name": f"{role} · {'after' if after else 'before'}", "root": _node(tree, after=after)}


def _node(node: ChangedNode, *, after: bool) -> list[Any]:
    """[function, place, whose code, milliseconds, children, ms before, ms after, whether they differ beyond chance]."""
    children = [_node(child, after=after) for child in node.children if (child.after_ms if after else child.before_ms)]
    width = node.after_ms if after else node.before_ms
    return [node.function, node.place, node.whose, width, children, node.before_ms, node.after_ms, node.sure]
