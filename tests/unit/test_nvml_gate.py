"""The choke point: what is decided once, what is tried again, and what ends a device."""

from __future__ import annotations

import pytest

from aitop.sources.nvml.gate import SYSTEM, DeviceLostError, Gate, Handle

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
