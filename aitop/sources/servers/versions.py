"""The version of an installed package, from its metadata on disk. Nothing is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from aitop.sources import procfs

_FOLDER = re.compile(r"^(?P<folder>/[^\n]*?/(?:site|dist)-packages)/")
_MAPPED = re.compile(rb"^[^/\n]*(?P<folder>/[^\n]*?/(?:site|dist)-packages)/", re.MULTILINE)
_VERSION = re.compile(r"\d[\w.+!]{0,40}", re.ASCII)


def version_of(pid: int, distributions: Iterable[str], files: Iterable[str] = ()) -> str | None:
    """The version of the first of these distributions that lies in a folder from which the process has loaded code.

    The folders are those of its mapped libraries and of `files` on its stacks. None where none of them has it.
    """
    names = [_normal(name) for name in distributions]
    if not names:
        return None
    folders = {match["folder"]: None for file in files if (match := _FOLDER.match(file))}
    for found in _MAPPED.findall(procfs.maps(pid) or b""):
        folders[found.decode("utf-8", "replace")] = None
    for folder in folders:
        versions = _versions(f"{procfs.PROC}/{pid}/root{folder}")
        known = next((versions[name] for name in names if name in versions), None)
        if known is not None:
            return known
    return None


def _versions(folder: str) -> dict[str, str]:
    """The versions in a folder of packages, by normalised name."""
    try:
        entries = os.listdir(folder)
    except (OSError, ValueError):
        return {}
    found = {}
    for entry in entries:
        if entry.endswith(".dist-info"):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            if _VERSION.fullmatch(version):
                found[_normal(name)] = version
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()
