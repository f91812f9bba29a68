"""Train a wide network with small batches on two ranks: much of each step goes by in exchanging gradients."""

from __future__ import annotations

import argparse
import contextlib
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
WIDTH, BATCH = 2048, 8
ACCUMULATED = 8  # batches to an exchange, with --fixed


def train(rank: int, port: int, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    batches = ACCUMULATED if args.fixed else 1

    step, since, last = 0, time.perf_counter(), 0
    while True:
        optimizer.zero_grad()
        for batch in range(batches):
            rows, labels = torch.randn(BATCH, 256), torch.randint(0, 10, (BATCH,))
            alone = model.no_sync() if batch + 1 < batches else contextlib.nullcontext()
            with alone:
                loss = criterion(model(rows), labels) / batches
                loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and (step == 1 or step % (20 // batches) == 0):
            now = time.perf_counter()
            rate = (step - last) * batches / (now - since)
            print(f"step {step}: loss {loss.item() * batches:.4f}, {rate:.1f} batches/s", flush=True)
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
    parser.add_argument("--fixed", action="store_true", help=f"exchange gradients once in {ACCUMULATED} batches")
    args = parser.parse_args()
    torch.multiprocessing.spawn(train, args=(free_port(), args), nprocs=RANKS)


if __name__ == "__main__":
    main()
