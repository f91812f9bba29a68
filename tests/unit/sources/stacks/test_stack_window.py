"""Of which functions the dataflow is read while stacks are sampled: it costs more than the sampling itself."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from aitop.sources.stacks import window
from aitop.sources.stacks.speedscope import RawFrame, ThreadSamples

TRAIN = """import gc
def load(step):
    return step + 1
def train():
    for step in range(9):
        batch = load(step)
        answer = model(batch)
        gc.collect()
def log():
    print("x")
"""
MODEL = ("_call_impl", "/lib/site-packages/torch/nn/modules/module.py", 1)


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    return str(file)


@pytest.fixture
def reads(monkeypatch):
    """The lines of each reading."""
    asked = []
    original = window.functions
    monkeypatch.setattr(
        window, "functions", lambda file, text, lines: asked.append(lines) or original(file, text, lines)
    )
    return asked


def built(code, script, *stacks):
    """The flows of a window with these stacks of (function, file, line), the outermost first."""
    builder = window.WindowBuilder(script, code)
    raw = [RawFrame(*frame) for stack in stacks for frame in stack]
    places, at = [], 0
    for stack in stacks:
        places.append(tuple(range(at, at + len(stack))))
        at += len(stack)
    builder.add(os.getpid(), raw, [ThreadSamples("MainThread", True, Counter(dict.fromkeys(places, 3)))])
    return [(flow.first, flow.last) for flow in builder.flows()]


def test_only_functions_that_call_the_model_or_the_collector_are_read_and_each_once(script, reads):
    code, writes = window.CodeOfProcesses(), (("log", script, 10), ("write", "/lib/python3.11/io.py", 1))
    loads = (("train", script, 6), ("load", script, 3))
    assert built(code, script, loads, writes) == []
    assert not reads
    assert built(code, script, loads, (("train", script, 7), MODEL)) == [(4, 8)]
    assert built(code, script, (("train", script, 5),)) == [(4, 8)]
    assert len(reads) == 1
    collects = window.CodeOfProcesses()
    assert built(collects, script, (("train", script, 8),)) == [(4, 8)]


def test_the_same_line_under_two_numbers_is_one_stack(script):
    """py-spy tells frames apart by how the interpreter entered them, which it does not say."""
    frames = [RawFrame("train", script, 6), RawFrame("load", script, 3), RawFrame("load", script, 3)]
    samples = [ThreadSamples("MainThread", True, Counter({(0, 1): 30, (0, 2): 10}))]
    (made,) = window.WindowBuilder(script, window.CodeOfProcesses()).counts(os.getpid(), frames, samples)
    assert made.count == 40


@pytest.mark.parametrize("names", ["from gc import collect", "import gc as g", "import gc as g, sys"])
def test_the_collector_may_have_another_name(script, names):
    calls = "collect()" if "from" in names else "g.collect()"
    with open(script, "w") as file:
        file.write(TRAIN.replace("import gc", names).replace("gc.collect()", calls))
    assert built(window.CodeOfProcesses(), script, (("train", script, 8),)) == [(4, 8)]


def test_a_text_that_changes_is_read_again(script, reads):
    code, calls = window.CodeOfProcesses(), (("train", script, 7), MODEL)
    assert built(code, script, calls) == [(4, 8)]
    with open(script, "w") as file:
        file.write("\n" + TRAIN)
    os.utime(script, (1, 1))
    assert built(code, script, (("train", script, 8), MODEL)) == [(5, 9)]
    assert len(reads) == 2


def test_a_library_tells_the_folder_of_packages_that_does_not_look_like_one(script, tmp_path):
    (tmp_path / "layer" / "jax-0.9.dist-info").mkdir(parents=True)
    files = [str(tmp_path / "layer" / "jax" / "api.py"), script, "/lib/python3.11/queue.py", MODEL[1]]
    builder = window.WindowBuilder(script, window.CodeOfProcesses())
    builder.indices(os.getpid(), [RawFrame("call", file, 1) for file in files])
    # What lies beside the script is the user's.
    assert [(frame.user, frame.packages) for frame in builder.result()[0]] == [
        (True, None), (True, None), (False, None), (False, None)
    ]  # fmt: skip
    builder = window.WindowBuilder("/elsewhere/train.py", window.CodeOfProcesses())
    builder.indices(os.getpid(), [RawFrame("call", file, 1) for file in files])
    assert [(frame.user, frame.packages) for frame in builder.result()[0]] == [
        (False, str(tmp_path / "layer")), (True, None), (False, None), (False, None)
    ]  # fmt: skip


def test_windows_share_their_frames(script):
    code, tables = window.CodeOfProcesses(), []
    for _ in range(2):
        builder = window.WindowBuilder(script, code)
        builder.indices(os.getpid(), [RawFrame("load", script, 3), RawFrame("wait", "/lib/python3.11/queue.py", 7)])
        tables.append(builder.result()[0])
    assert [first is second for first, second in zip(*tables, strict=True)] == [True, True]


def test_what_is_known_of_processes_that_come_and_go_is_bounded(script, monkeypatch):
    monkeypatch.setattr(window, "MOST_PROCESSES", 10)
    code = window.CodeOfProcesses()
    for pid in range(2**22, 2**22 + 25):
        builder = window.WindowBuilder(script, code)
        builder.add(pid, [RawFrame("load", script, 3)], [ThreadSamples("MainThread", True, Counter())])
    assert 0 < len(code.applications) <= 10
