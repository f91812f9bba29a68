"""Train on two ranks, one of which reads its shard from a store far away. The other one waits for it at every step."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from aitop.workloads._run import Progress, options, spawn

NEAR, FAR = 0.0, 0.003  # seconds to get one object: from this machine, from the store


class Shard(Dataset):
    """The images of one rank, with their labels."""

    def __init__(self, size: int, round_trip: float):
        self.size = size
        self.round_trip = round_trip

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        time.sleep(self.round_trip)
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, 32, 32, generator=generator), index % 10


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def train(rank: int, args: argparse.Namespace) -> None:
    far = rank == 1 and not args.fixed
    loader = DataLoader(Shard(20_000, FAR if far else NEAR), batch_size=args.batch_size, shuffle=True)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    progress = Progress(args.steps, quiet=rank != 0)
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            if progress.step(loss):
                return


def main() -> None:
    spawn(train, options(__doc__, "both shards lie close by", batch_size=16).parse_args())


if __name__ == "__main__":
    main()
