"""How often aitop looks where cores are idle, and where none is."""

from __future__ import annotations

import pytest

from aitop.sources import pace


class Machine:
    """A clock and what /proc/stat says, for a machine of two cores of which `idle` are idle."""

    def __init__(self, monkeypatch):
        self.now, self.idle, self.counted = 100.0, 1.0, 5000.0
        monkeypatch.setattr(pace.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(pace.time, "sleep", self.after)
        monkeypatch.setattr(pace.procfs, "text", lambda path: self.stat())

    def after(self, seconds):
        self.now += seconds
        self.counted += self.idle * seconds

    def stat(self):
        ticks = round(self.counted * pace.procfs.TICKS_PER_SECOND)
        return f"cpu  111 222 333 {ticks} 7 0 1 0 0 0\ncpu0 55 111 166 {ticks} 7 0 1 0 0 0\n"


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.mark.parametrize(("idle", "crowded"), [(0.0, True), (0.1, True), (0.5, False), (2.0, False)])
def test_the_first_answer_comes_after_a_moment(machine, idle, crowded):
    machine.idle = idle
    asked = pace.Pace()
    assert asked.crowded() is crowded
    assert machine.now == pytest.approx(100.0 + pace.FIRST_SECONDS)


def test_a_moment_in_which_no_core_is_idle_is_no_full_machine(machine):
    asked = pace.Pace()
    assert asked.crowded() is False
    machine.idle = 0.0
    machine.after(0.3)
    assert asked.crowded() is False
    machine.idle = 1.0
    machine.after(0.8)
    assert asked.crowded() is False
    machine.idle = 0.0
    machine.after(1.1)
    assert asked.crowded() is True
    machine.idle = 1.0
    machine.after(1.1)
    assert asked.crowded() is False


def test_pauses_follow_what_the_work_took_only_where_no_core_is_idle(machine):
    asked = pace.Pace()
    assert asked.pause(1.0, 0.5) == 1.0
    machine.idle = 0.0
    machine.after(2.0)
    assert asked.pause(1.0, 0.001) == 1.0
    assert asked.pause(0.25, 0.006) == pytest.approx(0.6)
    assert asked.pause(1.0, 0.5) == pace.LONGEST_PAUSE
    assert asked.pause(1.0, 0.03, 8.0) == pytest.approx(3.0)
    assert asked.pause(10.0, 0.5) == 10.0


@pytest.mark.parametrize("content", [None, "", "intr 5\n", "cpu  1 2\n"])
def test_where_the_kernel_does_not_say_nothing_is_held_back(monkeypatch, machine, content):
    monkeypatch.setattr(pace.procfs, "text", lambda path: content)
    asked = pace.Pace()
    machine.after(5.0)
    assert asked.crowded() is False and asked.pause(1.0, 9.0) == 1.0
