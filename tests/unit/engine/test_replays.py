"""Recordings of real runs, played through the engine: what was right when they were taken stays right."""

from __future__ import annotations

import pytest
from recorded_runs import RECORDINGS, end_of_recording, recording

from aitop.engine.core import Engine
from aitop.model.source import SourceStatus
from aitop.model.steps import HookSample
from aitop.model.units import duration


@pytest.mark.parametrize("file", sorted(RECORDINGS.glob("*.jsonl.gz")), ids=lambda file: file.name)
def test_every_line_of_a_recording_is_read(file):
    events = recording(file.name.partition(".")[0]).events()
    assert list(events) and events.skipped == 0


def end_without_hook(name):
    """The last Snapshot of a recording where the hook had not been there."""
    played, snapshot = recording(name), None
    engine = Engine(played.header.target)
    for event in played.events():
        if not (isinstance(event, HookSample) or (isinstance(event, SourceStatus) and event.source == "hook")):
            snapshot = engine.handle(event) or snapshot
    return snapshot


@pytest.mark.parametrize("name", ["slow-loader", "simulated-gpu"])
def test_a_loader_with_too_few_workers(name):
    snapshot = end_of_recording(name)
    primary = snapshot.diagnosis.primary
    assert (primary.id, primary.subtype) == ("input-bound", "workers")
    waits = [step.loading for step in snapshot.steps.recent]
    assert primary.evidence[0].startswith(f"data wait {duration(sum(waits) / len(waits))} a step, ")
    assert (primary.where[0].function, primary.where[0].line) == ("fetch", 17)


def test_a_healthy_run():
    verdicts = end_of_recording("healthy").diagnosis.verdicts
    assert [(verdict.id, verdict.severity) for verdict in verdicts] == [("compute-bound", "info")]


@pytest.mark.parametrize("end", [end_of_recording, end_without_hook], ids=["hook", "stacks"])
def test_a_rank_of_four_that_gets_its_data_late(end):
    primary = end("straggler").diagnosis.primary
    assert (primary.id, primary.subtype, primary.ranks) == ("straggler", "input", (3,))
    assert primary.where[0].text == "time.sleep(0.001)"


def test_a_rank_of_four_that_left_out_a_collective():
    primary = end_of_recording("hang").diagnosis.primary
    assert (primary.id, primary.subtype, primary.ranks) == ("hang", "skipped-collective", (3,))
    assert [place.text for place in primary.where[:2]] == ["loss.backward()", "dist.barrier()"]
    assert "last collective called: 907 by rank 3; 908 by rank 0, 1, 2" in primary.evidence


def test_a_server_whose_collections_make_a_tail():
    snapshot = end_of_recording("serve")
    primary = snapshot.diagnosis.primary
    assert (primary.id, primary.subtype) == ("latency-tail", "collector")
    assert (primary.where[0].function, primary.where[0].text) == ("Server.tidy_up", "gc.collect()")
    assert primary.parts[0].name == "collector" and primary.parts[0].share > 0.9
    assert sum(part.share for part in primary.parts) <= 1.01
    assert snapshot.serving.basis == "hook" and snapshot.serving.latency.p99 > 10 * snapshot.serving.latency.p50


def test_a_device_that_was_simulated_is_drawn_as_one():
    device = end_of_recording("simulated-gpu").gpu.devices[0]
    assert device.name == "NVIDIA H200" and device.mine
    assert device.gpm is not None and device.gpm.sm_active is not None
