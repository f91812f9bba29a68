"""Train on two ranks until one waits for the other at a barrier that only it comes to. Nothing goes on from there."""

from __future__ import annotations

import argparse
import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aitop.workloads._run import Progress, options, spawn

SAVE_EVERY = 60  # steps


def save(model: nn.Module) -> None:
    """A checkpoint; nobody is to go on before it is there."""
    torch.save(model.state_dict(), io.BytesIO())
    dist.barrier()


def train(rank: int, args: argparse.Namespace) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    progress = Progress(args.steps, quiet=rank != 0)
    while True:
        rows, labels = torch.randn(args.batch_size, 256), torch.randint(0, 10, (args.batch_size,))
        optimizer.zero_grad()
        loss = criterion(model(rows), labels)
        loss.backward()
        optimizer.step()
        done = progress.step(loss)
        if progress.count % SAVE_EVERY == 0 and (rank == 0 or args.fixed):
            save(model)
        if done:
            return


def main() -> None:
    spawn(train, options(__doc__, "both ranks come to the barrier", batch_size=512).parse_args())


if __name__ == "__main__":
    main()
