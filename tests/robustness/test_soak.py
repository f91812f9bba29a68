"""Nothing grows in engine and recorder while workers, ranks and hours go by."""

from __future__ import annotations

from pathlib import Path

import pytest
import soak

from aitop.engine import recorder as recorder_module
from aitop.engine.recorder import Recorder
from aitop.model.host import HostSample
from aitop.model.steps import HookSample


@pytest.mark.slow
def test_hours_of_samples_of_processes_that_come_and_go_leave_nothing_behind(monkeypatch):
    monkeypatch.setattr(soak, "LOOPS_OF_A_RANK", 1)
    figures = soak.simulated(days=0.1, pace=40.0, looks=12)
    objects = figures.read["objects"]
    assert len(objects) >= 12
    # It begins to keep in the first third what it keeps for some minutes.
    assert min(objects[-3:]) - min(objects[4:7]) < 1500, objects


def test_what_was_said_of_processes_that_are_gone_is_forgotten(monkeypatch):
    monkeypatch.setattr(recorder_module, "MOST_STANDING", 4)
    monkeypatch.setattr(soak, "LOOPS_OF_A_RANK", 1)
    events = []

    class Kept:
        path, failed, written = Path("kept"), None, None

        def write(self, event):
            events.append(event)

        def close(self):
            pass

    recorder = Recorder(lambda path, new: Kept())
    last = {}
    for event in soak.samples(0.02 * 86_400, 20.0, soak.renamed):
        recorder.write(event)
        last[type(event)] = event
    recorder.begin(Path("kept"))
    assert isinstance(last[HostSample], HostSample)
    pids = [event.pid for event in events if isinstance(event, HookSample)]
    assert pids[-1] == last[HookSample].pid
    assert len(pids) <= 4
