"""What the bench of faults judges by: the screen it reads, the terminal it holds to be restored, its counting."""

from __future__ import annotations

import random
import sys
import time

import faults
from fault_screen import OnTerminal, Screen, _Awake


def test_what_is_written_stands_where_it_was_put_however_it_arrives():
    written = "\x1b[?1049h\x1b[2J\x1b[2;3H\x1b[1;31mhook●\x1b[0m\x1b[4;1Hlong line\x1b[4;5H\x1b[K".encode()
    whole, pieces = Screen(), Screen()
    whole.feed(written)
    for at in range(len(written)):
        pieces.feed(written[at : at + 1])
    assert whole.text() == pieces.text()
    assert whole.text().splitlines()[:4] == ["", "  hook●", "", "long"]


def test_only_what_is_written_after_the_screen_was_left_counts_as_last_words():
    screen = Screen()
    screen.feed(b"before\x1b[?1049h\x1b[1;1Hon the screen\x1b[?1049l")
    screen.feed(b"aitop: bye\r\n")
    assert screen.left == "aitop: bye\r\n"
    assert "on the screen" not in screen.text()


def test_a_terminal_that_was_not_given_back_is_told():
    rude = OnTerminal([sys.executable, "-S", "-c", "import tty; print('\\x1b[?1049h\\x1b[?25l'); tty.setraw(0)"])
    assert rude.wait(20) == 0
    assert rude.until("nothing", 0.0) is None
    deadline = time.monotonic() + 60
    while rude.screen.modes.get("25") is not False and time.monotonic() < deadline:
        time.sleep(0.01)
    assert rude.not_restored() == ["mode 1049 is on", "mode 25 is off", "line discipline"]
    rude.close()


def test_other_losses_are_blamed_on_the_fault_they_came_with(monkeypatch, capsys):
    class Target:
        kind = "steady"
        cleared = False

        def runs(self):
            return [["a", "b", "c", "x", "e"], ["a", "b"]]

        def clear(self):
            self.cleared = True

    target = Target()
    done = [
        faults.Time("first", target=target, first=0, last=2),
        faults.Time("second", target=target, first=2, last=5),
        faults.Time("third", target=target, first=5, last=7),
    ]
    monkeypatch.setattr(faults, "_right", {})
    monkeypatch.setattr(faults, "undisturbed", lambda kind, steps: list("abcdefg")[:steps])
    faults.compare(target, done)
    assert [one.harm for one in done] == [[], ["other losses from step 3 on"], []]
    assert [one.losses for one in done] == [2, 3, 2]
    assert target.cleared
    assert not faults.show(["first", "second"], done)
    assert "target harmed 1," in capsys.readouterr().out


def test_pieces_go_on_where_others_ended(tmp_path):
    file = tmp_path / "kept"
    faults.keep(file, [faults.Time("monitor-term", seconds=1.0, told=None), faults.Time("disk-full", told=True)])
    assert [(one.name, one.told) for one in faults.kept(file)] == [("monitor-term", None), ("disk-full", True)]
    wanted = faults.in_turn({"monitor-term": 1, "disk-full": 2, "proc-vanishes": 1}, random.Random(0))
    assert wanted[0] == "disk-full"
    assert sorted(wanted) == ["disk-full", "disk-full", "monitor-term", "proc-vanishes"]
    assert wanted[-1] == "proc-vanishes"


def test_the_time_for_which_the_bench_was_put_aside_does_not_count(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("fault_screen.time.monotonic", lambda: now[0])
    clock = _Awake()
    began = clock()
    for passed in (0.5, 0.25, 600.0, 0.25):
        now[0] += passed
        clock()
    assert clock() - began == 0.5 + 0.25 + _Awake.MOST_BETWEEN + 0.25
