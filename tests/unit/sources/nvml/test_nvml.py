"""NVML: what it answers is checked, and what it does not support is asked once."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pynvml
import pytest
from process_numbers import ended_process

from aitop.model.gpu import GpuDevice, GpuSample
from aitop.sources import devices, nvml, procfs
from aitop.sources.nvml import library, processes
from aitop.sources.nvml.device import NvlinkMeter
from aitop.sources.nvml.library import SYSTEM, DeviceLostError, Gate, Handle
from aitop.sources.source import SourceError

ALL_BITS = 4294967295


class Nvml:
    """As much of pynvml as a meter asks for; each attribute is a function."""

    class NVMLError(Exception):
        value = 999

    def __init__(self, **functions: object) -> None:
        self.__dict__.update(functions)


def field(kibibytes: int, code: int = 0) -> SimpleNamespace:
    return SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(ullVal=kibibytes))


def test_nvlink_counters_become_rates_and_a_reset_counter_is_no_rate():
    counters = iter([(1000, 500), (3000, 1500), (10, 10), (1034, 10)])
    nvml = Nvml(nvmlDeviceGetFieldValues=lambda _handle, _fields: [field(n) for n in next(counters)])
    meter = NvlinkMeter(Gate(nvml), Handle("gpu0", "pointer"))
    assert meter.read(10.0) == (None, None)
    assert meter.read(12.0) == (1000 * 1024, 500 * 1024)
    assert meter.read(13.0) == (None, None)
    assert meter.read(15.0) == (512 * 1024, 0.0)


def test_nvlink_fields_that_are_not_there_give_no_rate():
    nvml = Nvml(nvmlDeviceGetFieldValues=lambda _handle, _fields: [field(0, 3), field(0, 3)])
    meter = NvlinkMeter(Gate(nvml), Handle("gpu0", "pointer"))
    assert [meter.read(1.0), meter.read(2.0)] == [(None, None), (None, None)]


def listing(*entries: tuple[int, int | None]) -> Nvml:
    listed = [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in entries]
    return Nvml(
        nvmlDeviceGetComputeRunningProcesses_v3=lambda _handle: listed, nvmlDeviceGetMinorNumber=lambda _handle: 3
    )


def test_a_process_on_several_slices_is_one_process_with_the_sum():
    gate = Gate(listing((10, 100), (10, 50), (11, None), (0, 5), (ALL_BITS, 5)))
    assert processes.running(gate, Handle("gpu0", "pointer")) == {10: 150, 11: None}


@pytest.mark.parametrize(
    ("who", "held", "ours"),
    [("us", False, True), ("namespace", True, True), ("namespace", False, False), ("init", True, False)],
    ids=["our tree", "of another namespace, and we hold the device", "of another namespace", "somebody else here"],
)
def test_whose_a_process_on_the_device_is(monkeypatch, who, held, ours):
    pid = {"us": os.getpid(), "init": 1}.get(who) or ended_process()
    monkeypatch.setattr(procfs, "open_devices", lambda pid: {"/dev/nvidia3"} if held else set())
    meter = processes.ProcessMeter(Gate(listing((pid, 100))), Handle("gpu0", "pointer"))
    sample = GpuSample(time=1.0, devices=(GpuDevice(index=0, minor=meter.minor, processes=meter.read(None)),))
    monkeypatch.setattr(
        devices, "all_devices", lambda own: SimpleNamespace(interval=1, patience=1, read=lambda: [sample])
    )
    ((device,),) = [each.devices for each in devices.device_source(lambda: frozenset({os.getpid()})).read()]
    assert ([process.mine for process in device.processes], device.mine) == ([ours], ours)


NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT, IS_LOST, UNKNOWN, INVALID = 3, 4, 6, 10, 15, 999, 2


class ScriptedNvml:
    """Answers `query` with the next of `script`: a code to raise, or a value in a list."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"code {value}")
            self.value = value

    def __init__(self, *script: object) -> None:
        self.script = list(script)
        self.calls: list[tuple[object, ...]] = []

    def query(self, *arguments: object) -> object:
        self.calls.append(arguments)
        step = self.script.pop(0)
        if isinstance(step, int):
            raise self.NVMLError(step)
        if isinstance(step, Exception):
            raise step
        return step[0]


