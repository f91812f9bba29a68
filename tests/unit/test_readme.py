"""What README tells people to type is what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from aitop import cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLE = [line for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
EXAMPLES = [line.split("#")[0].split("|")[0].strip() for line in CONSOLE if line.startswith("aitop")]
EXAMPLES += [line.split("  ")[1] for line in cli.EXAMPLES.splitlines() if line.startswith("  aitop")]


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_is_understood(line):
    program, *arguments = shlex.split(line)
    assert program == "aitop"
    assert callable(cli.parse(arguments).run)


def test_there_are_examples_of_every_verb():
    assert {"aitop", *cli.VERBS} <= {word for line in EXAMPLES for word in line.split()[:2]}


def test_the_documented_tests_are_those_of_the_check():
    install, test = CONSOLE[1].split(" && ")[1:]
    check = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert test in check
    assert install in [line.replace("install -q", "install") for line in check]


def test_what_holds_a_promise_is_there():
    promises = README.partition("### The promises")[2].partition("\n## ")[0]
    named = re.findall(r"`(tests/[\w/.]+)`|, `(test_\w+\.py)`|(?:,| and) `(\w+\.py)`", promises)
    assert len(named) > 8
    for path, test, bench in named:
        assert (ROOT / (path or f"tests/unit/{test}" * bool(test) or f"tests/bench/{bench}")).exists()


def test_every_exit_code_is_documented():
    from aitop import errors

    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert codes | {0, 130} == documented
