"""CPU time that the hook adds to one step: two equal runs in one process, and the hook watches one of them.

The runs take turns step by step, so that whatever else the machine does affects both alike. This resolves single
microseconds, where rounds of a second (hook_cost.py) resolve tens of them. Times are CPU times of the thread, which is
never idle here. Each step finds the caches filled by the other run.

  nothing   neither is watched: what the order of the two makes, and is taken off the others
  run       the hook as it is once it has begun to count: most short steps are only counted, the others are timed; what
            either adds is printed apart, with the mean of both; what is done a few times a second comes on top
  timed     each step timed, as where steps are not short
  counted   each step only counted
  passed    each step only counted, batches and forwards passed on without a look

    python tests/bench/hook_cost_steps.py --seconds 45
"""

from __future__ import annotations

import contextlib
import random
import statistics
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

# Steps of a block; those of `run` are enough for several turns, and all is held against `nothing`.
WARM_STEPS, BLOCK, BLOCKS = 20, 400, {"run": 1600, "nothing": 1600}
LONG_NS = 10**18
GLOBALS = [(torch.autograd, "_engine_run_backward"), *((optim, name) for name in TABLES)]
# Of fewer steps no figure is given: on a loaded machine the run may not get to counting, or count nearly all the time.
FEWEST = 40

# Nanoseconds of a step of the other run, and of the watched one's that came just after: was that one only counted?
Pair = tuple[int, int, bool]


class Endless(Rows):
    """The rows again and again, so that no epoch ends."""

    def __len__(self) -> int:
        return 10**8

    def __getitem__(self, index: int):
        return self.rows[index % 3200], index % 10


class WatchedIterator(data._SingleProcessDataLoaderIter):
    pass


class WatchedLoader(DataLoader):
    def _get_iterator(self):
        return WatchedIterator(self)


class WatchedMlp(Mlp):
    pass


class Switch:
    """Puts the hook's wrappers around the watched run, and what is global only for a step of it."""

    def __init__(self, session: Any) -> None:
        self.session, self.journal = session, session.journal
        # Only the wrappers are wanted, those of classes around other ones.
        session._patches.take_all_back()
        session._optimizers.remove()
        session._roots = None
        iterate = phases.wrap_next(data._BaseDataLoaderIter.__next__, session)
        call = phases.wrap_forward(torch.nn.Module.__call__, session, torch.nn.Module)
        self.classes = [(WatchedIterator, "__next__", iterate), (WatchedMlp, "__call__", call)]
        # What is global as either run has it. The hook changes it for the watched one as steps are counted or timed.
        self.plain = _swap()
        session._patches = Patches()
        session._watch_backward()
        session._optimizers.install()
        self.watched = _swap(self.plain)
        self.optimizer = 0
        # The ticks of the run, as SelfTimer has them.
        self.ticks: list[tuple[int, int, int]] = []
        # Nanoseconds in which the run was at it, and all of its blocks, which are the other run's as well.
        self.at_it = self.in_all = 0

    def begin(self, variant: str) -> None:
        """Wrap the classes, and let the hook count always, never, or as it likes."""
        journal, now = self.journal, time.monotonic_ns()
        self.over()
        self.session.ticks.clear()
        journal.last_step, journal.due, journal.skip, journal.count_soon = now, 0, 0, False
        # A block of `counted` leaves one that never comes.
        journal.count_until = journal.passes = 0
        # A run in which nothing rare has happened for long.
        self.session.sampling._look_until = 1
        sampling.FAST_TICKS = 2 if variant == "run" else LONG_NS
        for owner, name, wrapper in self.classes:
            if variant != "nothing":
                setattr(owner, name, wrapper)
            elif name in vars(owner):
                delattr(owner, name)
        if variant in ("counted", "passed"):
            journal.longest = LONG_NS
            with self.on(variant):
                self.session.sampling.begin(now, self.optimizer)
            journal.count_until = LONG_NS
            journal.passes = LONG_NS if variant == "passed" else 0

    def over(self) -> None:
        """End the counting."""
        with self.on("timed"):
            self.session.sampling.over()

    @contextlib.contextmanager
    def on(self, variant: str) -> Iterator[None]:
        """Have what is global as the watched run has it, but for `nothing`."""
        if variant == "nothing":
            yield
            return
        _swap(self.watched)
        try:
            yield
        finally:
            self.watched = _swap(self.plain)

    def meet(self, run: Iterator[None]) -> None:
        """Learn which optimizer the watched run has."""
        optim._global_optimizer_post_hooks[0] = lambda optimizer, *_: setattr(self, "optimizer", id(optimizer))
        next(run)
        optim._global_optimizer_post_hooks.clear()


def _swap(values: Sequence[Any] | None = None) -> list[Any]:
    """Set the attributes of modules that the hook replaces. Returns what they were."""
    were = [getattr(module, name) for module, name in GLOBALS]
    for (module, name), value in zip(GLOBALS, values or were, strict=True):
        setattr(module, name, value)
    return were


