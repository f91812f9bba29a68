"""While memory rises, the user's files are read for what grows: each once, beside the watching."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest
from recorded_runs import played
from repository import ROOT
from snapshot_builder import line, snapshot, steps

from aitop.engine import growth
from aitop.engine.growth import GrowthFinder
from aitop.model.host import ProcessId
from aitop.model.snapshot import Series
from aitop.sources.code.growth import growth_sites
from aitop.sources.replay import Recording

TESTS = ROOT / "tests"


LEAKS = {
    ROOT / "aitop/workloads/leak.py": ("history.append(loss)", True),
    TESTS / "accuracy/scenarios/bridge_strain.py": ("kept.setdefault(name, []).append(output.detach())", False),
    TESTS / "accuracy/scenarios/attention_maps.py": ("self.maps.append(weights.mean(1))", False),
    TESTS / "accuracy/scenarios/hard_examples.py": ("self.seen.extend(losses.tolist())", False),
}


@pytest.mark.parametrize("script", LEAKS, ids=lambda script: script.stem)
def test_the_stacks_of_a_run_that_leaks_lead_to_its_line(script, rising, monkeypatch):
    reads = []
    monkeypatch.setattr(growth, "growth_sites", lambda *what: reads.append(what) or ())
    finder = GrowthFinder(os.getpid(), lambda event: None)
    for seen in played(Recording(TESTS / f"accuracy/recordings/{script.stem}.t3.jsonl.gz"), every=4):
        finder.consider(seen)
        wait_for_reader(finder)
    texts, models, steps = reads[-1]
    own = {file: script.read_text() for file in texts if file.endswith(f"/{script.name}")}
    (site,) = growth_sites(own, models, steps)
    assert (site.text, site.keeps_graph) == LEAKS[script]


@pytest.fixture
def rising(monkeypatch):
    monkeypatch.setattr(growth, "rises", lambda snapshot: True)


def look(finder, *lines):
    finder.consider(snapshot(lines=lines))


@pytest.mark.parametrize(("grows", "read"), [(0, False), (1, True)])
def test_code_is_read_only_while_memory_rises(tmp_path, grows, read):
    """Reading beside a server took 0.3 s of CPU, and most runs have no leak."""
    sent = []
    finder = GrowthFinder(os.getpid(), sent.append)
    lines = (line("main", 0.5, file=str(tmp_path / "train.py")),)
    points = tuple((960.0 + second, 1e9 + grows * second * 5e6) for second in range(40))
    times, values = zip(*points, strict=True)
    finder.consider(snapshot(steps(), lines=lines, series={"rss": Series(times=times, values=values)}))
    wait_for_reader(finder)
    assert bool(sent) is read


def wait_for_reader(finder):
    """Wait until the thread that reads has ended, if one was started."""
    if finder._reader is not None:
        finder._reader.join(10)
        assert not finder._reader.is_alive()


def test_a_file_is_read_once(tmp_path, rising):
    file = tmp_path / "train.py"
    file.write_text("seen = []\nfor step in range(9):\n    seen.append(step)\n")
    sent = []
    finder = GrowthFinder(os.getpid(), sent.append)
    for _ in range(2):
        look(finder, line("main", 0.5, pid=os.getpid(), file=str(file)))
        wait_for_reader(finder)
    [event] = sent
    assert [(site.line, site.text) for site in event.sites] == [(3, "seen.append(step)")]


def test_code_of_libraries_is_not_read(rising, monkeypatch):
    """A server that is a library altogether has lines of the standard library on its stacks."""
    read = []
    monkeypatch.setattr(growth, "growth_sites", lambda texts, models, steps: read.extend(texts) or ())
    finder = GrowthFinder(os.getpid(), lambda event: None)
    look(finder, line("Thread.run", 0.5, file=threading.__file__), line("main", 0.5))
    wait_for_reader(finder)
    assert read == ["/x/train.py"]


def test_stacks_say_which_lines_call_the_model_and_which_update_it(rising, monkeypatch):
    """Those above the library: a loop over the layers of the model makes no steps."""
    read = []
    monkeypatch.setattr(growth, "growth_sites", lambda texts, models, steps: read.append((models, steps)) or ())
    finder = GrowthFinder(os.getpid(), lambda event: None)

    def seen(*lines):
        look(finder, *lines)
        wait_for_reader(finder)

    main = ("main", 5, None)
    forward = line("Net.forward", 0.3, phase="forward", number=40, via=(main,), callers=1)
    seen(forward, line("main", 0.1, number=9, callers=1))
    seen(forward)
    update = line("train", 0.3, phase="backward", number=21, via=(main,), callers=2)
    validation = line("train", 0.1, phase="evaluation", number=23, via=(main,), callers=2)
    seen(forward, update, validation)
    file = "/x/train.py"
    assert read == [
        ({(file, 5)}, frozenset()),
        ({(file, 5), (file, 23)}, {(file, 5), (file, 21)}),
    ]


def test_each_file_is_read_as_the_process_that_runs_it(tmp_path, monkeypatch, rising):
    came, asked = threading.Event(), []

    class Code:
        def of(self, pid):
            process = ProcessId(1 if pid in (1, 2) else pid, 1.0)
            return SimpleNamespace(process=process, text=lambda file: asked.append((pid, file)))

    monkeypatch.setattr(growth, "CodeOfProcesses", Code)
    finder = GrowthFinder(1, lambda event: came.set())
    files = [str(tmp_path / name) for name in ("a.py", "b.py")]
    look(finder, *(line("main", 0.5, pid=pid, file=file) for pid, file in zip((2, 3), files, strict=True)))
    assert came.wait(10)
    assert sorted(asked) == [(2, files[0]), (3, files[1])]


def test_a_hanging_file_system_holds_nothing_up(tmp_path, monkeypatch, rising):
    released = threading.Event()
    monkeypatch.setattr(growth, "growth_sites", lambda *read: released.wait(10) and ())
    sent = []
    finder = GrowthFinder(os.getpid(), sent.append)
    for number in range(3):
        look(finder, line("main", 0.5, file=str(tmp_path / f"{number}.py")))
    assert sent == []
    released.set()
