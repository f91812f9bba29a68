"""What another process holds or names is opened only where that has no effects and lends it no rights."""

from __future__ import annotations

import os
import struct

import pytest
from msgspec.structs import replace

from aitop.attach.inspection.preflight import open_memory
from aitop.attach.refusal import AttachRefused
from aitop.hook.ring import Ring
from aitop.protocol import ring as ring_layout
from aitop.sources.process_status import own_status
from aitop.sources.ring.burst import MEMFD_LINK
from aitop.sources.ring.memfd import open_memfd
from aitop.sources.ring.reader import find_ring


def link_of(handle):
    return os.readlink(f"/proc/self/fd/{handle}")


@pytest.fixture
def handles():
    """`handles(fd)` closes it at the end."""
    held = []
    yield lambda handle: held.append(handle) or handle
    for handle in held:
        os.close(handle)


def test_memory_is_opened(handles):
    memory = handles(os.memfd_create("aitop-burst"))
    os.write(memory, b"here")
    fd = handles(open_memfd(f"/proc/self/fd/{memory}", MEMFD_LINK, os.O_RDONLY))
    assert os.pread(fd, 10, 0) == b"here"
    assert open_memfd(f"/proc/self/fd/{memory}", ring_layout.MEMFD_LINK, os.O_RDONLY) is None


def test_a_process_with_a_reused_pid_is_not_taken_for_the_one_that_ended():
    us = own_status()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(AttachRefused, match="ended"):
        open_memory(replace(us, started=us.started - 1))
    assert len(os.listdir("/proc/self/fd")) == len(before)
    open_memory(us).close()


def test_a_file_that_only_has_the_name_of_a_memfd_is_not_opened(tmp_path, handles, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(struct.pack("=QQ", ring_layout.MAGIC, ring_layout.VERSION))
    names = [tmp_path / "pipe", tmp_path / "file", "/dev/null", tmp_path]
    found = [handles(os.open(name, os.O_PATH)) for name in names]
    real, opened = os.open, []
    monkeypatch.setattr(os, "open", lambda path, flags, **how: opened.append(flags) or real(path, flags, **how))
    for handle in found:
        assert open_memfd(f"/proc/self/fd/{handle}", link_of(handle), os.O_RDWR) is None
    assert opened and all(flags & os.O_PATH for flags in opened)


def test_the_ring_is_found_by_its_own_user_and_by_no_other():
    ring = Ring("import")
    if find_ring(os.getpid()) is None:
        pytest.skip("descriptors cannot be seen here")
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    assert ring.pid == os.getpid()
    child = os.fork()
    if child == 0:
        code = 9
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            code = 0 if find_ring(os.getppid()) is None else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
