"""One look at the threads of a process: what py-spy may take for it, and what it may write."""

from __future__ import annotations

import json
import os
import sys

import msgspec
import pytest

from aitop.model.stacks import StackDump
from aitop.sources.source import SourceError
from aitop.sources.stacks import dump
from aitop.sources.stacks.window import CodeOfProcesses, WindowBuilder

FRAME = {"name": "step", "filename": "/home/ada/train.py", "line": 7}


@pytest.fixture
def py_spy(tmp_path, monkeypatch):
    """`py_spy(code)` has this Python code run as py-spy."""

    def make(code):
        program = tmp_path / "py-spy"
        program.write_text(f"#!{sys.executable} -S\n{code}")
        program.chmod(0o755)
        monkeypatch.setattr(dump, "find_py_spy", lambda: str(program))

    return make


# Its limits are set just after its start; py-spy itself takes longer to begin. The last of them is that of files.
WHEN_BOUNDED = (
    "import resource, time\n"
    "for _ in range(500):\n"
    "    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY: break\n"
    "    time.sleep(0.01)\n"
)

LOOKS = pytest.mark.parametrize(
    "look", [lambda: dump.take_dump([os.getpid()], script=None), lambda: dump.native_frames([os.getpid()])]
)


@LOOKS
def test_the_memory_of_py_spy_is_bounded(look, py_spy, tmp_path):
    py_spy(
        f"import mmap\n{WHEN_BOUNDED}"
        "memory = mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        f"open({str(tmp_path / 'had')!r}, 'w')\n"
    )
    with pytest.raises(SourceError, match="read no stack"):
        look()
    assert not (tmp_path / "had").exists()


@LOOKS
def test_the_output_of_py_spy_is_bounded(look, py_spy, tmp_path, monkeypatch):
    monkeypatch.setattr(dump, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(dump, "NATIVE_PATIENCE_SECONDS", 2.0)
    py_spy(
        f"import os\n{WHEN_BOUNDED}"
        f"for _ in range(80): os.write(1, b'[' * (1 << 20))\nopen({str(tmp_path / 'wrote')!r}, 'w')\n"
    )
    with pytest.raises(SourceError):
        look()
    assert not (tmp_path / "wrote").exists()


@pytest.mark.parametrize(
    ("thread", "complaint"),
    [
        ({"frames": [{**FRAME, "line": -1}, FRAME]}, None),
        ({"frames": [{**FRAME, "line": 10**30}]}, None),
        ({"frames": [{**FRAME, "line": 2**31}]}, None),
        ({"frames": [FRAME], "os_thread_id": -7}, "int` >= 0"),
        ({"frames": [FRAME], "os_thread_id": 10**30}, "int` <= 4294967295"),
    ],
)
def test_impossible_lines_and_thread_ids_are_left_out_or_refused(thread, complaint):
    data = json.dumps([thread, {"frames": [FRAME], "thread_name": "sound"}]).encode()
    if complaint:
        with pytest.raises(ValueError, match=complaint):
            dump.parse(data)
    else:
        assert [thread.thread_name for thread in dump.parse(data)] == ["sound"]


def test_a_number_and_an_answer_that_are_too_long_are_refused():
    with pytest.raises(ValueError, match="out of range"):
        dump.parse(b'[{"frames": [], "os_thread_id": ' + b"9" * 5000 + b"}]")
    with pytest.raises(ValueError, match="or more"):
        dump.parse(b"[" + b" " * dump.MOST_BYTES + b"]")


def test_a_valid_dump_can_be_recorded():
    threads = dump.parse(json.dumps([{"frames": [FRAME, {"name": ""}], "os_thread_id": 3}]).encode())
    builder = WindowBuilder(None, CodeOfProcesses())
    stacks = tuple(dump.threads_of(os.getpid(), threads, builder))
    assert msgspec.json.encode(StackDump(time=1.0, frames=builder.result()[0], threads=stacks))
    assert len(stacks) == 1 and len(stacks[0].frames) == 2
