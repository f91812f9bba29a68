"""What the hook adds to one step, from single steps of two like runs in one process, of which it watches one.

    python tests/bench/hook_cost_steps.py [--seconds 45] [--only nothing,run,timed,counted]

The runs take turns, step by step, so that whatever else the machine does meets both alike: this tells microseconds
where rounds of a second (hook_cost.py) tell tens of them. Times are CPU times of the thread, which is never idle here.
Each step finds the caches filled by the other run.

  nothing   neither is watched: what the order of the two makes, and is taken off the others
  run       the hook as it is once it has begun to count: most short steps are only counted, the others are timed; what
            either adds is printed apart, with the mean of both; what is done a few times a second comes on top
  timed     each step timed, as where steps are not short
  counted   each step only counted
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from hook_cost_models import Mlp, Rows, steps_of
from torch.optim import optimizer as optim
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as data

import aitop.hook
from aitop.hook import phases, sampling
from aitop.hook.optimizer import optimizer_hooks

# Steps of a block; those of `run` are enough for several turns, and all is held against `nothing`.
WARM_STEPS, BLOCK, BLOCKS = 20, 400, {"run": 1600, "nothing": 1600}
LONG_NS = 10**18

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
        # Only the wrappers are wanted, around other classes.
        session._patches.take_all_back()
        session._optimizers.remove()
        session._roots = None
        iterate = phases.wrap_next(data._BaseDataLoaderIter.__next__, session)
        call = phases.wrap_forward(torch.nn.Module.__call__, session, torch.nn.Module)
        self.classes = [(WatchedIterator, "__next__", iterate), (WatchedMlp, "__call__", call)]
        self.backward = torch.autograd._engine_run_backward
        self.watched_backward = phases.wrap_backward(self.backward, session)
        self.hooks = optimizer_hooks(session)
        self.optimizer = 0
        # The ticks of the run, as SelfTimer has them.
        self.ticks: list[tuple[int, int, int]] = []
        # Nanoseconds in which the run was at it, and all of its blocks, which are the other run's as well.
        self.at_it = self.in_all = 0

    def begin(self, variant: str) -> None:
        """Wrap the classes, and let the hook count always, never, or as it likes."""
        journal, now = self.journal, time.monotonic_ns()
        self.session.sampling.over()
        self.session.ticks.clear()
        journal.last_step, journal.due, journal.skip, journal.count_soon = now, 0, 0, False
        sampling.FAST_TICKS = 2 if variant == "run" else LONG_NS
        for owner, name, wrapper in self.classes:
            if variant != "nothing":
                setattr(owner, name, wrapper)
            elif name in vars(owner):
                delattr(owner, name)
        if variant == "counted":
            journal.longest = LONG_NS
            self.session.sampling.begin(now, self.optimizer)
            journal.count_until = LONG_NS

    @contextlib.contextmanager
    def on(self, variant: str) -> Iterator[None]:
        if variant != "nothing":
            torch.autograd._engine_run_backward = self.watched_backward
            before, after = self.hooks
            optim._global_optimizer_pre_hooks[0] = before
            optim._global_optimizer_post_hooks[0] = after
        try:
            yield
        finally:
            torch.autograd._engine_run_backward = self.backward
            optim._global_optimizer_pre_hooks.clear()
            optim._global_optimizer_post_hooks.clear()

    def meet(self, run: Iterator[None]) -> None:
        """Learn which optimizer the watched run has."""
        optim._global_optimizer_post_hooks[0] = lambda optimizer, *_: setattr(self, "optimizer", id(optimizer))
        next(run)
        optim._global_optimizer_post_hooks.clear()


def pairs(switch: Switch, variant: str, plain: Iterator[None], watched: Iterator[None]) -> list[Pair]:
    """The steps of a block; of `run` those from where counting begins for the first time."""
    switch.begin(variant)
    found: list[Pair] = []
    clock, journal, began = time.thread_time_ns, switch.journal, time.thread_time_ns()
    for _ in range(BLOCKS.get(variant, BLOCK)):
        start = clock()
        next(plain)
        without = clock() - start
        counted = journal.counting
        with switch.on(variant):
            start = clock()
            next(watched)
            found.append((without, clock() - start, counted and journal.counting))
    if variant == "run":
        switch.at_it += sum(pair[1] for pair in found)
        switch.in_all += clock() - began
        switch.ticks += switch.session.ticks
    switch.session.sampling.over()
    first = next((at for at, pair in enumerate(found) if pair[2]), len(found)) if variant == "run" else WARM_STEPS
    return found[first:]


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


def report(times: dict[str, list[Pair]], switch: Switch) -> dict[str, float | None]:
    """Print it; gives microseconds by variant, of `run` the mean, of the `ticks`, and of both `in_all`, what the hook
    says itself, and the share of steps that `run` only counted, `counted_share`.
    """
    figures: dict[str, float | None] = {}
    base, base_error = added(times["nothing"])

    def line(name: str, taken: list[Pair]) -> float:
        found, error = added(taken)
        error = (error**2 + base_error**2) ** 0.5
        print(f"  {name:14s} {found - base:+6.1f} us  (give or take {error:.1f}, {len(taken)} steps)")
        return found - base

    print("mlp: what the hook adds to a step, from single steps with and without it in turns")
    for name, taken in times.items():
        if name != "run":
            figures[name] = line(name, taken)
            continue
        counted, others = ([pair for pair in taken if pair[2] is only_counted] for only_counted in (True, False))
        share = figures["counted_share"] = len(counted) / len(taken)
        figures["run"] = share * line("run, counted", counted) + (1 - share) * line("run, timed", others)
        ticks = figures["ticks"] = _ticks(switch)
        figures["in_all"] = figures["run"] + ticks
        print(f"  run: {share:.0%} of the steps were only counted, so {figures['run']:.1f} us in the mean")
        print(f"  and {ticks:.1f} us a step for what is done a few times a second: {figures['in_all']:.1f} us in all")
    figures["own_us"] = switch.session._cost.us_per_step()
    print(f"  the hook says of itself: {figures['own_us']} us per step")
    return figures


def _ticks(switch: Switch) -> float:
    """Microseconds of a step for the ticks, by the median one. While the watched run waits for the other
    one, time goes on: one that has it all to itself makes so many more steps between two ticks.
    """
    ticks = switch.ticks
    usual = statistics.median(length for _, _, length in ticks) * len(ticks) / 1000
    return usual / sum(timed + counted for timed, counted, _ in ticks) * switch.at_it / switch.in_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--only", default="nothing,run,timed,counted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    options = parser.parse_args()
    variants = ["nothing", *(name for name in options.only.split(",") if name != "nothing")]
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
    until = time.monotonic() + options.seconds
    while time.monotonic() < until:
        random.shuffle(variants)
        for name in variants:
            times[name] += pairs(switch, name, plain, watched)
    figures = report(times, switch)
    if options.json is not None:
        options.json.write_text(json.dumps(figures))
    aitop.hook.remove()


if __name__ == "__main__":
    main()
