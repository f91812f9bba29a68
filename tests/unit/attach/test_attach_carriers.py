"""What carries a request: one of the two takes it, a child may not, and where the target cannot look it is a file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from aitop.attach.payload import carriers
from aitop.attach.payload.carriers import FREE, Carrier, FileCarrier, MemoryCarrier, may_look_into_us
from aitop.attach.payload.request import Request
from aitop.attach.refusal import AttachRefused
from aitop.sources.process_status import ProcStatus, own_status, read_status

# The target's part of it, in a process of its own: it takes the carrier, says so, and waits.
TAKE = """
import posix as o, sys
p, flags, claim = sys.argv[1:]
d = o.open(p, int(flags))
try:
    exec(claim)
except Exception:
    print("no", flush=True)
else:
    print("mine", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["memory", "file"])
def carrier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Carrier]:
    one: Carrier = (
        MemoryCarrier(0)
        if request.param == "memory"
        else FileCarrier(own_status(), os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), str(tmp_path))
    )
    os.pwrite(one.fd, FREE, 0)
    yield one
    one.close()


def taken_by(carrier: Carrier) -> Generator[str, None, None]:
    """What a process that takes it says; it is there until this is closed."""
    command = [sys.executable, "-I", "-S", "-c", TAKE, carrier.path, str(int(carrier.flags)), carrier.claim]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as target:
        yield target.stdout.readline().strip()


def test_a_request_that_the_target_has_begun_cannot_be_cancelled(carrier: Carrier) -> None:
    assert carrier.is_there()
    target = taken_by(carrier)
    assert next(target) == "mine"
    assert not carrier.is_there() and not carrier.take_away()
    target.close()
    assert not carrier.is_there()
    if isinstance(carrier, MemoryCarrier):  # nor once the target has let go of it
        assert not carrier.take_away()


def test_a_cancelled_request_is_never_begun(carrier: Carrier) -> None:
    if isinstance(carrier, FileCarrier):
        assert carrier.take_away() and not os.path.exists(carrier.path)
        return
    assert carrier.take_away() and not carrier.is_there()
    assert next(taken_by(carrier)) == "no"
    assert carrier.take_away()  # it stays ours


def test_two_targets_never_have_it_both() -> None:
    carrier = MemoryCarrier(0)
    os.pwrite(carrier.fd, FREE, 0)
    first, second = taken_by(carrier), taken_by(carrier)
    assert [next(first), next(second)] == ["mine", "no"]
    first.close()
    assert next(taken_by(carrier)) == "no"  # not even after the first is gone
    carrier.close()


def test_files_of_killed_monitors_are_removed_and_those_in_use_are_not_however_old(tmp_path: Path) -> None:
    folder = str(tmp_path)
    waits = FileCarrier(own_status(), os.open(folder, os.O_RDONLY | os.O_DIRECTORY), folder)
    left = tmp_path / ".aitop-7-0123456789ab"
    left.touch()
    for file in (waits.path, left):
        os.utime(file, (0, 0))
    os.close(carriers._cleaned_folder(own_status(), folder))
    assert waits.is_there() and not left.exists()
    waits.close()
    os.close(carriers._cleaned_folder(own_status(), folder))
    assert os.listdir(folder) == []


def test_memory_of_ours_leaves_no_name_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "FileCarrier", lambda *_: pytest.fail("no file is made"))
    with closing(Request(own_status(), b"payload")) as request:
        assert request.path.startswith(f"/proc/{os.getpid()}/fd/") and request.is_there()
        assert os.readlink(request.path).startswith("/memfd:aitop-request")
        assert request.cancel() and not request.is_there()


def test_a_way_that_complains_of_a_missing_file_gets_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "FOLDERS", (str(tmp_path),))
    with closing(Request(own_status(), b"payload", file=True)) as request:
        assert [str(path) for path in tmp_path.iterdir()] == [request.path]
        status = os.stat(request.path)
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.geteuid())
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_given_to_the_targets_user_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(carriers, "_folders", lambda pid: [str(tmp_path)])
    monkeypatch.setattr(carriers, "open_folder_as", lambda pid, path, user: os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    before = len(os.listdir("/proc/self/fd"))
    us = own_status()
    with pytest.raises(AttachRefused, match="Operation not permitted"):
        Request(replace(us, uids=tuple(uid + 1 for uid in us.uids)), b"payload")
    assert not list(tmp_path.iterdir()) and len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda us: replace(us, uids=(us.uids[0], us.uids[1] + 1, us.uids[2], us.uids[3])),
        lambda us: replace(us, gids=(us.gids[0] + 1, *us.gids[1:])),
        lambda us: replace(us, no_new_privileges=not us.no_new_privileges),
    ],
)
def test_the_kernel_would_not_let_a_stranger_look(change: Callable[[ProcStatus], ProcStatus]) -> None:
    us = own_status()
    assert may_look_into_us(us)
    assert not may_look_into_us(change(us))


def test_a_target_with_fewer_rights_may_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    us = own_status()
    monkeypatch.setattr(carriers, "own_status", lambda: replace(us, permitted=us.permitted | 1 << 19))
    assert may_look_into_us(replace(us, capabilities=us.permitted | 1 << 19))
    assert not may_look_into_us(replace(us, capabilities=us.permitted & ~(1 << 19)))


def test_a_process_that_may_look_into_us_can_open_our_memory() -> None:
    """The rule is held against the kernel: where it says yes, another process does open our memory."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        status = read_status(child.pid)
        assert status is not None and may_look_into_us(status)
        child.kill()
    carrier = MemoryCarrier(0)
    os.pwrite(carrier.fd, FREE, 0)
    assert next(taken_by(carrier)) == "mine"
    carrier.close()
