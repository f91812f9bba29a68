"""The allocator's figures: of which of the driver's devices, and of which process."""

from __future__ import annotations

import pytest

from aitop.engine.history import KEEP_SECONDS, History
from aitop.engine.snapshot.aggregate import aggregate
from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample, MigDevice
from aitop.model.snapshot import Target, Tick
from aitop.model.steps import AllocatorSample, HookSample, StepRecord

UUIDS = [f"fa4e0000-0000-4000-8000-00000000000{number}" for number in range(3)]
SLICE = MigDevice(index=0, uuid="MIG-5e1f0000-0000-4000-8000-000000000000")


def gpus(*own):
    devices = tuple(
        GpuDevice(
            index=index,
            uuid=f"GPU-{uuid}",
            mig_devices=(SLICE,) if index == 2 else (),
            processes=(GpuProcess(pid=7),) if index in own else (),
        )
        for index, uuid in enumerate(UUIDS)
    )
    return GpuSample(time=999.0, devices=devices)


def told(pid, *allocators, at=999.5):
    steps = tuple(StepRecord(index=number, end=at - 1 + number / 10, seconds=0.1) for number in range(5))
    return HookSample(time=at, pid=pid, steps=steps if pid == 7 else (), allocators=allocators)


def allocator(device=0, uuid=None, retries=0):
    return AllocatorSample(device=device, allocated=1, reserved=2, uuid=uuid, retries=retries)


def shot(*events, at=1000.0):
    history = History(Target(pid=7, command="python train.py"))
    for event in (*events, tick := Tick(time=at, wall=0.0)):
        history.add(event)
    return aggregate(history, tick)


@pytest.mark.parametrize(
    ("allocators", "own", "numbers"),
    [
        ([allocator(0, UUIDS[1])], (), [1]),
        ([allocator(0, UUIDS[1]), allocator(1, UUIDS[0])], (0, 1), [1, 0]),
        ([allocator(0, SLICE.uuid.removeprefix("MIG-"))], (), [2]),
        ([allocator(0, "5bad0000-0000-4000-8000-000000000000")], (0,), [None]),
        ([allocator(0)], (2,), [2]),
        ([allocator(0), allocator(1)], (0, 1), [0, 1]),
        ([allocator(0), allocator(1)], (1, 2), [None, 1]),
        ([allocator(1)], (), [1]),
        ([allocator(5)], (), [None]),
    ],
)
def test_a_device_has_the_drivers_number(allocators, own, numbers):
    assert [figures.gpu for figures in shot(gpus(*own), told(7, *allocators)).allocators] == numbers


def test_without_a_driver_no_device_has_a_number_of_its():
    assert [figures.gpu for figures in shot(told(7, allocator(0, UUIDS[0]))).allocators] == [None]


def test_series_are_of_the_process_that_leads():
    """Each rank calls its own device cuda:0: what others count there must not look like a rise."""
    events = [
        told(pid, allocator(retries=retries), at=990.0 + at) for at in range(8) for pid, retries in ((7, 1), (8, 5))
    ]
    seen = shot(*events)
    assert seen.series["alloc0.retries"].values == (1,) * 8
    assert seen.allocators[0].retries == 1


def test_the_last_figures_of_a_process_that_says_no_more_stay():
    history = History(Target(pid=7, command="python train.py"))
    for at in (1.0, 2.0):
        history.add(told(7, allocator(retries=round(at)), at=at))
    history.add(Tick(time=2.0 + 0.9 * KEEP_SECONDS, wall=0.0))
    assert len(history.hooks[7].allocators) == 2
    history.hooks[7].time = 3 * KEEP_SECONDS
    history.add(Tick(time=3 * KEEP_SECONDS, wall=0.0))
    assert [figures[0].retries for _, figures in history.hooks[7].allocators] == [2]
