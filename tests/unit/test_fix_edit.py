"""The line of the user's own source that a fix changes."""

import pytest

from aitop.model.verdict import Fix
from aitop.ui.screens.fix_edit import edit_of

SCRIPT = """import torch
# num_workers=1 was too few
NUM = 2
def loader(num_workers=2):
    num_workers = 3
    return DataLoader(
        data,
        batch_size=args.batch,
        num_workers=8 if args.fast else 2,
    )
"""


def numbered(text):
    return list(enumerate(text.splitlines(), 1))


@pytest.mark.parametrize(
    ("fix", "script", "number", "after"),
    [
        ("num_workers 2 → 7", SCRIPT, 9, "        num_workers=7,"),
        ("batch 16 → 64: as many launches for more samples", SCRIPT, 8, "        batch_size=64,"),
        ("num_workers 0 → 4: load while the step computes", "l = DataLoader(data, 16)", 1,
         "l = DataLoader(data, 16, num_workers=4)"),
        ("num_workers 2 → 4", "l = DataLoader(data, num_workers=args.w)", 1, "l = DataLoader(data, num_workers=4)"),
        ("num_workers 4 → 2: more only wait for a core", "make(num_workers = n, x=1)", 1,
         "make(num_workers = 2, x=1)"),
    ],
)  # fmt: skip
def test_a_fix_that_sets_a_number_becomes_an_edit(fix, script, number, after):
    found = edit_of(Fix(text=fix), numbered(script))
    assert (found.number, found.after) == (number, after)
    assert found.before == script.splitlines()[number - 1]


@pytest.mark.parametrize(
    ("fix", "script"),
    [
        ("num_workers 2 → 7", "num_workers = 2\nx = num_workers"),
        ("num_workers 2 → 7", "DataLoader(data, num_workers=min(4, n))"),
        ("batch 16 → 64", "l = DataLoader(data, 16)"),
        ("save in a thread", SCRIPT),
        ("num_workers 2 → 7", ""),
    ],
)
def test_where_no_line_tells_there_is_none(fix, script):
    assert edit_of(Fix(text=fix), numbered(script)) is None
