"""Keeps what the benches measured in results.json, and writes README.md from it.

A bench ends with `sys.exit(publish(args, figures))`: its figures replace its earlier ones, the page is written anew,
and the exit code is 4 where a bar is missed. What did less than `--quick` does is only printed. `python
tests/bench/results.py` only writes the page, and names the results that are older than the last change of the code
that they are about, and those that did less than is usual.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results.json")
MISSED_BAR = 4
PACKAGES = ("torch", "textual", "py-spy", "nvitop", "traceml-ai", "memray")

# Folders with modules that programs of several folders import; pytest has them from pyproject.toml.
SHARED = (
    "",
    "bench",
    "robustness",
    "accuracy",
    "accuracy/scenarios",
    "accuracy/serving",
    "e2e/frameworks",
    "fakes",
    "fakes/nvml",
)
sys.path += [str(TESTS / folder) for folder in SHARED]


@dataclass(frozen=True)
class Bench:
    """A program below tests/ and its arguments; `quick` is None for what takes longer than a few minutes.

    A number in `usual` is what the program does without that argument. `about` are the folders and files, from the
    root, that its figures depend on, besides the program itself and what it imports from tests/ or starts. One that
    `resumes` keeps what it has done piece by piece, and goes on from there with --resume.
    """

    path: str
    usual: str = ""
    quick: str | None = None
    resumes: bool = False
    about: tuple[str, ...] = ("aitop",)


# What benches are about, where it is less than all: the hook; the way in; what watches; what is said of it.
HOOK = ("aitop/hook", "aitop/protocol")
READING = tuple(f"aitop/sources/{name}.py" for name in ("access", "foreign_file", "process_status", "procfs"))
ATTACH = ("aitop/attach", *READING, *HOOK)
WATCHING = ("aitop/sources", "aitop/stacks", "aitop/engine", "aitop/model")
JUDGING = (*WATCHING, "aitop/diagnosis", *HOOK)

BENCHES = {
    "What watching costs the run": (
        Bench("bench/hook_cost_steps.py", "--processes 18", "--processes 3", about=HOOK),
        Bench("bench/hook_cost.py", "--rounds 7", "--rounds 2 --model mlp", about=HOOK),
        Bench("bench/everything_cost.py", "--starts 5 --seconds 60", "--starts 2 --seconds 10"),
        Bench("bench/burst_cost.py", "--bursts 5", "--bursts 2", about=(*HOOK, "aitop/engine/torch_profile.py")),
        Bench("bench/hook_cost_serving.py", "--processes 12", "--processes 3", about=HOOK),
        Bench("bench/serving_cost.py", "--pairs 6 --seconds 10", "--pairs 3 --seconds 6"),
    ),
    "Attach and detach": (
        Bench("bench/attach_pause.py", "-n 50", "-n 8", about=ATTACH),
        Bench("robustness/attach_stress.py", "-n 200", resumes=True, about=ATTACH),
        Bench("robustness/serving_stress.py", "-n 50", about=(*ATTACH, "aitop/sources")),
    ),
    "What the watcher itself costs": (
        Bench("bench/monitor_cost.py", "--start 20 --seconds 25 --rounds 2", "--start 12 --seconds 8 --rounds 1"),
        Bench("bench/growth.py", "--start 15 --seconds 20 --working 64", "--start 12 --seconds 10 --working 16"),
        Bench("bench/monitor_hour.py", "--minutes 61", "--minutes 16", about=(*JUDGING, "aitop/ui")),
        Bench("bench/serving_judge_cost.py", "--ticks 20", "--ticks 8", about=JUDGING),
        Bench("bench/export_cost.py", "", resumes=True),
        Bench("bench/export_slowdown.py", "--seconds 160", resumes=True, about=(*WATCHING, "aitop/commands")),
        Bench("bench/first_frame.py", "--rounds 5", "--rounds 2"),
        Bench("bench/fleet_scale.py", "--seconds 10", "--seconds 5"),
    ),
    "Harm, hostile input, long runs": (
        Bench("robustness/faults.py", "-n 20", resumes=True),
        Bench("robustness/rights.py", about=(*ATTACH, "aitop/sources", "aitop/commands")),
        Bench("robustness/fuzz.py", "--minutes 5"),
        Bench("robustness/soak.py", "--minutes 30"),
        Bench("robustness/export_soak.py", "--minutes 60", about=(*JUDGING, "aitop/outputs", "aitop/commands")),
    ),
    "How right the verdicts are": (
        Bench(
            "accuracy/verdicts.py", "--tiers 3,2 --mended", resumes=True, about=(*JUDGING, "tests/accuracy/scenarios")
        ),
        Bench("accuracy/ranks.py", "--gains", about=JUDGING),
        Bench("accuracy/serving/serving_verdicts.py", "", resumes=True, about=(*JUDGING, "tests/accuracy/serving")),
        Bench("bench/compare_runs.py", resumes=True, about=("aitop", "tests/accuracy/scenarios")),
    ),
}


@dataclass(frozen=True)
class Figure:
    """A line of a bench's table. `value` None was not measured; `most` or `least` is its bar.

    A figure with a bar has to be measured. Only where a program or package is missing here, `without`, it need not be.
    """

    what: str
    value: float | None
    unit: str = ""
    most: float | None = None
    least: float | None = None
    spread: str = ""
    peer: str = ""
    theirs: float | None = None
    without: str = ""

    def judged(self) -> bool:
        """Whether it has a bar."""
        return self.most is not None or self.least is not None

    def missed(self) -> bool:
        """Whether it is worse than its bar, or was not measured and should have been."""
        if self.value is None:
            return self.judged() and not self.without
        return (self.most is not None and self.value > self.most) or (
            self.least is not None and self.value < self.least
        )

    def row(self) -> str:
        """Its line in Markdown."""
        bars = (("≤", self.most), ("≥", self.least))
        bar = " ".join(f"{sign} {limit:g}" for sign, limit in bars if limit is not None)
        ours = self._with_unit(self.value) + (f" ({self.spread})" if self.spread else "")
        ours += f" (needs {self.without})" if self.without and self.value is None else ""
        ours += (" **not measured**" if self.value is None else " **missed**") if self.missed() else ""
        theirs = self._with_unit(self.theirs) if self.peer else ""
        return f"| {self.what} | {ours} | {bar} | {self.peer} | {theirs} |"

    def _with_unit(self, value: float | None) -> str:
        return number(value) if value is None else f"{number(value)} {self.unit}".strip()


def number(value: float | None) -> str:
    """Three significant digits, – where nothing was measured."""
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.3g}"


def options(doc: str | None) -> argparse.ArgumentParser:
    """The parser of a bench, with the option that every bench has. What the bench starts finds its bytecode."""
    # pip compiles what it installs: a tree that is measured in place must not be compiled anew at each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(TESTS.parent / "aitop", quiet=2)
    # What is measured is the code at the beginning, whatever is committed meanwhile.
    commit()
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="keep the figures here")
    return parser


def publish(args: argparse.Namespace, figures: Sequence[Figure], *, whole: bool = True) -> int:
    """Print the figures of the bench that runs, keep them and write the page; the exit code is 4 where a bar is missed.

    It is 4 as well where no figure has a bar: then nothing was judged. A result that is not `whole`, or that did less
    than a quick run does, is kept only in a file that was asked for.
    """
    program, file = Path(sys.argv[0]).stem, args.results
    record = {
        "date": Pieces.begun() or time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "arguments": arguments(),
        "figures": [asdict(figure) for figure in figures],
    }
    if (whole and does_enough()) or file != RESULTS:
        file.parent.mkdir(parents=True, exist_ok=True)
        records = {**read(file), program: record}
        file.write_text(json.dumps(dict(sorted(records.items())), indent=1, ensure_ascii=False) + "\n")
        file.with_name("README.md").write_text(page(records))
    else:
        print(f"\nonly printed: `{program}.py {record['arguments']}` is not all that a result is made of")
    Pieces.forget()
    print("\n" + "\n".join(table(record)))
    if not any(figure.judged() for figure in figures):
        print("no figure with a bar was measured")
        return MISSED_BAR
    return MISSED_BAR if any(figure.missed() for figure in figures) else 0


# Arguments that say where something is written or in which way it is done, and not how much of it.
PLACES = ("--results", "--recordings", "--keep")
WAYS = {*PLACES, "--resume", "--seed", "--python", "-j"}


def arguments() -> str:
    """The arguments of this program, without those that say where results and recordings were to be written."""
    words = sys.argv[1:]
    places = {at for at, word in enumerate(words) if word in PLACES}
    return shlex.join(word for at, word in enumerate(words) if at not in places and at - 1 not in places)


def does_enough() -> bool:
    """Whether this program does at least what its quick run does, and so has a result."""
    bench = benches().get(Path(sys.argv[0]).stem)
    if bench is None:
        return True
    return at_least(arguments(), bench.usual, bench.usual if bench.quick is None else bench.quick)


def at_least(words: str, *wanted: str) -> bool:
    """Whether a bench with these arguments does as much as with one of the wanted ones, which stand for all it does.

    A number may be larger. One that is not among the arguments is the usual one, as what is wanted first has it. A name
    and whatever else is not wanted makes it less: most of them choose a part.
    """
    given, usual = _by_option(words), _by_option(wanted[0])

    def enough(least: dict[str, str]) -> bool:
        mine = {option: value for option, value in usual.items() if value} | given
        known = all(
            option in least or value == usual.get(option) for option, value in mine.items() if option not in WAYS
        )
        return known and all(option in mine and _reaches(mine[option], value) for option, value in least.items())

    return any(enough(_by_option(least)) for least in wanted)


def _by_option(words: str) -> dict[str, str]:
    """The value of each option, empty for a name and for an option that has none."""
    values: dict[str, str] = {}
    option = ""
    for word in shlex.split(words):
        if word.startswith("-"):
            option, _, values[option] = word.partition("=")
            option = "" if option == "--resume" or values[option] else option
        elif option:
            values[option], option = word, ""
        else:
            values[word] = ""
    return values


def _reaches(value: str, least: str) -> bool:
    try:
        return float(value) >= float(least)
    except ValueError:
        return value == least


class Pieces:
    """What a long bench has done so far of this code with these arguments, a JSON value a line.

    The file lies in the folder for temporary files until the result is published.
    """

    def __init__(self, *, resume: bool) -> None:
        self._file = self._place()
        if not resume:
            self._file.unlink(missing_ok=True)

    def read(self) -> list[Any]:
        """All of them, in the order in which they were added."""
        return [json.loads(line) for line in self._file.read_text().splitlines()[1:]] if self._file.exists() else []

    def add(self, piece: Any) -> None:
        """Keep another one."""
        if not self._file.exists():
            self._file.write_text(f"{time.strftime('%Y-%m-%d')}\n")
        with self._file.open("a") as file:
            file.write(json.dumps(piece) + "\n")

    @classmethod
    def begun(cls) -> str | None:
        """The day on which the first one was made, None where there is none."""
        file = cls._place()
        return file.read_text().partition("\n")[0] if file.exists() else None

    @classmethod
    def forget(cls) -> None:
        """They have become a result."""
        cls._place().unlink(missing_ok=True)

    @staticmethod
    def _place() -> Path:
        return Path(tempfile.gettempdir(), f"{unfinished()}.jsonl")


def unfinished() -> str:
    """A name for what this program has done so far: of it, the state of the code, and how much is to be done."""
    words = shlex.join(word for word in shlex.split(arguments()) if word != "--resume")
    return f"aitop-{Path(sys.argv[0]).stem}-{code()}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def read(file: Path = RESULTS) -> dict[str, Any]:
    """The records of earlier runs by the name of the bench."""
    return json.loads(file.read_text()) if file.exists() else {}


def outdated(bench: Bench, record: dict[str, Any] | None, root: Path = TESTS.parent) -> str | None:
    """Why a result does not stand for the code as it is committed now, in words; None where it does."""
    if record is None:
        return "there is no result"
    measured = str(record["commit"]).rstrip("+")
    git = ["git", "-C", str(root)]
    span = [f"{measured}..HEAD", "--", *bench.about, *own_modules(root / "tests" / bench.path, root)]
    log = subprocess.run([*git, "log", "--oneline", *span], capture_output=True, text=True, check=False)
    if not measured or log.returncode:
        return f"of {record['date']}: its commit, {measured or 'none'}, is not in this history"
    changes = len(log.stdout.splitlines())
    if changes:
        return f"of {record['date']}, {measured}: {changes} commits since then change what it is about"
    return f"of {record['date']}: made on files that were not committed" if record["commit"] != measured else None


def own_modules(program: Path, root: Path = TESTS.parent) -> set[str]:
    """The program, what it imports from tests/ and the programs there that it names, and they, from the root.

    This module is left out.
    """
    by_name: dict[str, list[Path]] = {}
    for path in (root / "tests").rglob("*.py"):
        by_name.setdefault(path.name, []).append(path)
    covered: set[str] = set()
    todo = [program]
    while todo:
        path = todo.pop()
        covered.add(str(path.relative_to(root)))
        for node in ast.walk(ast.parse(path.read_text())) if path.exists() else ():
            if isinstance(node, ast.ImportFrom):
                places = _modules([node.module or ""], root)
            elif isinstance(node, ast.Import):
                places = _modules([alias.name for alias in node.names], root)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                places = by_name.get(node.value.rpartition("/")[2], [])
            else:
                continue
            todo += [place for place in places if str(place.relative_to(root)) not in covered and place != path]
    return covered


def _modules(names: Sequence[str], root: Path) -> list[Path]:
    """The files in tests/ that may be meant by these names of modules."""
    places = (root / "tests" / folder / f"{name}.py" for name in names for folder in SHARED)
    return [place for place in places if place.exists() and place.name != Path(__file__).name]


def was_shortened(bench: Bench, record: dict[str, Any]) -> bool:
    """Whether a result is a rougher one, of a bench that did less than it usually does."""
    return not at_least(record["arguments"], bench.usual)


def benches() -> dict[str, Bench]:
    """All of them, by name."""
    return {Path(bench.path).stem: bench for group in BENCHES.values() for bench in group}


def outdated_results(records: dict[str, Any]) -> dict[str, str]:
    """Why results do not stand for the code as it is, by the name of the bench; those that do are left out."""
    reasons = {name: outdated(bench, records.get(name)) for name, bench in benches().items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def shortened_results(records: dict[str, Any]) -> dict[str, str]:
    """What results were made with that did less than is usual, by the name of the bench."""
    return {
        name: f"of {record['date']}: made with {record['arguments'] or 'no arguments'}, usually {bench.usual or 'none'}"
        for name, bench in benches().items()
        if (record := records.get(name)) is not None and was_shortened(bench, record)
    }


@cache
def commit() -> str:
    """The commit of the code that is run, with a + where it was changed since; empty where that is not known."""
    if shutil.which("git") is None:
        return ""
    git = ["git", "-C", str(TESTS.parent)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "aitop"], capture_output=True, check=False)
    return head.stdout.strip() + "+" * (changed.returncode == 1)


def code() -> str:
    """The commit and, where files of aitop/ were changed since, what tells these changes from others."""
    if not commit().endswith("+"):
        return commit() or "unknown"
    git = ["git", "-C", str(TESTS.parent), "diff", "HEAD", "--", "aitop"]
    return commit() + hashlib.sha256(subprocess.run(git, capture_output=True, check=False).stdout).hexdigest()[:8]


def machine() -> str:
    """Cores, processor, memory and GPUs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "a processor")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    gpus = ""
    if smi := shutil.which("nvidia-smi"):
        asked = [smi, "--query-gpu=name", "--format=csv,noheader"]
        gpus = ", ".join(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split("\n")).strip(
            ", "
        )
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, {memory:.0f} GiB, Linux {platform.release()}, {gpus or 'no GPU'}"


