"""One reader of the devices for many jobs: each sees which of them are its own."""

import threading

import pytest
from process_numbers import NO_PROCESS

from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample
from aitop.sources import devices
from aitop.sources.source import SourceError


class Driver(devices.Source):
    name = "gpu"

    def __init__(self):
        self.reads = 0

    def read(self):
        self.reads += 1
        processes = (GpuProcess(pid=1), GpuProcess(pid=2))
        return [GpuSample(time=1e9, devices=(GpuDevice(index=0, processes=processes), GpuDevice(index=1)))]


def test_devices_are_read_once_for_all_jobs_and_each_sees_its_own(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(devices, "all_devices", lambda: driver)
    shared = devices.SharedDevices(15.0)
    own, other = shared.of(lambda: frozenset({1})), shared.of(lambda: frozenset({3}))
    (mine,), (theirs,) = own.read(), other.read()
    assert driver.reads == 1
    assert [device.mine for device in mine.devices] == [True, False]
    assert [process.mine for process in mine.devices[0].processes] == [True, False]
    assert not any(device.mine for device in theirs.devices)
    assert theirs.devices[1] == mine.devices[1]


@pytest.mark.parametrize("listed", [None, (GpuProcess(pid=NO_PROCESS),)])
def test_in_a_container_a_device_is_the_jobs_that_has_it_open(monkeypatch, listed):
    driver = Driver()
    driver.read = lambda: [GpuSample(time=1e9, devices=(GpuDevice(index=0, minor=3, processes=listed),))]
    monkeypatch.setattr(devices, "all_devices", lambda: driver)
    monkeypatch.setattr("aitop.sources.procfs.open_devices", lambda pid: {f"/dev/nvidia{pid}"})
    shared = devices.SharedDevices(15.0)
    for pid, mine in ((3, True), (4, False)):
        (sample,) = shared.of(lambda pid=pid: frozenset({pid})).read()
        (device,) = sample.devices
        assert device.mine is mine and [each.mine for each in device.processes or ()] == [mine] * len(listed or ())


@pytest.mark.parametrize("many", [False, True], ids=["one job", "all jobs"])
def test_a_lost_device_is_the_jobs_that_used_it(monkeypatch, many):
    samples = [
        GpuSample(time=1.0, devices=tuple(GpuDevice(index=i, processes=(GpuProcess(pid=1),)) for i in (0, 1))),
        GpuSample(time=2.0, devices=(GpuDevice(index=0, processes=()), GpuDevice(index=1, lost=True))),
        GpuSample(time=3.0, devices=(GpuDevice(index=0, processes=()), GpuDevice(index=1, lost=True))),
    ]
    driver = Driver()
    driver.read = lambda: [samples.pop(0)]
    monkeypatch.setattr(devices, "all_devices", lambda *own: driver)
    shared = devices.SharedDevices(-1.0)
    source_of = shared.of if many else devices.device_source
    job = source_of(lambda: frozenset({1}))
    seen = [[device.mine for device in job.read()[0].devices] for _ in range(3)]
    assert seen == [[True, True], [False, True], [False, True]]
    samples.append(GpuSample(time=4.0, devices=(GpuDevice(index=1, lost=True),)))
    assert not source_of(lambda: frozenset({2})).read()[0].devices[0].mine


def test_a_driver_that_was_opened_in_part_is_closed(monkeypatch):
    driver, calls = Driver(), []

    def refuse():
        calls.append("open")
        raise SourceError("absent", "the NVIDIA driver is here, but no GPU")

    driver.open, driver.close = refuse, lambda: calls.append("close")
    monkeypatch.setattr(devices, "all_devices", lambda: driver)
    shared = devices.SharedDevices(15.0)
    for _ in range(2):
        with pytest.raises(SourceError, match="no GPU"):
            shared.read()
    assert calls == ["open", "close"] * 2


def test_jobs_do_not_wait_for_a_driver_that_hangs_in_the_read_of_another(monkeypatch):
    driver, reads, goes_on = Driver(), threading.Event(), threading.Event()

    def hang():
        reads.set()
        goes_on.wait(30)
        return []

    driver.read = hang
    monkeypatch.setattr(devices, "all_devices", lambda: driver)
    shared = devices.SharedDevices(15.0)
    shared.patience = 0.05
    first = threading.Thread(target=shared.read, daemon=True)
    first.start()
    assert reads.wait(30)
    at_last = threading.Timer(5.0, goes_on.set)
    at_last.start()
    with pytest.raises(SourceError, match="has not come back") as raised:
        shared.read()
    assert raised.value.state == "stale"
    goes_on.set()
    at_last.cancel()
    first.join()
    assert shared.read() == []
