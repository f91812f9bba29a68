"""The settings file: where it is, what it may say, and how what it says is read and written."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from aitop.commands.options import interval
from aitop.errors import WrongUsageError
from aitop.model.settings import FOLDABLE, THEME_NAMES, Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_FILE = 1_000_000


class Key(NamedTuple):
    """One setting: what it is for, how its value in the file is taken (ValueError says what it must be), and back."""

    name: str
    words: str
    take: Callable[[Any], Any]
    give: Callable[[Any], str]


def path() -> Path:
    """Where the settings are looked for: $XDG_CONFIG_HOME/aitop/config.toml, by default under ~/.config.

    Raises WrongUsageError where nobody knows a home.
    """
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    except RuntimeError:  # no HOME, and a user without an entry, as in many containers
        raise WrongUsageError("no home is known for this user: set HOME or XDG_CONFIG_HOME") from None
    return folder / "aitop" / "config.toml"


def read(file: Path | None = None) -> Settings:
    """What the file says; defaults where there is none. Raises WrongUsageError: file, line and key in a sentence."""
    if file is None:
        try:
            file = path()
        except WrongUsageError:
            return Settings()
    try:
        text = file.read_bytes()[:LARGEST_FILE].decode()
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except OSError as error:
        if not os.path.lexists(file):
            # A home that is another user's: whether there are settings in it is not ours to know.
            return Settings()
        raise WrongUsageError(f"cannot read the settings in {file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise WrongUsageError(f"{file}, line {line}: not UTF-8") from None
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise WrongUsageError(_not_toml(file, text, str(error))) from None
    taken = {}
    for name, value in found.items():
        key = KEYS.get(name)
        if key is None:
            known = ", ".join(KEYS)
            raise WrongUsageError(f"{file}, line {_line_of(text, name)}: there is no setting {name!r}, only {known}")
        try:
            taken[name] = key.take(value)
        except ValueError as error:
            raise WrongUsageError(f"{file}, line {_line_of(text, name)}: {name} must be {error}") from None
    return Settings(**taken)


def as_toml(settings: Settings, file: Path | None = None) -> str:
    """All settings as a file that says the same, each under what it is for; `file` is where they belong."""
    lines = [
        f"# Settings of aitop{f', read from {file}' if file else ''}. What the command line says goes before them."
    ]
    for key in KEYS.values():
        lines += ["", *(f"# {line}" for line in key.words.splitlines())]
        lines.append(f"{key.name} = {key.give(getattr(settings, key.name))}")
    return "\n".join(lines) + "\n"


def _not_toml(file: Path, text: str, words: str) -> str:
    at = re.search(r"\(at line (\d+), column \d+\)", words)
    line = at.group(1) if at else str(text.count("\n") + 1)
    reason = words.partition(" (at ")[0]
    return f"{file}, line {line}: not TOML: {reason[:1].lower()}{reason[1:]}"


def _line_of(text: str, name: str) -> int:
    """The line on which a key or a table of this name begins; the first where it is written in another way."""
    start = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(name)}[\"']?\s*[=.\]]")
    return next((number for number, line in enumerate(text.splitlines(), 1) if start.match(line)), 1)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _flag_or_auto(value: Any) -> bool | None:
    if value == "auto":
        return None
    if not isinstance(value, bool):
        raise ValueError('true, false or "auto"')
    return value


def _theme(value: Any) -> str | None:
    if value not in ("auto", *THEME_NAMES):
        raise ValueError(f"one of auto, {', '.join(THEME_NAMES)}")
    return None if value == "auto" else str(value)


def _interval(value: Any) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError
        return interval(str(value))
    except Exception:
        raise ValueError('a time of at least 0.1 s, such as "1s" or 0.5') from None


def _panes(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or any(one not in FOLDABLE for one in value):
        raise ValueError(f"a list of some of {', '.join(FOLDABLE)}")
    return tuple(value)


def _command(value: Any) -> str | None:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError('a command, such as "vim" or "code --wait"')
    return value.strip() or None


def _text(value: str | None, default: str) -> str:
    escaped = (value or default).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _word(value: bool) -> str:
    return "true" if value else "false"


KEYS = {
    key.name: key
    for key in (
        Key(
            "theme",
            f"Colours: {', '.join(THEME_NAMES)}; or auto: what suits the terminal\n"
            "(TERM, COLORTERM, NO_COLOR). --theme",
            _theme,
            lambda value: _text(value, "auto"),
        ),
        Key(
            "ascii",
            "Draw with ASCII characters only; auto: where the locale is not UTF-8. --ascii, --no-ascii",
            _flag_or_auto,
            lambda value: '"auto"' if value is None else _word(value),
        ),
        Key(
            "folded",
            f"Panes that are folded to their titles at the start: {', '.join(FOLDABLE)}.",
            _panes,
            lambda value: "[" + ", ".join(_text(one, "") for one in value) + "]",
        ),
        Key(
            "editor",
            "The command that opens a line of source; empty: $VISUAL or $EDITOR.",
            _command,
            lambda value: _text(value, ""),
        ),
        Key("interval", "Time between two looks. --interval", _interval, lambda value: f'"{value:.10g}s"'),
        Key(
            "passive",
            "Never touch the process: no hook, no stack sampling. --passive, --no-passive",
            _flag,
            _word,
        ),
        Key("gpu", "Ask NVML about GPUs. --gpu, --no-gpu", _flag, _word),
        Key("stacks", "Sample Python stacks. --stacks, --no-stacks", _flag, _word),
        Key("hook", "Put the step hook into the process. --hook, --no-hook", _flag, _word),
    )
}
