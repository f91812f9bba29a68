"""A main thread that is stopped to be entered."""

from __future__ import annotations

import subprocess

import pytest

from aitop.attach import attempt, entrance
from aitop.attach.inspection import process as inspected_process
from aitop.attach.refusal import AttachRefused


@pytest.mark.parametrize(("ends", "words"), [(True, "ended"), (False, "could not be reached")])
def test_a_process_that_ends_under_our_hands_is_a_refusal(monkeypatch, ends: bool, words: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:

        def locate(pid: int, memory: object) -> None:
            if ends:
                child.kill()
                child.wait()
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(attempt, "locate_python", locate)
        with pytest.raises(AttachRefused, match=words):
            entrance.remove(child.pid)
        child.kill()


def test_a_main_thread_is_let_finish_until_it_has_run_for_some_time_or_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, slept = iter(range(0, 50_000_000, 300_000)), []
    monkeypatch.setattr(inspected_process, "main_thread_cpu_ns", lambda pid: next(runs) + 1)
    monkeypatch.setattr(inspected_process, "main_thread_state", lambda pid: "R")
    monkeypatch.setattr(inspected_process.time, "sleep", slept.append)
    inspected_process.let_it_finish(1, cpu_ns=1_000_000, least_s=0.005, most_s=60)
    assert slept == [0.005, 0.001, 0.001, 0.001]
    slept.clear()
    monkeypatch.setattr(inspected_process, "main_thread_state", lambda pid: "S")
    inspected_process.let_it_finish(1, cpu_ns=10**9, least_s=0.005, most_s=60)
    assert slept == [0.005]
    monkeypatch.setattr(inspected_process, "main_thread_cpu_ns", lambda pid: 0)
    monkeypatch.setattr(inspected_process, "main_thread_state", lambda pid: "R")
    inspected_process.let_it_finish(1, cpu_ns=10**9, least_s=0.005, most_s=60)
    assert slept == [0.005, 0.005]
