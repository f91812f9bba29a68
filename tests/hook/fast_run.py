"""A run with short steps, most of which the hook only counts."""

from __future__ import annotations

import time

import torch
from hook_runs import Net, Rows
from torch import nn
from torch.utils.data import DataLoader


class Stalling(Rows):
    """Stalls at one of its rows, when told."""

    stall = 0.0

    def __getitem__(self, index: int):
        if self.stall and index % 4 == 1:
            pause, self.stall = self.stall, 0.0
            time.sleep(pause)
        return super().__getitem__(index)


class Fast:
    """A fast run of one net, whose batches and forwards are looked at; `records` are all steps so far."""

    def __init__(self, watched) -> None:
        self.watched = watched
        self.journal, self.sampling = watched.session.journal, watched.session.sampling
        self.sampling._look_until = time.monotonic_ns() + 10**12
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), 1e-3)
        self.rows = Stalling(4 * 10**6)
        self.batches = iter(DataLoader(self.rows, batch_size=4))
        self.made = 0
        self.records: list = []

    def steps(self, count: int) -> None:
        for _ in range(count):
            rows, labels = next(self.batches)
            self.step(rows, labels)

    def step(self, rows, labels) -> None:
        nn.functional.cross_entropy(self.net(rows), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.made += 1
        if self.made % 200 == 0:
            self.read()

    def read(self) -> None:
        self.records += self.watched.ring.read(time.monotonic()).steps

    def until_it_counts(self, most: int = 20000) -> None:
        """Go on to somewhere in the middle of a time in which steps are only counted."""
        for _ in range(most):
            self.steps(1)
            if self._counts():
                self.steps(2)
                if self._counts():
                    return
        raise AssertionError("it never counts")

    def _counts(self) -> bool:
        """Whether steps are only counted, and will be for a while."""
        return self.journal.counting and self.journal.count_until - time.monotonic_ns() > 30_000_000

    def after(self, steps: int = 5):
        """The records, when some more steps have been made and everything was sent."""
        self.steps(steps)
        self.records += self.watched.records()
        return self.records
