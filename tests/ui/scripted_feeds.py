"""Feeds that publish what a test hands them, and note what they were asked for."""

from __future__ import annotations

import random

from aitop.engine.feed import LazyFeed, ReplayMark, ReplayPosition
from aitop.errors import AitopError


class ScriptedFeed:
    """A feed that publishes what the test hands it, and notes what it was asked to do."""

    def __init__(self, *snapshots, live=True):
        self.live = live
        self.first = snapshots
        self.publish = None
        self.asked = []

    def start(self, publish):
        self.publish = publish
        for snapshot in self.first:
            publish(snapshot)

    def stop(self):
        self.asked.append("stop")


class RunFeed(ScriptedFeed, LazyFeed):
    """A live run that can be asked for more; `problem` is why it refuses."""

    problem = None
    has_hook = is_out = True

    def made(self):
        return self

    def detach(self):
        if not self.has_hook:
            raise AitopError("there is no hook to take out")
        self.asked.append("detach")
        if self.problem:
            raise RuntimeError(self.problem)
        self.has_hook = False
        return self.is_out

    def profile(self, steps, progress):
        raise RuntimeError("no profile here")

    def dump(self):
        raise RuntimeError("no stacks here")

    def native(self, pids):
        raise RuntimeError("nothing below Python here")

    def marked(self):
        return None

    def mark(self, snapshot):
        self.asked.append("mark")


class SeekableFeed(ScriptedFeed):
    """A replay of a minute that only notes that it was told to move, and then stands anywhere."""

    def __init__(self, *snapshots):
        super().__init__(*snapshots, live=False)
        marks = (ReplayMark(5.0, "input-bound"), ReplayMark(59.9, "target ended"))
        self.stands = ReplayPosition(duration=60.0, marks=marks)

    def position(self):
        return self.stands

    def _note(self, *_):
        self.stands = ReplayPosition(
            seconds=random.Random(len(self.asked)).uniform(0, 60),
            duration=60.0,
            playing=len(self.asked) % 3 == 0,
            seeking=0.5 if len(self.asked) % 7 == 0 else None,
            marks=self.stands.marks,
        )
        self.asked.append("moved")

    pause = resume = step = seek_by = seek_to = set_speed = _note
