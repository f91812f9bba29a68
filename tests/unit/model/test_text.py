"""Text of unknown origin, made safe to show."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitop import cli
from aitop.model.text import escaped_json, printable
from aitop.sources import plausible, procfs
from aitop.ui.widgets.line import Line, wrap
from aitop.ui.words import one_line

# What moves a cursor, changes a colour, reverses reading or breaks a line.
UNSAFE = st.text(st.characters(categories=("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")) | st.sampled_from("a 1é字"))


@given(st.text() | UNSAFE)
def test_nothing_that_a_terminal_obeys_gets_through(text):
    shown = printable(text)
    assert not {unicodedata.category(sign) for sign in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown
    assert [sign for sign in shown if sign not in " ·"] == [
        sign for sign in text if sign.isprintable() and sign not in " ·"
    ]


@given(UNSAFE)
def test_whatever_is_shown_went_through_it(text):
    name = plausible.clean(text)
    passed = [procfs.shown([text]), Line(text).text, one_line(text), "".join(wrap(text, 5)), name or ""]
    assert all(shown.isprintable() for shown in passed)


@given(st.lists(st.text() | UNSAFE, max_size=3))
def test_json_says_the_same_without_it(texts):
    written = json.dumps(texts, ensure_ascii=False, indent=1)
    shown = escaped_json(written)
    assert shown.replace("\n", "").isprintable()
    assert json.loads(shown) == texts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\r\nb", "a  b"),
        ("\tx", "    x"),
        ("\x1b[31mred", "·[31mred"),
        ("ab\u202ecd", "ab·cd"),
        ("\x9b2J", "·2J"),
        ("żółć 字", "żółć 字"),
    ],
)
def test_control_characters_are_replaced(text, shown):
    assert printable(text) == shown


def test_complaints_are_one_line(capsys):
    cli.say("no\nsuch \x1b[2Jfile")
    assert capsys.readouterr().err == "aitop: no such ·[2Jfile\n"