def versions() -> dict[str, str]:
    """Of Python and of what is measured beside aitop, as far as it is installed."""
    installed = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if gdb := shutil.which("gdb"):
        words = subprocess.run([gdb, "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
        installed["gdb"] = words.split()[-1]
    return installed


INTRODUCTION = """\
# Benches: what aitop costs, how robust it is, how right it is

Every figure of cost and speed that another document quotes comes from this page. The page is written by the benches
themselves, from `results.json` beside it; each section has the date and the commit of its last run. A `+` behind the
commit: some files of `aitop/` had been changed and not committed.

Run them on a machine with nothing else to do. The first line takes twelve minutes, the second about half an
hour; the others are run by name, as in the third. Other tools are left out if they are not installed:

```console
pip install nvitop memray traceml-ai && python tests/bench/all.py --quick
python tests/bench/all.py
python tests/bench/all.py faults verdicts
python tests/bench/all.py --whole --outdated --resume
```

The last line makes every result new that is older than the last change of the code that it is about, in hours.
`python tests/bench/results.py` names them, and those that did less than is usual. With `--resume` a bench that has a
result of this commit is not run again, and those that keep their pieces (`attach_stress`, `faults`, `verdicts` and the
like) go on where they were interrupted; a result of `--quick` does not stand for a whole one, and one of still less is
only printed. Every bench also runs by itself (`--help` explains its figures) and exits with 4 where a bar is missed or
was not measured. Without a GPU, benches that need NVML use the fake one of the tests. The verdicts on committed
recordings are tested elsewhere: [tests/accuracy](../accuracy/README.md).
"""


def page(records: dict[str, Any]) -> str:
    """README.md: a section for each bench with its last result."""
    parts = [INTRODUCTION]
    for group, benches in BENCHES.items():
        parts.append(f"## {group}\n")
        for bench in benches:
            parts += _section(bench, records.get(Path(bench.path).stem))
    return "\n".join(parts)


def _section(bench: Bench, record: dict[str, Any] | None) -> list[str]:
    words = ast.get_docstring(ast.parse((TESTS / bench.path).read_text())) or ""
    title, _, rest = words.partition("\n\n")
    about = [part for part in rest.split("\n\n") if not part.startswith(" ")][:1]
    command = f"python tests/{bench.path} {record['arguments'] if record else bench.usual}".rstrip()
    head = [f"### `{Path(bench.path).name}`", "", title, "", *about, *([""] if about else []), f"    {command}", ""]
    return [*head, *(table(record) if record else ["No result is written down here yet."]), ""]


def table(record: dict[str, Any]) -> list[str]:
    """The figures of a bench in Markdown, and where they were measured."""
    rows = [Figure(**figure).row() for figure in record["figures"]]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    place = "; ".join(filter(None, (record["date"], record["commit"] or "no commit", record["machine"], versions)))
    return ["| measured | aitop | bar | beside it | its figure |", "|---|--:|--:|---|--:|", *rows, "", f"{place}."]


if __name__ == "__main__":
    RESULTS.with_name("README.md").write_text(page(read()))
    for reasons in (outdated_results(read()), shortened_results(read())):
        for name, reason in reasons.items():
            print(f"{name}: {reason}")
