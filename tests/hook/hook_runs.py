"""Small training runs for a hook in this very process to watch, and the hook with its reader."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import closing

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import aitop.hook
from aitop.sources.ring.reader import HookRing

torch.set_num_threads(1)


class Rows(Dataset):
    """`pause` is how long one item takes to load."""

    def __init__(self, count: int = 32, pause: float = 0.0) -> None:
        self.count, self.pause = count, pause

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        if self.pause:
            time.sleep(self.pause)
        return torch.full((8,), float(index)), index % 4


# What every backward pass goes through; torch 2.2 has no such function, and the hook sees `backward` alone.
BACKWARD = "_engine_run_backward" if hasattr(torch.autograd, "_engine_run_backward") else "backward"


class Net(nn.Module):
    """`pause` is how long a forward takes."""

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.pause = pause

    def forward(self, rows):
        if self.pause:
            time.sleep(self.pause)
        return self.layers(rows)


class Words(nn.Module):
    """A language model of two layers, called as those of transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, input_ids=None, mask=None, labels=None, attention_mask=None):
        return self.out(self.table(labels if input_ids is None else input_ids))


IDS = torch.ones(3, 7, dtype=torch.int64)


class SlowSgd(torch.optim.SGD):
    pause = 0.0

    def step(self, closure=None):
        time.sleep(self.pause)
        return super().step(closure)


def served(watched):
    """Return what the hook has measured once every request has ended: clients have their answers before that."""
    time.sleep(0.05)
    deadline = time.monotonic() + 10
    # What one reader has read does not come again.
    with closing(HookRing(os.getpid())) as other:
        while other.read(time.monotonic()).alive and time.monotonic() < deadline:
            time.sleep(0.02)
    watched.session._send(time.monotonic_ns())
    return watched.ring.read(time.monotonic())


def loader(count: int = 32, pause: float = 0.0, **options) -> DataLoader:
    return DataLoader(Rows(count, pause), batch_size=4, **options)


def patched_attributes() -> dict[str, object]:
    """Every attribute that the hook may replace, as it is now."""
    import torch.utils.data.dataloader as data
    from torch.optim import optimizer as optim

    return {
        "next": vars(data._BaseDataLoaderIter)["__next__"],
        "iter": vars(DataLoader)["__iter__"],
        "backward": getattr(torch.autograd, BACKWARD),
        "save": torch.save,
        "module": vars(nn.Module)["__call__"],
        "net": vars(Net).get("__call__"),
        "linear": vars(nn.Linear).get("__call__"),
        "sequential": vars(nn.Sequential).get("__call__"),
        "pre": optim._global_optimizer_pre_hooks,
        "post": optim._global_optimizer_post_hooks,
    }


LOOKS = itertools.count(1)


def long_after() -> int:
    """A moment for a look of the hook (monotonic ns), in which what is due now and then is due again."""
    return time.monotonic_ns() + next(LOOKS) * 10**12


class Watched:
    """The hook of this process and its reader."""

    def __init__(self) -> None:
        assert aitop.hook.install("run") == "installed"
        self.session = aitop.hook._session
        self.ring = HookRing(os.getpid())

    @property
    def cost(self):
        """The measure of what the hook itself costs."""
        return next(measure for measure in self.session.measures if type(measure).__name__ == "Cost")

    def records(self):
        """All steps so far, sent off without waiting for the hook's own moment."""
        self.session._send(time.monotonic_ns())
        return list(self.ring.read(time.monotonic()).steps)

    def facts(self):
        self.session._write_facts(time.monotonic_ns())
        return self.ring.read(time.monotonic()).facts


def train(model, data, optimizer, times: int = 1):
    losses = []
    for _ in range(times):
        for rows, labels in data:
            loss = nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses
