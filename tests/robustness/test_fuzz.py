"""A short run of the fuzzer on each of its subjects; `fuzz.py --minutes N` is the long one."""

from __future__ import annotations

import pytest
from fuzz import fuzz
from fuzz_subjects import SUBJECTS, forget_ring

INPUTS = {"ring": 250, "recording": 40, "spy": 250, "dump": 250, "trace": 250, "metrics": 250, "notes": 250, "elf": 250}


@pytest.fixture(autouse=True)
def _no_ring_is_left():
    yield
    forget_ring()


@pytest.mark.parametrize("name", INPUTS)
def test_a_few_inputs(name, tmp_path, capsys):
    assert fuzz(SUBJECTS[name], 60.0, 4, tmp_path, most=INPUTS[name]) == 0, capsys.readouterr().out
    assert f"{name}: {INPUTS[name]} inputs" in capsys.readouterr().out
