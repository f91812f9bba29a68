"""What the documents tell people to type is what there is, and what they name exists."""

import importlib
import re
import shlex

import pytest
import results
from repository import ROOT

import aitop
from aitop import cli

PACKAGE = ROOT / "aitop"
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = (
    "README.md", "SECURITY.md", "SCRIPTING.md", "CONTRIBUTING.md", "CHANGELOG.md", "aitop/README.md",
    "tests/bench/README.md", "tests/accuracy/README.md", "tests/fakes/nvml/README.md",
)  # fmt: skip
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
MAP = TEXTS["aitop/README.md"]


def console(text):
    """The lines of the blocks that people type."""
    return [line for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


def heading(title):
    """The anchor that a heading gets on GitHub."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


CONSOLE = console(README)
EXAMPLES = [line for text in TEXTS.values() for line in console(text) if line.startswith("aitop")]
EXAMPLES = [line.split("#")[0].split("|")[0].strip() for line in EXAMPLES]
EXAMPLES += [line.split("  ")[1] for line in cli.EXAMPLES.splitlines() if line.startswith("  aitop")]


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_is_understood(line):
    program, *arguments = shlex.split(line)
    assert program == "aitop"
    assert callable(cli.parse(arguments).run)


def test_there_are_examples_of_every_verb():
    in_readme = [line for line in CONSOLE if line.startswith("aitop")]
    assert {"aitop", *cli.VERBS} <= {word for line in in_readme for word in line.split("#")[0].split()[:2]}


def test_the_documented_tests_are_those_of_the_check():
    install, test = CONSOLE[1].split(" && ")[1:]
    check = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert test in check
    assert install in [line.replace("install -q", "install") for line in check]


def test_the_readme_is_short():
    assert len(README.splitlines()) < 150


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_somewhere(name):
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[name]):
        file, _, anchor = link.partition("#")
        if "://" in file:
            continue
        target = (ROOT / name).parent / file if file else ROOT / name
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(heading, titles), link


def test_the_readme_leads_to_every_document():
    linked = set(re.findall(r"\]\(([\w./]+\.md)\)", README))
    assert linked >= set(DOCUMENTS) - {"README.md", "tests/fakes/nvml/README.md"}


def test_every_document_is_in_the_source_distribution():
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    included = settings.partition("[tool.hatch.build.targets.sdist]")[2].partition("\n[")[0]
    assert [name for name in DOCUMENTS if f'"{name.split("/")[0]}"' not in included] == []


PROMISES = TEXTS["SECURITY.md"].partition("## The promises\n")[2].partition("\n## ")[0].split("### ")[1:]


@pytest.mark.parametrize("promise", PROMISES, ids=[promise.splitlines()[0] for promise in PROMISES])
def test_every_promise_names_tests_that_exist(promise):
    named = re.findall(r"`(tests/[\w/.]+)`", promise)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_faults_that_are_counted_are_those_of_the_bench():
    from faults import FAULTS

    (counted,) = re.findall(r"`tests/robustness/faults\.py`: (\d+) faults", TEXTS["SECURITY.md"])
    assert int(counted) == len(FAULTS)


def test_there_are_promises():
    assert PROMISES


def test_every_exit_code_is_documented():
    from aitop import errors

    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXTS["SCRIPTING.md"], re.MULTILINE)}
    assert codes | {0, 130} == documented


def test_every_key_of_the_report_is_documented():
    from report_samples import LEDGER, snapshot

    from aitop.model.verdict import Verdict
    from aitop.outputs.report import report_of

    report = report_of(snapshot(ledgers=(LEDGER,)))
    kinds = (report, report["target"], report["ledger"][0], Verdict.__struct_fields__)
    missing = {field for kind in kinds for field in kind if f"`{field}`" not in TEXTS["SCRIPTING.md"]}
    assert missing <= {"schema"}
    assert '"schema": 1' in TEXTS["SCRIPTING.md"]


def test_every_path_on_the_map_is_there():
    named = re.findall(r"`([\w./-]+(?:/|\.\w+))`", MAP)
    paths = [path for path in named if "/" in path or path.endswith((".py", ".md"))]
    assert len(paths) > 80
    rooms = {entry.name for entry in PACKAGE.iterdir()}
    roots = {path: PACKAGE if path.split("/")[0] in rooms - {"README.md"} else ROOT for path in paths}
    # Files of a folder that stands beside them, and those of the example.
    others = {"steps.py", "parts.py", "__init__.py", "train.py", "torch/optim/"}
    assert [path for path, root in roots.items() if path not in others and not (root / path).exists()] == []


def test_every_room_is_on_the_map():
    entries = [entry for entry in PACKAGE.iterdir() if entry.name[0] not in "_." and entry.suffix in ("", ".py")]
    rooms = [entry.name + "/" * entry.is_dir() for entry in entries]
    assert [room for room in rooms if f"| `{room}`" not in MAP and f", `{room}`" not in MAP] == []


def test_the_layers_are_those_that_are_checked():
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    checked = re.findall(r'"([^"]+)"', settings.partition("\nlayers = [")[2].partition("]")[0])
    (shown,) = re.findall(r"^__main__ →[^`]+", MAP, re.MULTILINE)
    assert [" ".join(layer.split()) for layer in shown.split("→")] == checked


def test_what_rooms_import_is_on_the_map():
    rooms = {entry.name for entry in PACKAGE.iterdir() if entry.is_dir()}
    used = {room: set() for room in rooms}
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0]
        if room in rooms:
            used[room].update(re.findall(r"^ *from (?:aitop\.|\.+)(\w+)", file.read_text("utf-8"), re.MULTILINE))
    imports = {room: (names & rooms) - {room, "model"} for room, names in used.items()}
    rows = re.findall(r"^\| `(\w+)` \| `([\w ]+)` \|$", MAP, re.MULTILINE)
    shown = {room: set(names.split()) for room, names in rows}
    assert shown == {room: names for room, names in imports.items() if names}


def test_the_names_on_the_map_are_those_of_the_code():
    rooms = {entry.name for entry in PACKAGE.iterdir() if entry.is_dir()}
    named = {name for name in re.findall(r"`((?:\w+\.)+\w+)(?:\([^`]*\))?`", MAP) if name.split(".")[0] in rooms}
    assert len(named) > 20
    for name in named:
        module = aitop
        for part in name.split("."):
            # Raises where there is neither a name nor a module.
            module = getattr(module, part, None) or importlib.import_module(f"{module.__name__}.{part}")


@pytest.mark.parametrize(("name", "least"), [("README.md", 4), ("SECURITY.md", 0)])
def test_every_figure_that_a_document_quotes_is_one_of_the_benches(name, least):
    prose = re.sub(r"```.*?```", "", TEXTS[name], flags=re.DOTALL)
    quoted = re.findall(r"(\d+(?:\.\d+)?) (?:µs|ms|MB|kB|%|GB)(?!\w)|(\d+(?:\.\d+)?) ?×", prose)
    figures = {first or second for first, second in quoted}
    assert len(figures) >= least
    measured = set(re.findall(r"\d+(?:\.\d+)?", TEXTS["tests/bench/README.md"]))
    assert figures <= measured, "quote only what stands in tests/bench/README.md"


def test_the_page_of_the_benches_is_the_one_that_they_write():
    assert results.page(results.read()) == TEXTS["tests/bench/README.md"], "run python tests/bench/results.py"


def test_every_bench_is_on_the_page():
    benches = {bench.path for group in results.BENCHES.values() for bench in group}
    programs = {
        str(path.relative_to(results.TESTS))
        for folder in ("bench", "robustness", "accuracy")
        for path in (results.TESTS / folder).glob("*.py")
        if "return publish(" in path.read_text(encoding="utf-8")
    }
    assert programs <= benches
