"""Train on two ranks, one of which reads its shard from a store far away. The other one waits for it at every step."""

from __future__ import annotations

import argparse
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RANKS = 2
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


def train(rank: int, port: int, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    far = rank == 1 and not args.fixed
    loader = DataLoader(Shard(20_000, FAR if far else NEAR), batch_size=16, shuffle=True)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    step, since, last = 0, time.perf_counter(), 0
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and (step == 1 or step % 20 == 0):
                now = time.perf_counter()
                rate = (step - last) / (now - since)
                print(f"step {step}: loss {loss.item():.4f}, {rate:.1f} steps/s", flush=True)
                since, last = now, step
            if step == args.steps:
                return


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: never)")
    parser.add_argument("--fixed", action="store_true", help="both shards lie close by")
    args = parser.parse_args()
    torch.multiprocessing.spawn(train, args=(free_port(), args), nprocs=RANKS)


if __name__ == "__main__":
    main()
