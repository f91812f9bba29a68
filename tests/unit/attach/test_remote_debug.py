"""Python's own remote debugging as a way in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aitop.attach.refusal import NotNow
from aitop.attach.ways import remote_debug


class Memory(bytearray):
    def read(self, address: int, size: int) -> bytes:
        return bytes(self[address : address + size])

    def write(self, address: int, data: bytes) -> None:
        self[address : address + len(data)] = data


def entered(monkeypatch: pytest.MonkeyPatch, memory: Memory) -> None:
    """A request as Python 3.14 takes it: the breaker at 0, the flag at 8, the path at 16."""
    monkeypatch.setattr(remote_debug, "_find", lambda target: remote_debug._Mailbox(0, 8, 16, 128))
    monkeypatch.setattr(remote_debug, "check_running", lambda target: None)
    target, request = SimpleNamespace(memory=memory), SimpleNamespace(path="/tmp/file")
    remote_debug.RemoteDebug().enter(target, request)  # type: ignore[arg-type]


@pytest.mark.parametrize("waiting", [b"", b"/tmp/.aitop-7-0123456789ab"])
def test_flags_that_an_interpreter_changes_meanwhile_are_neither_lost_nor_set_for_good(
    monkeypatch: pytest.MonkeyPatch, waiting: bytes
) -> None:
    memory = Memory(200)
    memory.write(0, bytes((0b10001,)))  # a thread asks for the GIL, and a collection is due
    memory.write(8, bytes((bool(waiting),)))
    memory.write(16, waiting)
    entered(monkeypatch, memory)
    assert memory[0] == 0b111110 and memory[8] == 1
    assert memory.read(16, 10) == b"/tmp/file\0"


def test_another_debuggers_script_is_left_to_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(200)
    memory.write(8, b"\1")
    memory.write(16, b"/tmp/pdb_script.py\0")
    before = bytes(memory)
    with pytest.raises(NotNow, match="another debugger"):
        entered(monkeypatch, memory)
    assert bytes(memory) == before
