"""Which rows of a list the words of a filter leave."""

from __future__ import annotations

import pytest

from aitop.ui.state import matches


@pytest.mark.parametrize(
    ("wanted", "texts", "kept"),
    [
        ("", ("anything",), True),
        ("  ", (), True),
        ("decode", ("D.__getitem__", "/x/decode.py"), True),
        ("decode getitem", ("D.__getitem__", "/x/decode.py"), True),
        ("getitem decode", ("D.__getitem__", "/x/decode.py"), True),
        ("decode forward", ("D.__getitem__", "/x/decode.py"), False),
        ("dataset", ("MyDataset",), True),
        ("Dataset", ("MyDataset",), True),
        ("DataSet", ("MyDataset",), False),
        ("!worker", ("loader-worker",), False),
        ("!worker", ("rank",), True),
        ("rank !4242", ("rank", "4242"), False),
        ("!", ("rank",), True),
        ("rank", (None,), False),
    ],
)
def test_every_word_must_be_found_in_the_row(wanted: str, texts: tuple[str | None, ...], kept: bool) -> None:
    assert matches(wanted, *texts) is kept
