"""CPU time that the hook adds to one step: one step of a run with the hook and one without it, again and again.

Both steps of a pair are of the same model, in random order, so whatever else the machine does affects both alike. The
same code is faster or slower from process to process, partly because of memory layout. So everything is measured again
in several fresh processes. A figure is their median, with the range of all of them and of the middle half, and a bar is
for the median. Times are CPU times of the thread, which is never idle here.

  nothing   neither step is watched: what the way of measuring makes, and is taken off the others of that process
  run       the hook as it is once it has begun to count: most short steps are only counted, the others are timed; what
            either adds is printed apart, with the mean of both; what is done a few times a second comes on top
  timed     each step timed, as where steps are not short

    python tests/bench/hook_cost_steps.py --processes 18
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from hook_cost_models import Mlp, Rows, steps_of
from results import Figure, options, publish
from torch.optim import optimizer as optim
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as data

import aitop.hook
from aitop.hook import phases, sampling
from aitop.hook.optimizer import TABLES
from aitop.hook.patches import Patches

# Pairs of a block; those of `run` are enough for several turns, and all is held against `nothing`.
WARM_PAIRS, BLOCKS = 20, {"nothing": 800, "run": 1600, "timed": 400}
LONG_NS = 10**18
GLOBALS = [(torch.autograd, "_engine_run_backward"), *((optim, name) for name in TABLES)]
# Of fewer steps no figure is given: on a loaded machine the run may not get to counting, or count nearly all the time.
FEWEST = 40

# Nanoseconds of a step without the hook, and of one with it that came just before or after: was it only counted?
Pair = tuple[int, int, bool]


class Endless(Rows):
    """The rows again and again, so that no epoch ends."""

    def __len__(self) -> int:
        return 10**8

    def __getitem__(self, index: int):
        return self.rows[index % 3200], index % 10


class PlainIterator(data._SingleProcessDataLoaderIter):
    pass


class WatchedIterator(data._SingleProcessDataLoaderIter):
    pass


class Loader(DataLoader):
    def _get_iterator(self):
        self.under_way = PlainIterator(self)
        return self.under_way


class WatchedMlp(Mlp):
    pass


class Run:
    """A run whose model and batches have the classes that the hook wraps, or their likes, as it is told."""

    def __init__(self) -> None:
        self.model, self._loader = Mlp(), Loader(Endless(3200, 64), batch_size=16)
        self.steps = steps_of(self.model, loader=self._loader)
        next(self.steps)

    def be(self, *, watched: bool) -> None:
        """Have these classes from now on. To wrap and unwrap one class all the time would empty Python's caches."""
        object.__setattr__(self.model, "__class__", WatchedMlp if watched else Mlp)
        self._loader.under_way.__class__ = WatchedIterator if watched else PlainIterator


class Switch:
    """Puts the hook's wrappers around the watched classes, and what is global only for a watched step."""

    def __init__(self, session: Any) -> None:
        self.session, self.journal = session, session.journal
        # Only the wrappers are wanted, those of classes around other ones.
        session._patches.take_all_back()
        session._optimizers.remove()
        session._roots = None
        iterate = phases.wrap_next(data._BaseDataLoaderIter.__next__, session)
        call = phases.wrap_forward(torch.nn.Module.__call__, session, torch.nn.Module)
        self.classes = [(WatchedIterator, "__next__", iterate), (WatchedMlp, "__call__", call)]
        # What is global as either step has it. The hook changes it for the watched one as steps are counted or timed.
        self.plain = _swap()
        session._patches = Patches()
        session._watch_backward()
        session._optimizers.install()
        self.watched = _swap(self.plain)
        # The ticks of the run, as SelfTimer has them.
        self.ticks: list[tuple[int, int, int]] = []
        # Nanoseconds of the watched steps, and of all the block, with the other steps.
        self.at_it = self.in_all = 0

    def begin(self, variant: str) -> None:
        """Wrap the classes, and let the hook count never, or as it likes."""
        journal = self.journal
        self.over()
        self.session.ticks.clear()
        journal.last_step, journal.due, journal.skip, journal.count_soon = time.monotonic_ns(), 0, 0, False
        journal.count_until = journal.passes = 0
        # A run in which nothing rare has happened for long.
        self.session.sampling._look_until = 1
        sampling.FAST_TICKS = 2 if variant == "run" else LONG_NS
        for owner, name, wrapper in self.classes:
            if variant != "nothing":
                setattr(owner, name, wrapper)
            elif name in vars(owner):
                delattr(owner, name)

    def over(self) -> None:
        """End the counting."""
        with self.on("timed"):
            self.session.sampling.over()

    @contextlib.contextmanager
    def on(self, variant: str) -> Iterator[None]:
        """Have what is global as a watched step has it, but for `nothing`."""
        if variant == "nothing":
            yield
            return
        _swap(self.watched)
        try:
            yield
        finally:
            self.watched = _swap(self.plain)


def _swap(values: Sequence[Any] | None = None) -> list[Any]:
    """Set the attributes of modules that the hook replaces. Returns what they were."""
    were = [getattr(module, name) for module, name in GLOBALS]
    for (module, name), value in zip(GLOBALS, values or were, strict=True):
        setattr(module, name, value)
    return were


