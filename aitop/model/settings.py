"""The user's settings. Every field has a default; `commands.config` says what each one means."""

from __future__ import annotations

import msgspec

THEME_NAMES = ("dark", "light", "colour-blind", "16-colour", "monochrome")
FOLDABLE = ("verdict", "step", "serving", "gpu", "data", "memory", "ranks", "code", "processes")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Which sources to watch with, and the seconds between two looks (`interval`).

    `passive` never touches the target: no hook, stacks or metrics. `gpu`, `stacks`, `hook` and `metrics` (a server's
    own) are the sources to use. `history` leaves a summary of each run in the state folder, and compares with the last.
    """

    interval: float = 1.0
    passive: bool = False
    gpu: bool = True
    stacks: bool = True
    hook: bool = True
    metrics: bool = True
    history: bool = False


class Settings(Options, frozen=True, kw_only=True):
    """`theme` is one of THEME_NAMES, None for what suits the terminal; `ascii` None likewise.

    `folded` panes are not on the main screen until they are unfolded. `editor` is a command, None for the one that the
    environment names. `prometheus` is the URL of the server that knows the cluster, maybe with a password.
    """

    history: bool = True
    theme: str | None = None
    ascii: bool | None = None
    folded: tuple[str, ...] = ()
    editor: str | None = None
    prometheus: str | None = None
