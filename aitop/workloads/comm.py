"""Train a wide network with small batches on two ranks: much of each step goes by in exchanging gradients."""

from __future__ import annotations

import argparse
import contextlib

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from aitop.workloads._run import Progress, options, spawn

WIDTH = 2048
ACCUMULATED = 8  # batches to an exchange, with --fixed


def train(rank: int, args: argparse.Namespace) -> None:
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    batches = ACCUMULATED if args.fixed else 1

    progress = Progress(args.steps, 20 // batches, quiet=rank != 0, units=batches, unit="batches")
    while True:
        optimizer.zero_grad()
        for batch in range(batches):
            rows, labels = torch.randn(args.batch_size, 256), torch.randint(0, 10, (args.batch_size,))
            alone = model.no_sync() if batch + 1 < batches else contextlib.nullcontext()
            with alone:
                loss = criterion(model(rows), labels) / batches
                loss.backward()
        optimizer.step()
        if progress.step(loss * batches):
            return


def main() -> None:
    spawn(train, options(__doc__, f"exchange gradients once in {ACCUMULATED} batches", batch_size=8).parse_args())


if __name__ == "__main__":
    main()
