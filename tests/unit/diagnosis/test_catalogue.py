"""The catalogue of verdicts, and the verb that prints it."""

import re
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitop import cli
from aitop.commands.explain import explanation
from aitop.diagnosis import catalogue
from aitop.diagnosis.rules import RULES

PAGES = files(catalogue).joinpath("pages")


def test_every_rule_has_a_page_and_every_page_an_id():
    assert {rule.id for rule in RULES} == set(catalogue.IDS)
    assert {entry.name for entry in PAGES.iterdir()} == {f"{verdict}.txt" for verdict in catalogue.IDS}
    assert len(set(catalogue.IDS)) == len(catalogue.IDS)


@pytest.mark.parametrize("verdict", catalogue.IDS)
def test_a_page_has_all_parts_and_fits_a_terminal(verdict):
    page = catalogue.page(verdict)
    assert page.id == verdict and page.summary and not page.summary.endswith(".")
    assert tuple(title for title, _ in page.parts) == catalogue.PARTS
    for title, blocks in page.parts:
        assert sum(len(block.text) for block in blocks) > 40, title
    code = [block for part in ("How to be sure", "How to fix") for block in dict(page.parts)[part]]
    assert any(block.kind == "code" for block in code), "a fix is shown, not only told"
    raw = PAGES.joinpath(f"{verdict}.txt").read_text(encoding="utf-8")
    assert max(map(len, raw.splitlines())) <= 76


def test_a_page_reads_well_in_any_width():
    page = catalogue.page("input-bound")
    for width in (40, 80, 200):
        lines = explanation(page, width).splitlines()
        code = {
            f"    {line}" for _, blocks in page.parts for b in blocks if b.kind == "code" for line in b.text.split("\n")
        }
        assert all(len(line) <= min(width, 80) for line in lines if line not in code)
    text = explanation(page, 80)
    assert text.startswith("input-bound: the step waits for its data\n\nWhat it is\n\n")
    assert "\n- workers: there are too few of them, and cores to run more\n- transform:" in text
    assert "\n- environment: reinforcement learning waits for the environment's steps\n" in text
    assert "\n    DataLoader(..., num_workers=6, persistent_workers=True,\n               prefetch_factor=4" in text


def explain(capsys, *arguments):
    code = cli.run(["explain", *arguments])
    return code, *capsys.readouterr()


def test_explain_prints_the_page_and_without_an_id_lists_all_of_them(capsys):
    code, out, err = explain(capsys, "fragmentation")
    assert (code, err) == (0, "")
    assert "expandable_segments:True" in out and out.endswith("reaches the end.\n")
    assert explain(capsys, "Fragmentation")[1] == out
    code, out, _ = explain(capsys)
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert [verdict for verdict in catalogue.IDS if not re.search(rf"^  {verdict} ", out, re.MULTILINE)] == []


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("input", "there is no verdict 'input'; did you mean input-bound"),
        ("fragmentatoin", "there is no verdict 'fragmentatoin'; did you mean fragmentation"),
        ("gil", "there is no verdict 'gil'; did you mean gil-contention"),
        ("memory_leak", "there is no verdict 'memory_leak'; did you mean memory-leak"),
        ("\x1b[2Jqqqq", "`aitop explain` lists them"),
    ],
)
def test_an_unknown_id_is_answered_with_the_nearest_or_the_list(capsys, word, answer):
    code, out, err = explain(capsys, word)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("aitop: ") and answer in err and "\x1b" not in err


@given(st.text())
def test_nearest_takes_any_word(word):
    assert set(catalogue.nearest(word)) <= set(catalogue.IDS)
