"""A pytest plugin: which tests begin first, and which never run beside each other.

A file says so itself, with `pytestmark = pytest.mark.one_by_one` or `pytest.mark.early`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

MARK = "pytest.mark.one_by_one"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files first that take longest; the tests of a file stay together."""
    items.sort(key=lambda item: [item.get_closest_marker(mark) is None for mark in ("one_by_one", "early")])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep a file with one worker, which so starts what its tests share only once; files one by one are like one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "one by one" if one_by_one(config.rootpath / file) else file

    return ByFile(config, log)


@cache
def one_by_one(file: Path) -> bool:
    """Whether this file is marked so. Who hands out the tests knows only their names, so the text of it is asked."""
    return file.is_file() and MARK in file.read_text(encoding="utf-8")
