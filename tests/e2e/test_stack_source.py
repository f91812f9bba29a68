"""py-spy on real processes."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from waiting import until

from aitop.model.event import Sample
from aitop.model.stacks import StackWindow
from aitop.sources import procfs
from aitop.sources.source import SourceError
from aitop.sources.stacks import source as stack_source
from aitop.sources.stacks.source import StackSource
from aitop.sources.stacks.spy import PySpy
from aitop.stacks.view import StackView

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
HANG = 120.0

TRAINING = """
    import subprocess, time
    import torch
    from torch.utils.data import DataLoader, Dataset


    class Images(Dataset):
        def __len__(self):
            return 1_000_000

        def __getitem__(self, index):
            time.sleep(0.0)
            return slow(index)


    def slow(index):
        end = time.perf_counter() + 0.01
        while time.perf_counter() < end:
            total = sum(range(2000))
        return torch.ones(8)


    if __name__ == "__main__":
        torch.set_num_threads(1)
        child = subprocess.Popen(["sleep", "300"])
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            for step, x in enumerate(DataLoader(Images(), batch_size=4, num_workers=2)):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
                if step == 3:
                    print("steps", flush=True)
        finally:
            child.kill()
"""

BUSY = """
    import threading, time

    def spin():
        total = 0
        while True:
            for _ in range(20_000):
                total += 1
            # Other processes want a core, too.
            time.sleep(0.001)

    def nap():
        threading.Event().wait()

    threading.Thread(target=nap, name="napper", daemon=True).start()
    print("ready", flush=True)
    spin()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def busy(start: Start) -> subprocess.Popen[str]:
    return start(textwrap.dedent(BUSY))


def windows_of(source: StackSource, least: int) -> list[StackWindow]:
    """Windows until the main threads have at least `least` samples each."""
    source.open()
    windows: list[StackWindow] = []
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline:
        windows += [sample for sample in source.read() if isinstance(sample, StackWindow)]
        counts: Counter[int] = Counter()
        for window in windows:
            for stack in window.stacks:
                counts[stack.pid] += stack.count * stack.main
        if counts and min(counts.values()) >= least:
            return windows
        time.sleep(source.interval)
    pytest.fail(f"only {counts} samples in {HANG} s")


def test_a_training_run_with_workers_and_a_foreign_child_below_a_shell(tmp_path: Path, start: Start) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(TRAINING))
    shell = start(["bash", "-c", '"$@"; exit', "bash", sys.executable, str(script)], stderr=subprocess.DEVNULL)
    source = StackSource([shell.pid], script=str(script))
    windows = windows_of(source, 50)
    [rank] = psutil.Process(shell.pid).children()
    workers = {child.pid for child in rank.children() if child.name() != "sleep"}
    assert windows[0].seconds in (1.0, 2.0)
    on_cores = {look.pid for window in windows for look in window.looks if look.kind == "cpu"}
    assert rank.pid in on_cores
    assert on_cores & workers
    assert all(window.looks for window in windows[:3])
    assert {state.pid for state in windows[0].states} == {rank.pid, *workers}
    stacks = StackView().view(windows, {}, 0.0)
    assert stacks is not None
    by_pid = {process.pid: process for process in stacks.processes}
    assert set(by_pid) == {rank.pid, *workers}
    assert (by_pid[rank.pid].phases.data_wait or 0.0) > 0.5
    for worker in workers:
        heaviest = next(line for line in stacks.lines if line.pid == worker)
        assert heaviest.function.endswith("slow")
        assert heaviest.file == str(script)
        assert heaviest.text is not None
        assert heaviest.role == "loader-worker"
        inside = sum(line.share for line in stacks.lines if line.pid == worker and line.function.endswith("slow"))
        assert inside > 0.6
    waiting = next(line for line in stacks.lines if line.pid == rank.pid)
    assert (waiting.phase, waiting.activity) == ("data_wait", "wait-queue")
    assert waiting.text is not None
    assert waiting.text.startswith("for step, x in")


def test_threads_have_names_and_one_is_the_main_one(busy: subprocess.Popen[str]) -> None:
    source = StackSource([busy.pid], script=None)
    windows = windows_of(source, 15)
    names = {(stack.thread, stack.main) for window in windows for stack in window.stacks}
    assert names == {("MainThread", True), ("napper", False)}
    user = {frame.function for window in windows for frame in window.frames if frame.user}
    assert {"spin", "nap"} <= user
    assert not {"wait", "Event.wait"} & user


