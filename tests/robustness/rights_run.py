"""A small training run for rights.py: prints its pid and its steps. `closed`: nobody may look into it."""

from __future__ import annotations

import ctypes
import os
import sys
import time

import torch
from torch import nn

PR_SET_DUMPABLE = 4


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if "closed" in sys.argv:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    print(f"pid {os.getpid()}", flush=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    for step in range(1_000_000):
        time.sleep(0.015)
        optimizer.zero_grad()
        loss = criterion(model(torch.randn(32, 64)), torch.randint(8, (32,)))
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