def pairs(switch: Switch, variant: str, run: Run) -> list[Pair]:
    """The steps of a block; of `run` those from where counting begins for the first time."""
    switch.begin(variant)
    steps: list[Pair] = []
    clock, journal, began = time.thread_time_ns, switch.journal, time.thread_time_ns()
    for _ in range(BLOCKS[variant]):
        taken, counted = [0, 0], journal.counting
        for watched in random.sample((False, True), 2):
            run.be(watched=watched)
            with switch.on(variant if watched else "nothing"):
                start = clock()
                next(run.steps)
                taken[watched] = clock() - start
        steps.append((taken[0], taken[1], counted and journal.counting))
    if variant == "run":
        switch.at_it += sum(pair[1] for pair in steps)
        switch.in_all += clock() - began
        switch.ticks += switch.session.ticks
    switch.over()
    first = next((at for at, pair in enumerate(steps) if pair[2]), len(steps)) if variant == "run" else WARM_PAIRS
    return steps[first:]


def added(taken: list[Pair]) -> float:
    """Microseconds that the watched steps took more: by the quick ones of either, which nothing else disturbed."""
    without, watched = (_quick([pair[at] for pair in taken]) for at in (0, 1))
    return (watched - without) / 1000


def _quick(times: list[int]) -> float:
    """The mean of those between the quickest twentieth and the quickest third."""
    ordered = sorted(times)
    return statistics.fmean(ordered[len(ordered) // 20 : len(ordered) // 3])


def measured(times: dict[str, list[Pair]], switch: Switch) -> dict[str, float]:
    """What one process has to say: by name of what was measured; left out is what there were too few steps for."""
    groups = {"timed": times["timed"]}
    for only_counted, name in ((True, "run counted"), (False, "run timed")):
        groups[name] = [pair for pair in times["run"] if pair[2] is only_counted]
    base = added(times["nothing"])
    costs = {name: added(taken) - base for name, taken in groups.items() if len(taken) >= FEWEST}
    known = {name: len(groups[name]) for name in ("run counted", "run timed") if name in costs}
    if known:
        costs["ticks"] = _ticks(switch)
        costs["mean"] = costs["ticks"] + sum(costs[name] * count for name, count in known.items()) / sum(known.values())
        costs["step"] = statistics.median(pair[0] for pair in times["nothing"]) / 1000
        costs["percent"] = costs["mean"] / costs["step"] * 100
        costs["share counted"] = known.get("run counted", 0) / len(times["run"]) * 100
    return costs


def _ticks(switch: Switch) -> float:
    """Microseconds of a step for the ticks, by the median one. Time goes on during the steps that are not watched: a
    run of watched ones alone makes so many more between two ticks.
    """
    ticks = switch.ticks
    usual = statistics.median(length for _, _, length in ticks) * len(ticks) / 1000
    return usual / sum(timed + counted for timed, counted, _ in ticks) * switch.at_it / switch.in_all


def figures(processes: Sequence[dict[str, float]]) -> Iterator[Figure]:
    """The median of the processes for each that was measured in most of them, with its range."""

    def line(what: str, name: str, unit: str = "µs", most: float | None = None, more: str = "") -> Figure:
        values = sorted(process[name] for process in processes if name in process)
        if len(values) <= len(processes) / 2:
            few = f"measured in {len(values)} of {len(processes)} processes"
            return Figure(what, None, unit, most=most, spread=few)
        all_of = f"{values[0]:.1f}–{values[-1]:.1f}"
        half = f"{values[len(values) // 4]:.1f}–{values[-1 - len(values) // 4]:.1f}"
        spread = f"{all_of} of {len(values)} processes, half of them {half}{more}"
        return Figure(what, statistics.median(values), unit, most=most, spread=spread)

    yield line("added where each step is timed", "timed")
    yield line("added to a counted step of a run", "run counted", most=10)
    yield line("added to a timed step of a run", "run timed", most=30)
    share, ticks, step = (line("", name).value or 0.0 for name in ("share counted", "ticks", "step"))
    more = f"; {share:.0f} % of the steps only counted, {ticks:.1f} µs for what is done a few times a second"
    yield line("added to a step in the mean", "mean", more=more)
    yield line("the same, of the step", "percent", "%", most=1, more=f"; of {step / 1000:.2f} ms")


def in_this_process(rounds: int) -> dict[str, float]:
    """Take all of them in turns, in random order, so many times."""
    variants = list(BLOCKS)
    torch.set_num_threads(1)
    aitop.hook.remove()
    assert aitop.hook.install("run") == "installed"
    switch = Switch(aitop.hook._session)
    run = Run()
    for _ in range(200):
        next(run.steps)
    times: dict[str, list[Pair]] = {name: [] for name in variants}
    for _ in range(rounds):
        random.shuffle(variants)
        for name in variants:
            times[name] += pairs(switch, name, run)
    aitop.hook.remove()
    return measured(times, switch)


def in_fresh_processes(count: int, rounds: int) -> list[dict[str, float]]:
    """One after the other, each with a layout of its memory and seeds of its hashes of its own."""
    measured = []
    for number in range(1, count + 1):
        command = [sys.executable, __file__, "--here", "--rounds", str(rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        measured.append(json.loads(done.stdout))
        words = ", ".join(f"{name} {value:.1f}" for name, value in measured[-1].items())
        print(f"process {number} of {count}: {words}", file=sys.stderr, flush=True)
    return measured


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--processes", type=int, default=18, help="how many, one after the other: some 17 s each")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each process")
    parser.add_argument("--here", action="store_true", help="in this process alone; prints JSON, keeps nothing")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(in_this_process(args.rounds)))
        return 0
    return publish(args, list(figures(in_fresh_processes(args.processes, args.rounds))))


if __name__ == "__main__":
    sys.exit(main())
