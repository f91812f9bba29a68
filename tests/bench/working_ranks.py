"""So many processes that train, each a small model of its own four times a second: `working_ranks.py N`.

They are forked once torch is imported, so that many fit into the memory of one machine. Nobody tells them a rank.
"""

from __future__ import annotations

import itertools
import os
import sys
import time

import torch
from torch import nn

PAUSE = 0.25


def train() -> None:
    """One rank, until it is killed."""
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    for step in itertools.count(1):
        loss = criterion(model(torch.randn(64, 64)), torch.randint(10, (64,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1:
            print(f"step 1: loss {float(loss):.3f}", flush=True)
        time.sleep(PAUSE)


def main() -> None:
    torch.set_num_threads(1)
    children = []
    for _ in range(int(sys.argv[1])):
        child = os.fork()
        if not child:
            train()
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