GPU = Handle("gpu0", "pointer0")


UNDECODABLE = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")


@pytest.mark.parametrize(
    ("handle", "script", "answers", "error"),
    [
        *[(GPU, [code], [None] * 3, None) for code in (NOT_SUPPORTED, NO_PERMISSION, 13, 25, 26, INVALID)],
        (GPU, [UNKNOWN, [7]], [None, 7], "query: code 999"),
        (GPU, [NOT_FOUND, TIMEOUT, [7]], [None, None, 7], None),
        (GPU, [UNDECODABLE, ["name"]], [None, "name"], f"query: {UNDECODABLE}"),
        (SYSTEM, [INVALID, [5]], [None, 5], "query: code 2"),
        (SYSTEM, [IS_LOST], [None], "query: code 15"),
    ],
)
def test_unsupported_queries_are_made_once_and_passing_failures_again(handle, script, answers, error):
    nvml = ScriptedNvml(*script)
    gate = Gate(nvml)
    assert [gate.ask(handle, "query") for _ in answers] == answers
    assert (len(nvml.calls), gate.last_error) == (len(script), error)
    assert gate.answered == sum(answer is not None for answer in answers if handle is GPU)
    assert gate.ask(handle, "unheard_of") is None, "this pynvml lacks it"


def test_another_device_and_another_argument_are_decided_apart():
    nvml = ScriptedNvml(NOT_SUPPORTED, [1], [2])
    gate = Gate(nvml)
    assert gate.ask(GPU, "query", 2) is None
    assert gate.ask(GPU, "query", 1) == 1
    assert gate.ask(Handle("gpu1", "pointer1"), "query", 2) == 2
    assert gate.ask(GPU, "query", 2) is None
    assert nvml.calls == [("pointer0", 2), ("pointer0", 1), ("pointer1", 2)]


def test_a_changing_argument_does_not_hide_that_the_call_is_unsupported():
    nvml = ScriptedNvml(NOT_SUPPORTED)
    gate = Gate(nvml)
    assert gate.ask(GPU, "query", 1000, variant="shares") is None
    assert gate.ask(GPU, "query", 2000, variant="shares") is None
    assert len(nvml.calls) == 1


@pytest.mark.parametrize("code", [IS_LOST, 16])
def test_a_lost_device_ends_that_device(code):
    with pytest.raises(DeviceLostError):
        Gate(ScriptedNvml(code)).ask(GPU, "query")


def test_the_newest_function_that_gives_something_wins():
    class Nvml(ScriptedNvml):
        def older(self, *_: object) -> str:
            return "older"

    assert Gate(Nvml(NOT_SUPPORTED)).first(GPU, ("query", "older")) == "older"
    assert Gate(Nvml(["newer"])).first(GPU, ("query", "older")) == "newer"


@pytest.mark.parametrize("cards", [0, 2])
def test_a_driver_is_missed_only_where_a_card_is_on_the_bus(monkeypatch, cards):
    def failing(code):
        def start():
            raise pynvml.NVMLError(code)

        monkeypatch.setattr(pynvml, "nvmlInit", start)
        return library.start

    for module in (nvml, library):
        monkeypatch.setattr(module, "count_cards", lambda: cards)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 0)
    looks = {
        "no library": nvml.NoDriver().open,
        "no device": library.handles,
        "no library for pynvml": failing(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND),
    }
    refusals = {name: refusal_of(look) for name, look in looks.items()}
    refusals["not loaded"] = refusal_of(failing(pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    assert {refusal.state for refusal in refusals.values()} == {"absent"}
    assert {name for name, refusal in refusals.items() if refusal.remedy} == (set(refusals) if cards else set())
    calm = {name for name, refusal in refusals.items() if refusal.reason == "there is no NVIDIA GPU here"}
    assert calm == (set() if cards else {"no library", "no library for pynvml"})


def refusal_of(look):
    with pytest.raises(SourceError) as refused:
        look()
    return refused.value