def test_a_target_that_dies_in_a_window_ends_it(busy: subprocess.Popen[str]) -> None:
    source = StackSource([busy.pid], script=None)
    source.open()
    threading.Timer(0.6, busy.kill).start()
    began = time.monotonic()
    source.read()
    assert time.monotonic() - began < HANG
    with pytest.raises(SourceError, match="has ended") as ended:
        source.read()
    assert ended.value.state == "absent"


def test_a_py_spy_that_takes_too_long_is_said_to_have_had_no_answer(
    busy: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(stack_source, "find_py_spy", lambda: str(slow))
    monkeypatch.setattr(stack_source, "GRACE_SECONDS", 1.0)
    source = StackSource([busy.pid], script=None)
    source.open()
    with pytest.raises(SourceError) as failed:
        source.read()
    assert (failed.value.state, failed.value.reason) == ("failed", "py-spy had no answer in 2 s")


def test_an_interrupted_read_ends_and_leaves_no_child(
    busy: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_source, "WINDOW_SECONDS", 30)
    source = StackSource([busy.pid], script=None)
    source.open()
    source.read()
    reads: list[object] = []
    reader = threading.Thread(target=lambda: reads.append(source.read()))
    reader.start()
    until(_spies, HANG)
    source.interrupt()
    reader.join(HANG)
    assert reads == [[]]
    assert not _spies()
    assert busy.poll() is None


def test_a_read_that_is_to_finish_gives_what_was_seen_and_leaves_no_child(
    busy: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_source, "WINDOW_SECONDS", 30)
    source = StackSource([busy.pid], script=None)
    source.open()
    source.read()
    samples: list[Sample] = []
    reader = threading.Thread(target=lambda: samples.extend(source.read()))
    reader.start()
    until(_spies, HANG)
    time.sleep(1.5)
    source.finish()
    reader.join(HANG)
    assert not _spies()
    [window] = samples
    assert isinstance(window, StackWindow)
    assert 0.0 < window.seconds < 10.0
    main = sum(stack.count for stack in window.stacks if stack.main)
    # Where py-spy comes late it makes up for it.
    assert 0 < main <= 1.5 * window.rate * window.seconds
    assert all(0 < look.asked < 100 * 10 for look in window.looks)
    assert busy.poll() is None


def _spies() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "py-spy" in child.name()]


def test_no_file_is_left_behind(busy: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "temporary"
    empty.mkdir()
    monkeypatch.setenv("TMPDIR", str(empty))
    monkeypatch.chdir(empty)
    before = len(os.listdir("/proc/self/fd"))
    source = StackSource([busy.pid], script=None)
    windows_of(source, 10)
    assert list(empty.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_is_no_python_says_so(start: Start) -> None:
    process = start(["sleep", "60"], wait=False)
    until(lambda: procfs.stat(process.pid).comm == "sleep")
    with pytest.raises(SourceError, match="no Python") as refused:
        StackSource([process.pid], script=None).open()
    assert refused.value.state == "absent"


def test_a_process_that_is_gone_says_so() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(SourceError, match="has ended"):
        StackSource([process.pid], script=None).open()


def test_without_py_spy_the_remedy_is_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="not installed") as refused:
        StackSource([os.getpid()], script=None).open()
    assert (refused.value.state, refused.value.remedy) == ("absent", "pip install py-spy")


def test_another_users_process_is_denied_with_the_reason(busy: subprocess.Popen[str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    code = f"""
        from aitop.sources.stacks.source import StackSource
        from aitop.sources.source import SourceError
        import os
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        source = StackSource([{busy.pid}], script=None)
        source.open()
        try:
            source.read()
        except SourceError as error:
            print(error.state, "|", error.reason, "|", error.remedy)
    """
    # Changed only once everything is imported: the other user may not read this installation.
    asked = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    if "not installed" in asked.stderr:
        pytest.skip("another user cannot reach this py-spy")
    state, reason, remedy = asked.stdout.strip().split(" | ")
    assert state == "denied"
    assert "belongs to user root" in reason
    assert "sudo" in remedy


def test_py_spy_shares_the_cores_of_our_session_but_gets_no_ctrl_c():
    spy = PySpy("sleep", ["5"])
    try:
        assert os.getpgid(spy._child.pid) == spy._child.pid
        assert os.getsid(spy._child.pid) == os.getsid(0) or sys.version_info < (3, 11)
    finally:
        spy.stop()
