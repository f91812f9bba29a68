"""The user's code is read for lines that grow only while memory rises."""

from __future__ import annotations

import os

from snapshot_builder import constant, snapshot, steps
from test_memory_rules import GB, rising

from aitop.engine.growth import GrowthFinder
from aitop.model.stacks import Frame, StackCount, StackWindow

LEAKS = "kept = []\nfor step in range(10):\n    loss = model(step)\n    loss.backward()\n    kept.append(loss)\n"


def window(file):
    stack = StackCount(pid=os.getpid(), thread="MainThread", main=True, frames=(0,), count=3)
    return StackWindow(time=1.0, seconds=1.0, rate=20.0, frames=(Frame("<module>", file, 3, True),), stacks=(stack,))


def test_code_is_read_once_and_only_while_memory_rises(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(LEAKS)
    emitted = []
    finder = GrowthFinder(os.getpid(), emitted.append)

    def considered(series):
        finder.consider(snapshot(steps(), series={"rss": series}))
        if finder._reader is not None:
            finder._reader.join(10.0)
        return len(emitted)

    assert considered(rising(1 * GB, 3 * GB, 40)) == 0, "nothing was seen to run"
    finder.saw(window(str(file)))
    assert considered(constant(1.0 * GB, 40)) == 0
    assert considered(rising(1 * GB, 3 * GB, 40)) == 1
    assert [(site.file, site.line) for site in emitted[0].sites] == [(str(file), 5)]
    finder.saw(window(str(file)))
    assert considered(rising(1 * GB, 3 * GB, 40)) == 1
