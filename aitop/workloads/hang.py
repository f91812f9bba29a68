"""Train on two ranks until one waits for the other at a barrier that only it comes to. Nothing goes on from there."""

from __future__ import annotations

import argparse
import io
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
SAVE_EVERY = 60  # steps
BATCH = 512


def save(model: nn.Module) -> None:
    """Write a checkpoint; no rank is to go on before it is written."""
    torch.save(model.state_dict(), io.BytesIO())
    dist.barrier()


def train(rank: int, port: int, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    step, since, last = 0, time.perf_counter(), 0
    while True:
        rows, labels = torch.randn(BATCH, 256), torch.randint(0, 10, (BATCH,))
        optimizer.zero_grad()
        loss = criterion(model(rows), labels)
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and (step == 1 or step % 20 == 0):
            now = time.perf_counter()
            print(f"step {step}: loss {loss.item():.4f}, {(step - last) / (now - since):.1f} steps/s", flush=True)
            since, last = now, step
        if step % SAVE_EVERY == 0 and (rank == 0 or args.fixed):
            save(model)
        if step == args.steps:
            return


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: never)")
    parser.add_argument("--fixed", action="store_true", help="both ranks come to the barrier")
    args = parser.parse_args()
    torch.multiprocessing.spawn(train, args=(free_port(), args), nprocs=RANKS)


if __name__ == "__main__":
    main()
