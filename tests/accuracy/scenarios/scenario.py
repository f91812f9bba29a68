"""What is expected of a script: its fault, its lines, its fix."""

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

from aitop.sources.host.machine import Machine

from left import Left

SCENARIO_DIR = Path(__file__).resolve().parent
WORKLOAD_DIR = SCENARIO_DIR.parents[2] / "aitop" / "workloads"
HEALTHY = "compute-bound"


@dataclass(frozen=True)
class Scenario:
    """A script, its fault and where it lies.

    `verdict` is the id that comes first, with one of `subtypes` (empty where it has none); each of `accepted` ("id" or
    "id/subtype") is as right. `beside` are ids of other warnings that are true of the script, too. `guilty` are
    substrings of the lines that may be named, each on one line of the script; empty where no line is at fault.
    `fixed` says that the script with `fix` is faster, so that a predicted speed-up can be held against the real one;
    `remedy` is a regular expression for the text of the fix that does what the script does then, empty where the
    cause is gone altogether. `left` is what is still slow with `fix`. `needs` are packages without which the script
    does not run. `slow_denormals`: its fault is none on a processor that takes denormal numbers well.
    """

    name: str
    script: Path
    verdict: str
    subtypes: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    guilty: tuple[str, ...] = ()
    fixed: bool = True
    accepted: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    fix: tuple[str, ...] = ("--fixed",)
    remedy: str = ""
    left: tuple[Left, ...] = ()
    needs: tuple[str, ...] = ()
    slow_denormals: bool = False

    def accepts(self, verdict, subtype=None):
        """Whether this is a right primary verdict."""
        if verdict == self.verdict and (not self.subtypes or subtype in self.subtypes):
            return True
        return verdict in self.accepted or f"{verdict}/{subtype}" in self.accepted

    def true_ids(self):
        """Ids of all verdicts that are true of the script."""
        return {self.verdict, *self.beside, *(name.partition("/")[0] for name in self.accepted)}

    def healthy(self):
        """Whether there is nothing to find."""
        return self.verdict == HEALTHY and not self.subtypes

    def mended(self):
        """What is expected with `fix`: nothing but what is left, and the other fault where it mends only the first."""
        others = (*(self.beside if "first" in self.fix else ()), *(left.verdict for left in self.left))
        return replace(self, verdict=HEALTHY, subtypes=(), accepted=others, beside=(), guilty=(), fixed=False)

    def missing(self):
        """What it needs and this machine lacks."""
        packages = [package for package in self.needs if not importlib.util.find_spec(package)]
        well = self.slow_denormals and not Machine().read().slow_denormals
        return [*packages, *(["a processor that denormal numbers slow down"] if well else [])]

    def guilty_lines(self):
        """Line numbers of the guilty substrings in the script."""
        lines = self.script.read_text().splitlines()
        found = {part: [n for n, line in enumerate(lines, 1) if part in line] for part in self.guilty}
        ambiguous = {part: numbers for part, numbers in found.items() if len(numbers) != 1}
        if ambiguous:
            raise ValueError(f"{self.script.name}: not exactly one line for {ambiguous}")
        return {numbers[0] for numbers in found.values()}


def scenario(name, *rest, **more):
    return Scenario(name, SCENARIO_DIR / f"{name.split(':')[0]}.py", *rest, **more)


def workload(name, *rest, **more):
    return Scenario(name, WORKLOAD_DIR / f"{name.replace('-', '_')}.py", *rest, **more)
