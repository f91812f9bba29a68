"""A short run of the fuzzer on each of its subjects; `tests/bench/fuzz.py --minutes N` is the long one."""

from __future__ import annotations

import pytest
from fuzz import Lines, feed, fuzz
from fuzz_subjects import SUBJECTS, Subject, forget_ring

INPUTS = {"ring": 250, "recording": 40, "spy": 250, "dump": 250, "trace": 250, "notes": 250, "elf": 250}


@pytest.fixture(autouse=True)
def _no_ring_is_left():
    yield
    forget_ring()


@pytest.mark.parametrize("name", INPUTS)
def test_a_few_inputs(name, tmp_path, capsys):
    assert fuzz(SUBJECTS[name], 60.0, 4, tmp_path, most=INPUTS[name]) == 0, capsys.readouterr().out
    assert f"{name}: {INPUTS[name]} inputs" in capsys.readouterr().out


def test_it_finds_what_there_is_to_find(tmp_path):
    def fussy(data):
        if b"\x1b" in data:
            raise ValueError("an escape")

    subject = Subject("fussy", lambda: [b'{"name": "x"}'], fussy, lambda data: [(0, len(data))])
    assert fuzz(subject, 60.0, 1, tmp_path, most=300) == 1
    [kept] = tmp_path.iterdir()
    assert b"\x1b" in kept.read_bytes()
    assert "ValueError" in (feed(subject, kept.read_bytes(), None)[1] or "")


def test_new_ways_through_the_code_are_noticed():
    spy, lines = SUBJECTS["spy"], Lines()
    feed(spy, b"[]", lines)
    few = len(lines.seen)
    feed(spy, spy.seeds()[0], lines)
    assert 0 < few < len(lines.seen)