def pairs(switch: Switch, variant: str, plain: Iterator[None], watched: Iterator[None]) -> list[Pair]:
    """The steps of a block; of `run` those from where counting begins for the first time."""
    switch.begin(variant)
    steps: list[Pair] = []
    clock, journal, began = time.thread_time_ns, switch.journal, time.thread_time_ns()
    for _ in range(BLOCKS.get(variant, BLOCK)):
        start = clock()
        next(plain)
        without = clock() - start
        counted = journal.counting
        with switch.on(variant):
            start = clock()
            next(watched)
            steps.append((without, clock() - start, counted and journal.counting))
    if variant == "run":
        switch.at_it += sum(pair[1] for pair in steps)
        switch.in_all += clock() - began
        switch.ticks += switch.session.ticks
    switch.over()
    first = next((at for at, pair in enumerate(steps) if pair[2]), len(steps)) if variant == "run" else WARM_STEPS
    return steps[first:]


def added(taken: list[Pair]) -> tuple[float, float]:
    """Microseconds that the watched steps took more: by the quick ones of either run, which nothing else disturbed, and
    half of what halves of the steps differ in that.
    """
    halves = [_between(taken[half::2]) for half in (0, 1)]
    return _between(taken), abs(halves[0] - halves[1]) / 2


def _between(taken: list[Pair]) -> float:
    without, watched = (_quick([pair[at] for pair in taken]) for at in (0, 1))
    return (watched - without) / 1000


def _quick(times: list[int]) -> float:
    """The mean of those between the quickest twentieth and the quickest third."""
    ordered = sorted(times)
    return statistics.fmean(ordered[len(ordered) // 20 : len(ordered) // 3])


def figures(times: dict[str, list[Pair]], switch: Switch, step_us: float) -> Iterator[Figure]:
    """What each variant adds beyond the order of the two runs."""
    base, base_error = added(times["nothing"])

    def line(what: str, taken: list[Pair], most: float | None = None) -> Figure:
        if len(taken) < FEWEST:
            return Figure(what, None, "µs", most=most, spread=f"only {len(taken)} steps")
        microseconds, error = added(taken)
        spread = f"± {(error**2 + base_error**2) ** 0.5:.1f}, {len(taken)} steps"
        return Figure(what, microseconds - base, "µs", most=most, spread=spread)

    yield line("added where each step is only counted", times["counted"])
    yield line("added where batches and forwards are passed on without a look", times["passed"])
    yield line("added where each step is timed", times["timed"])
    counted, timed = ([pair for pair in times["run"] if pair[2] is only_counted] for only_counted in (True, False))
    share = len(counted) / max(1, len(times["run"]))
    each = [line("added to a counted step of a run", counted, 10), line("added to a timed step of a run", timed, 30)]
    yield from each
    parts = zip(each, (len(counted), len(timed)), strict=True)
    known = [(figure.value, count) for figure, count in parts if figure.value is not None]
    if not known:
        return
    ticks = _ticks(switch)
    mean = sum(value * count for value, count in known) / sum(count for _, count in known) + ticks
    spread = f"{share:.0%} of the steps only counted, {ticks:.1f} µs for what is done a few times a second"
    yield Figure("added to a step in the mean", mean, "µs", spread=spread)
    yield Figure(f"the same, of a step of {step_us / 1000:.2f} ms", mean / step_us * 100, "%", most=1)


def _ticks(switch: Switch) -> float:
    """Microseconds of a step for the ticks, by the median one. While the watched run waits for the other
    one, time goes on: one that has it all to itself makes so many more steps between two ticks.
    """
    ticks = switch.ticks
    usual = statistics.median(length for _, _, length in ticks) * len(ticks) / 1000
    return usual / sum(timed + counted for timed, counted, _ in ticks) * switch.at_it / switch.in_all


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=45.0)
    args = parser.parse_args()
    variants = ["nothing", "run", "timed", "counted", "passed"]
    torch.set_num_threads(1)
    aitop.hook.remove()
    assert aitop.hook.install("run") == "installed"
    switch = Switch(aitop.hook._session)
    plain = steps_of(Mlp(), loader=DataLoader(Endless(3200, 64), batch_size=16))
    watched = steps_of(WatchedMlp(), loader=WatchedLoader(Endless(3200, 64), batch_size=16))
    for _ in range(100):
        next(plain)
        next(watched)
    switch.meet(watched)
    times: dict[str, list[Pair]] = {name: [] for name in variants}
    until = time.monotonic() + args.seconds
    while time.monotonic() < until:
        random.shuffle(variants)
        for name in variants:
            times[name] += pairs(switch, name, plain, watched)
    step_us = statistics.median(pair[0] for pair in times["nothing"]) / 1000
    code = publish(args, list(figures(times, switch, step_us)))
    aitop.hook.remove()
    return code


if __name__ == "__main__":
    sys.exit(main())
