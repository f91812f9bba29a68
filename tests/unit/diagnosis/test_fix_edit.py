"""The line of the user's own source that a fix changes."""

import pytest

from aitop.diagnosis.fix_edit import edit_of, editable
from aitop.model.verdict import Fix, Setting

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


def fix_that_sets(values):
    """A fix whose sentence says nothing; `values` has the name and the new value of its setting, or nothing."""
    setting = next((Setting(name=name, to=value) for name, value in values.items()), None)
    return Fix(text="change it", setting=setting)


def numbered(text):
    return list(enumerate(text.splitlines(), 1))


@pytest.mark.parametrize(
    ("fix", "script", "number", "after"),
    [
        ({"num_workers": 7}, SCRIPT, 9, "        num_workers=7,"),
        ({"batch_size": 64}, SCRIPT, 8, "        batch_size=64,"),
        ({"num_workers": 4}, "l = DataLoader(data, 16)", 1, "l = DataLoader(data, 16, num_workers=4)"),
        ({"num_workers": 4}, "l = DataLoader(data, num_workers=args.w)", 1, "l = DataLoader(data, num_workers=4)"),
        ({"num_workers": 2}, "make(num_workers = n, x=1)", 1, "make(num_workers = 2, x=1)"),
        ({"num_workers": 4}, "iter(DataLoader(data, f(1)))", 1, "iter(DataLoader(data, f(1), num_workers=4))"),
        ({"num_workers": 8}, "    num_workers=4,  # few, small", 1, "    num_workers=8,  # few, small"),
        ({"num_workers": 8}, "DataLoader(data, 4, )", 1, "DataLoader(data, 4, num_workers=8)"),
        ({"num_workers": 8}, "DataLoader(F('a)b'), 4)", 1, "DataLoader(F('a)b'), 4, num_workers=8)"),
        ({"num_workers": 8}, "DataLoader(f('#'), num_workers=2)", 1, "DataLoader(f('#'), num_workers=8)"),
        ({"num_workers": 8}, "DataLoader()", 1, "DataLoader(num_workers=8)"),
        ({"num_workers": 8}, "DataLoader(data)  # all (of it)", 1, "DataLoader(data, num_workers=8)  # all (of it)"),
    ],
)
def test_a_fix_that_sets_a_keyword_becomes_an_edit(fix, script, number, after):
    edit = edit_of(fix_that_sets(fix), numbered(script))
    assert (edit.number, edit.after) == (number, after)
    assert edit.before == script.splitlines()[number - 1]


@pytest.mark.parametrize(
    ("fix", "script"),
    [
        ({"num_workers": 7}, "num_workers = 2\nx = num_workers"),
        ({"num_workers": 7}, "DataLoader(data, num_workers=min(4, n))"),
        ({"batch_size": 64}, "l = DataLoader(data, 16)"),
        ({}, SCRIPT),
        ({"processes": 7}, "make(processes=2)"),
        ({"num_workers": 7}, ""),
        ({"num_workers": 7}, "DataLoader(data, f("),
        ({"num_workers": 7}, "class DataLoader(Base):"),
        ({"num_workers": 7}, "# as DataLoader(data)"),
        ({"num_workers": 7}, "log('a DataLoader(data)')"),
    ],
)
def test_where_no_line_sets_it_there_is_no_edit(fix, script):
    assert edit_of(fix_that_sets(fix), numbered(script)) is None


@pytest.mark.parametrize(
    "text",
    [
        'print(f"num_workers={n}")',
        'print("num_workers=", n)',
        'logger.info("workers: num_workers=%d", n)',
        "'''\nDataLoader(data, num_workers=2)\n'''",
        "'''\nDataLoader(data)\n'''",
    ],
)
def test_what_a_string_says_is_not_edited(text):
    loader = "l = DataLoader(data, num_workers=n)"
    edit = edit_of(fix_that_sets({"num_workers": 8}), numbered(f"{text}\n{loader}"))
    assert (edit.before, edit.after) == (loader, "l = DataLoader(data, num_workers=8)")
    assert edit_of(fix_that_sets({"num_workers": 8}), numbered(text)) is None


@pytest.mark.parametrize(
    ("lines", "after"),
    [
        (["v = DataLoader(val, num_workers=0)", "t = DataLoader(data, num_workers=2)"], "num_workers=8"),
        (["v = DataLoader(val, num_workers=n)", "t = DataLoader(data, num_workers=2)"], "num_workers=8"),
        (["v = DataLoader(val, num_workers=0)", "t = DataLoader(data, num_workers=n)"], "num_workers=8"),
        (["v = DataLoader(val)", "v = DataLoader(val, num_workers=0)"], None),
    ],
)
def test_the_loader_with_the_value_of_now_is_edited(lines, after):
    fix = Fix(text="change it", setting=Setting(name="num_workers", to=8, current=2))
    edit = edit_of(fix, numbered("\n".join(lines)))
    assert (edit and (edit.number, edit.after)) == (after and (2, f"t = DataLoader(data, {after})"))


def test_the_sentence_of_a_fix_is_not_read():
    assert edit_of(Fix(text="num_workers 2 → 7"), numbered(SCRIPT)) is None
    assert not editable(Fix(text="num_workers 2 → 7"))
