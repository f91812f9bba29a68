"""The device clock, with events that a test controls: nothing is waited for, and errors stay inside."""

from __future__ import annotations

import time
from types import SimpleNamespace
from uuid import UUID as AnyUuid

import pytest
import torch
from hook_runs import Net, loader, train

from aitop.hook.measures import device as device_module

UUID = AnyUuid("fa4e0000-0000-4000-8000-000000000000")


class Gpu:
    """A device whose clock stands still unless told, and which is done with an event only when `done`."""

    def __init__(self) -> None:
        self.clock, self.done, self.capturing = 0.0, True, False
        self.made, self.waits = 0, 0
        self.current = 0
        gpu = self

        class Event:
            def __init__(self, enable_timing=False) -> None:
                assert enable_timing
                gpu.made += 1
                self.at = self.device = None

            def record(self):
                assert not gpu.capturing
                if self.device not in (None, gpu.current):
                    raise RuntimeError("Event device does not match recording stream's device")
                self.device = gpu.current
                gpu.clock += 1.0
                self.at = gpu.clock

            def query(self):
                assert not gpu.capturing
                return gpu.done

            def elapsed_time(self, later):
                assert gpu.done
                if later.device != self.device:
                    raise RuntimeError("CUDA error: invalid resource handle")
                return later.at - self.at

            def synchronize(self):
                gpu.waits += 1

        self.Event = Event


@pytest.fixture
def gpu(monkeypatch, watched):
    made = Gpu()
    monkeypatch.setattr(torch.cuda, "Event", made.Event)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.capturing)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: made.current)
    stats = {"reserved_bytes.all.current": 1000, "allocated_bytes.all.current": 600, "num_ooms": 1}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats if device == 1 else {})
    properties = SimpleNamespace(total_memory=80_000, uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(device_module, "ALWAYS_ABOVE_NS", 0)
    watched.session.look(time.monotonic_ns())
    return made


def step_a_little(times=1):
    model = Net()
    train(model, loader(), torch.optim.SGD(model.parameters(), 0.1), times=times)


def test_phases_on_the_device_clock(gpu, watched):
    step_a_little()
    records = watched.records()
    timed = records[1:]
    assert len(timed) == 6
    for record in timed:
        # One tick an event: begin and end of each phase, and one at the end of the step.
        assert (record.device_forward, record.device_backward, record.device_optimizer) == (0.001,) * 3
        assert record.device_idle == pytest.approx(0.004)
    assert gpu.waits == 0


def test_events_come_from_a_pool(gpu, watched):
    step_a_little(times=5)
    watched.records()
    assert gpu.made < 7 * 64 + 20
    before = gpu.made
    step_a_little(times=5)
    watched.records()
    step_a_little(times=5)
    assert gpu.made - before < 7 * 64


def test_records_wait_for_their_events_in_order(gpu, watched):
    gpu.done = False
    step_a_little()
    assert len(watched.records()) <= 1
    gpu.done = True
    step_a_little()
    indices = [record.index for record in watched.records()]
    assert len(indices) >= 12
    assert indices == sorted(indices)


def test_a_step_that_the_device_is_not_done_with_keeps_its_end_while_steps_are_counted(gpu, watched):
    gpu.done = False
    step_a_little()
    watched.session.journal.device.pause()
    gpu.clock += 1000.0
    watched.session.journal.device.resume(time.monotonic_ns())
    step_a_little()
    gpu.done = True
    idle = [record.device_idle for record in watched.records() if record.device_idle is not None]
    assert len(idle) >= 12 and max(idle) == pytest.approx(0.004)


def test_a_device_that_never_finishes_holds_nothing_back_for_ever(gpu, watched):
    gpu.done = False
    step_a_little(times=15)
    records = watched.records()
    assert len(records) >= 15 * 8 - 1 - device_module.MOST_PENDING - 1
    assert all(record.device_forward is None for record in records)
    assert [record.index for record in records] == list(range(1, len(records) + 1))


def test_nothing_is_touched_while_a_graph_is_captured(gpu, watched):
    step_a_little()
    gpu.capturing = True
    step_a_little()
    gpu.capturing = False
    step_a_little()
    assert watched.session._errors.number == 0
    assert watched.session.journal.device._errors == 0


def test_a_broken_driver_costs_only_the_device_times(gpu, watched, monkeypatch):
    def broken(*args):
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(gpu.Event, "record", broken)
    step_a_little(times=2)
    monkeypatch.setattr(gpu.Event, "query", broken)
    step_a_little()
    records = watched.records()
    assert len(records) == 23
    assert all(record.device_forward is None and record.forward > 0 for record in records)
    assert watched.session._errors.number == 0


def test_steps_on_several_devices_are_timed_where_each_stays_on_one(gpu, watched):
    for gpu.current in (0, 1, 0, 1):
        step_a_little()
    records = watched.records()
    # The first step after each change began on the other device.
    untimed = [number for number, record in enumerate(records) if record.device_forward is None]
    assert untimed == [7, 15, 23]
    assert watched.session.journal.device._errors == 0


def test_a_step_within_which_the_device_changes_has_no_device_times(gpu, watched):
    step_a_little()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for rows, _ in loader():
        optimizer.zero_grad()
        loss = model(rows).square().mean()
        gpu.current = 1
        loss.backward()
        gpu.current = 0
        optimizer.step()
    step_a_little()
    records = watched.records()
    assert [record.device_forward for record in records] == [*7 * [0.001], *8 * [None], *8 * [0.001]]
    assert watched.session.journal.device._errors == 0


def test_two_optimizers_join_their_device_times(gpu, watched):
    one, other = Net(), Net()
    optimizers = torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
    for rows, _ in loader(count=48):
        for model, optimizer in zip((one, other), optimizers, strict=True):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
    timed = [record for record in watched.records()[3:] if record.device_forward is not None]
    assert len(timed) >= 6
    assert all(record.forwards == 2 and record.device_forward == pytest.approx(0.002) for record in timed)


def test_allocator_figures(gpu, watched):
    step_a_little()
    watched.session._write_facts(time.monotonic_ns())
    sample = watched.ring.read(time.monotonic_ns() * 1e-9)
    (allocator,) = sample.allocators
    assert (allocator.device, allocator.allocated, allocator.reserved) == (1, 600, 1000)
    assert (allocator.ooms, allocator.retries, allocator.capacity) == (1, None, 80_000)
    assert allocator.uuid == str(UUID)
    assert sample.facts.cuda
