"""So many ranks that train, each a small model of its own four times a second: `working_ranks.py N`.

Nobody waits for anybody: they are ranks by their environment alone, and have the hook brought in like any other.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time

PAUSE = 0.25


def train() -> None:
    """One rank, until it is killed."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    for step in itertools.count(1):
        loss = criterion(model(torch.randn(64, 64)), torch.randint(10, (64,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1:
            print("ready", flush=True)
        time.sleep(PAUSE)


def launch(count: int) -> None:
    """Start the ranks; print a step once all of them train."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29998", "WORLD_SIZE": str(count)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(count)
    ]
    for rank in ranks:
        assert rank.stdout is not None and rank.stdout.readline() == b"ready\n"
    print("step 1: all ranks train", flush=True)
    for rank in ranks:
        rank.wait()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        launch(int(sys.argv[1]))
