"""What children of a training program do: a loader's worker that also predicts, and a rank that trains."""

from __future__ import annotations

import os
import struct

import torch
from torch import nn
from torch.utils.data import Dataset


def ring_of_this_process() -> str:
    for name in os.listdir("/proc/self/fd"):
        try:
            if "aitop-hook" not in os.readlink(f"/proc/self/fd/{name}"):
                continue
            with open(f"/proc/self/fd/{name}", "rb") as ring:
                words = struct.unpack("=3Q", ring.read(24))
        except OSError:
            continue
        if words[2] == os.getpid():
            return "own-ring"
    return "no-ring"


class Looking(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        model = nn.Linear(2, 2)
        with torch.no_grad():
            for _ in range(4):
                model(torch.zeros(1, 2))
        return f"worker {ring_of_this_process()}"


def rank(index):
    import time

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        model(torch.zeros(1, 2)).sum().backward()
        optimizer.step()
        time.sleep(0.03)
    print(f"rank {ring_of_this_process()}", flush=True)
