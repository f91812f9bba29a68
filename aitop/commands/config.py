"""Say what is set, and in which file. The file is TOML; without one everything is as --show prints it."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from aitop.commands.options import SWITCHES, interval, prometheus
from aitop.errors import WrongUsageError
from aitop.model.settings import FOLDABLE, THEME_NAMES, Settings
from aitop.sources.prometheus.address import EXAMPLE, without_password

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_FILE = 1_000_000


class Key(NamedTuple):
    """One setting: what it is for, what its value must be, and the function that takes it from the file.

    `take` returns None for a wrong value. `none` is what the file has for a setting that is None, if that is allowed.
    """

    words: str
    must_be: str
    take: Callable[[Any], Any]
    none: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--show or --path."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--show", action="store_true", help="print all settings as they are, as a file that can be edited (default)"
    )
    what.add_argument("--path", action="store_true", help="print where the file is, or would be")


def run(args: argparse.Namespace) -> int:
    """Print the path of the settings file (`--path`), or all settings with their values."""
    if args.path:
        print(path())
        return 0
    try:
        file = path()
    except WrongUsageError:  # no home is known: the settings are those without a file
        file = None
    print(as_toml(read(file), file), end="")
    return 0


def path() -> Path:
    """Where the settings are looked for: $XDG_CONFIG_HOME/aitop/config.toml, by default under ~/.config.

    Raises WrongUsageError where no home is known.
    """
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
    except RuntimeError:  # no HOME, and a user without an entry, as in many containers
        raise WrongUsageError("no home is known for this user: set HOME or XDG_CONFIG_HOME") from None
    return folder / "aitop" / "config.toml"


def read(file: Path | None = None) -> Settings:
    """The settings in the file; defaults where there is none. Raises WrongUsageError that names file, line and key."""
    if file is None:
        try:
            file = path()
        except WrongUsageError:
            return Settings()
    try:
        with file.open("rb") as opened:
            text = opened.read(LARGEST_FILE).decode()
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except OSError as error:
        if not os.path.lexists(file):
            # The home is another user's, and it cannot be seen whether it has settings.
            return Settings()
        raise WrongUsageError(f"cannot read the settings in {file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise WrongUsageError(f"{file}, line {line}: not UTF-8") from None
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise WrongUsageError(_not_toml(file, text, str(error))) from None
    taken = {}
    for name, value in values.items():
        key, where = KEYS.get(name), f"{file}, line {_line_of(text, name)}"
        if key is None:
            raise WrongUsageError(f"{where}: there is no setting {name!r}, only {', '.join(KEYS)}")
        if key.none is None or value != key.none:
            taken[name] = key.take(value)
            if taken[name] is None:
                raise WrongUsageError(f"{where}: {name} must be {key.must_be}")
    return Settings(**taken)


def as_toml(settings: Settings, file: Path | None = None) -> str:
    """All settings as TOML, each below a comment that says what it is for. `file` is where aitop looks for them."""
    lines = [
        f"# Settings of aitop{f', looked for in {file}' if file else ''}. Options on the command line override them."
    ]
    for name, key in KEYS.items():
        value = getattr(settings, name)
        written = f"{value:.10g}s" if name == "interval" else key.none if value is None else value
        if name == "prometheus":
            written = without_password(str(written))
        # Values of these types are written alike in JSON and TOML.
        lines += ["", *(f"# {line}" for line in key.words.splitlines())]
        lines.append(f"{name} = {json.dumps(written, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _not_toml(file: Path, text: str, words: str) -> str:
    at = re.search(r"\(at line (\d+), column \d+\)", words)
    line = at.group(1) if at else str(text.count("\n") + 1)
    reason = words.partition(" (at ")[0]
    return f"{file}, line {line}: not TOML: {reason[:1].lower()}{reason[1:]}"


def _line_of(text: str, name: str) -> int:
    """The number of the line on which a key or table of this name begins; 1 where it is written in another way."""
    start = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(name)}[\"']?\s*[=.\]]")
    return next((number for number, line in enumerate(text.splitlines(), 1) if start.match(line)), 1)


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _theme(value: Any) -> str | None:
    return value if value in THEME_NAMES else None


def _interval(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else interval(str(value))
    except argparse.ArgumentTypeError:
        return None


def _panes(value: Any) -> tuple[str, ...] | None:
    return tuple(value) if isinstance(value, list) and all(name in FOLDABLE for name in value) else None


def _prometheus(value: Any) -> str | None:
    try:
        prometheus(value if isinstance(value, str) else "")
    except argparse.ArgumentTypeError:
        return None
    return str(value)


def _command(value: Any) -> str | None:
    return value.strip() if isinstance(value, str) and value.isprintable() else None


KEYS = {
    "theme": Key(
        f"Colours: {', '.join(THEME_NAMES)}; or auto: what suits the terminal\n(TERM, COLORTERM, NO_COLOR). --theme",
        f"one of auto, {', '.join(THEME_NAMES)}",
        _theme,
        "auto",
    ),
    "ascii": Key(
        "Draw with ASCII characters only; auto: where the locale is not UTF-8. --ascii, --no-ascii",
        'true, false or "auto"',
        _flag,
        "auto",
    ),
    "folded": Key(
        f"Panes that are folded to their titles at the start: {', '.join(FOLDABLE)}.",
        f"a list of some of {', '.join(FOLDABLE)}",
        _panes,
    ),
    "editor": Key(
        "The command that opens a line of source; empty: $VISUAL or $EDITOR.",
        'a command, such as "vim" or "code --wait"',
        _command,
        "",
    ),
    "prometheus": Key(
        "The Prometheus server that `aitop fleet` and the key E ask, as http://HOST:9090; NAME:PASSWORD@ may stand\n"
        "before the host (what is printed here has no password). --prometheus",
        f"a URL such as {EXAMPLE}",
        _prometheus,
        "",
    ),
    "interval": Key("Time between two looks. --interval", 'a time of at least 0.1 s, such as "1s" or 0.5', _interval),
} | {
    name: Key(f"{words[0].upper()}{words[1:]}. --{name}, --no-{name}", "true or false", _flag)
    for name, words in SWITCHES.items()
}
