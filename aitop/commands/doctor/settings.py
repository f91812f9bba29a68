"""The settings file: the other verbs refuse to start where it is at fault."""

from __future__ import annotations

from aitop.commands.doctor.check import Check, fault, not_needed, works
from aitop.commands.settings import path, read
from aitop.errors import WrongUsageError


def check() -> Check:
    """Whether there is one, and what is wrong with it."""
    try:
        file = path()
    except WrongUsageError as error:
        return not_needed("settings", f"{error}; everything is as `aitop config` prints it")
    try:
        read(file)
        there = file.exists()
    except WrongUsageError as error:
        return fault("settings", str(error), f"mend or remove {file}")
    except OSError:
        there = False
    return works("settings", f"read from {file}") if there else not_needed("settings", f"there is no {file}")
