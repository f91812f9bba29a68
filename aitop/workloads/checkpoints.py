"""Train a regression model and write a full, compressed checkpoint to disk every few steps."""

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
import time

import torch
from torch import nn


def save_checkpoint(path: str, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the state of the run beside `path`, make sure that it is on the disk, then put it in place."""
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with open(path + ".part", "wb") as file:
        with gzip.open(file, "wb", compresslevel=1) as packed:
            torch.save(state, packed)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)


def batches(size: int, width: int):
    """Endless batches of a synthetic regression problem."""
    weights = torch.randn(width, 1)
    while True:
        inputs = torch.randn(size, width)
        yield inputs, torch.tanh(inputs @ weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: never)")
    parser.add_argument("--fixed", action="store_true", help="a checkpoint every 1000 steps")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    size, width, save_every = 1024, 384, 1000 if args.fixed else 10
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    since, last = time.perf_counter(), 0
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        for step, (inputs, targets) in enumerate(batches(size, width), start=1):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if step % save_every == 0:
                save_checkpoint(os.path.join(folder, "last.pt.gz"), step, model, optimizer)
            if step == 1 or step % 20 == 0:
                now = time.perf_counter()
                rate = (step - last) / (now - since)
                print(f"step {step}: loss {loss.item():.4f}, {rate:.1f} steps/s", flush=True)
                since, last = now, step
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
