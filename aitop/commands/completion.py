"""Completion of the command line in bash, zsh and fish: a script made from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

OPTION = "--print-completion"
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--print-completion SHELL."""
    parser.add_argument(
        OPTION,
        action=PrintCompletion,
        choices=SHELLS,
        help="print the script that completes aitop's command line in this shell",
    )


class PrintCompletion(argparse.Action):
    """Prints the script and leaves with 0."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Print the script for the shell `values`. It completes paths with files, and names with those that exist."""
        import shtab

        names = _names()
        for action in _actions(parser):
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            action.choices = action.choices or names.get(action.metavar)
        print(shtab.complete(parser, shell=str(values)))
        parser.exit()


def _names() -> dict[str | tuple[str, ...] | None, tuple[str, ...]]:
    """The values of arguments that have no fixed choices, by metavar."""
    from aitop.commands import alert, demo, explain
    from aitop.diagnosis.catalogue import IDS

    return {demo.METAVAR: tuple(demo.workloads()), explain.METAVAR: IDS, alert.METAVAR: (alert.ANY, *IDS)}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of its verbs."""
    # argparse has no public way to list them; shtab itself reads the same attribute.
    for action in parser._actions:
        yield action
        for choice in action.choices.values() if isinstance(action.choices, dict) else ():
            if isinstance(choice, argparse.ArgumentParser):
                yield from _actions(choice)
