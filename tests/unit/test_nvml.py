"""NVML: what it answers is checked, and what it does not support is asked once."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitop.sources import nvml, plausible, procfs
from aitop.sources.nvml import library, processes
from aitop.sources.nvml.device import NvlinkMeter, reason_names
from aitop.sources.nvml.library import SYSTEM, DeviceLostError, Gate, Handle
from aitop.sources.source import SourceError

ALL_BITS = 4294967295


@pytest.mark.parametrize("percent", [ALL_BITS, 255, -1, math.nan, math.inf, None])
def test_a_share_that_cannot_be_is_none(percent):
    assert plausible.share(percent) is None


@given(st.floats(0, 101))
def test_a_share_stays_between_nothing_and_all(percent):
    share = plausible.share(percent)
    assert share is not None
    assert 0 <= share <= 1


def test_zero_is_a_measurement():
    assert plausible.share(0) == 0.0
    assert plausible.whole(0, 0, 10) == 0


@given(st.text())
def test_a_clean_name_cannot_move_the_cursor(text):
    cleaned = plausible.clean(text)
    assert cleaned is None or (cleaned.isprintable() and 0 < len(cleaned) <= plausible.LONGEST_NAME)


def test_escape_codes_leave_names():
    assert plausible.clean("NVIDIA\x1b[31m H200\x07\u202e\n") == "NVIDIA·[31m H200··"


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0, ()),
        (0x1 | 0x2 | 0x100, ()),
        (0x4, ("sw_power_cap",)),
        (0x20 | 0x40 | 0x8, ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown")),
        (0x80 | 0x10, ("sync_boost", "hw_power_brake")),
        (ALL_BITS, None),
        (None, None),
    ],
)
def test_reasons_are_those_that_hold_the_clocks_back(mask, names):
    assert reason_names(mask) == names


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
    found = [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in entries]
    return Nvml(
        nvmlDeviceGetComputeRunningProcesses_v3=lambda _handle: found, nvmlDeviceGetMinorNumber=lambda _handle: 3
    )


def test_a_process_on_several_slices_is_one_process_with_the_sum():
    gate = Gate(listing((10, 100), (10, 50), (11, None), (0, 5), (ALL_BITS, 5)))
    assert processes.running(gate, Handle("gpu0", "pointer")) == {10: 150, 11: None}


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()
    return child.pid


def test_a_process_of_the_tree_makes_the_device_ours():
    meter = processes.ProcessMeter(Gate(listing((os.getpid(), 100), (1, 7))), Handle("gpu0", "pointer"))
    found, ours = meter.read(frozenset({os.getpid()}), None)
    assert ours
    assert [(process.pid, process.mine) for process in found] == [(1, False), (os.getpid(), True)]


def test_a_pid_of_another_namespace_is_ours_if_our_tree_holds_the_device(monkeypatch):
    monkeypatch.setattr(procfs, "open_devices", lambda pid: {"/dev/nvidia3"} if pid == os.getpid() else set())
    meter = processes.ProcessMeter(Gate(listing((dead_pid(), 100))), Handle("gpu0", "pointer"))
    found, ours = meter.read(frozenset({os.getpid()}), None)
    assert ours
    assert found[0].mine


def test_a_pid_of_another_namespace_is_not_ours_if_our_tree_does_not_hold_the_device():
    meter = processes.ProcessMeter(Gate(listing((dead_pid(), 100))), Handle("gpu0", "pointer"))
    found, ours = meter.read(frozenset({os.getpid()}), None)
    assert not ours
    assert not found[0].mine


def test_a_process_of_somebody_else_here_is_never_taken_for_ours(monkeypatch):
    monkeypatch.setattr(procfs, "open_devices", lambda _pid: {"/dev/nvidia3"})
    meter = processes.ProcessMeter(Gate(listing((1, 100))), Handle("gpu0", "pointer"))
    found, ours = meter.read(frozenset({os.getpid()}), None)
    assert not ours
    assert not found[0].mine


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


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, 13, 25, 26, INVALID])
def test_what_a_device_never_gives_is_asked_once(code):
    nvml = ScriptedNvml(code)
    gate = Gate(nvml)
    assert [gate.ask(GPU, "query") for _ in range(3)] == [None, None, None]
    assert len(nvml.calls) == 1


def test_a_passing_failure_is_tried_again():
    nvml = ScriptedNvml(UNKNOWN, [7])
    gate = Gate(nvml)
    assert gate.ask(GPU, "query") is None
    assert gate.last_error == "query: code 999"
    assert gate.ask(GPU, "query") == 7
    assert gate.answered == 1


def test_nothing_now_is_neither_a_failure_nor_remembered():
    nvml = ScriptedNvml(NOT_FOUND, TIMEOUT, [7])
    gate = Gate(nvml)
    assert [gate.ask(GPU, "query") for _ in range(3)] == [None, None, 7]
    assert gate.last_error is None


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


def test_a_lost_device_does_not_end_what_is_asked_of_the_system():
    assert Gate(ScriptedNvml(IS_LOST)).ask(SYSTEM, "query") is None


def test_an_invalid_argument_to_the_system_is_not_held_against_it():
    nvml = ScriptedNvml(INVALID, [5])
    gate = Gate(nvml)
    assert gate.ask(SYSTEM, "query") is None
    assert gate.ask(SYSTEM, "query") == 5


def test_a_function_that_this_pynvml_lacks_is_not_supported():
    assert Gate(ScriptedNvml()).ask(GPU, "unheard_of") is None


def test_an_answer_that_pynvml_cannot_decode_is_none():
    nvml = ScriptedNvml(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ["name"])
    gate = Gate(nvml)
    assert gate.ask(GPU, "query") is None
    assert gate.ask(GPU, "query") == "name"


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
