"""Train a model and keep the validation loss of every step, each with the graph that it came from."""

from __future__ import annotations

import argparse
import resource
import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 10)

    def forward(self, inputs):
        return self.head(self.hidden(inputs))


def make_problem(size: int):
    """Inputs and labels of a synthetic classification problem."""
    inputs = torch.randn(size, 64)
    return inputs, inputs[:, :10].argmax(dim=1)


def resident_mb() -> float:
    """The peak resident memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: never)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-mb", type=float, default=4096, help="stop when the process has grown to this")
    parser.add_argument("--fixed", action="store_true", help="keep numbers, not tensors")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = Net(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    all_inputs, all_labels = make_problem(100 * args.batch_size)
    valid_inputs, valid_labels = make_problem(16)
    history = []

    step, since, last = 0, time.perf_counter(), 0
    while True:
        rows = slice(step % 100 * args.batch_size, (step % 100 + 1) * args.batch_size)
        optimizer.zero_grad()
        criterion(model(all_inputs[rows]), all_labels[rows]).backward()
        optimizer.step()

        loss = criterion(model(valid_inputs), valid_labels)
        if args.fixed:
            loss = loss.item()
        history.append(loss)

        step += 1
        if step == 1 or step % 20 == 0:
            now = time.perf_counter()
            rate = (step - last) / (now - since)
            print(f"step {step}: loss {history[-1]:.4f}, {rate:.1f} steps/s", flush=True)
            since, last = now, step
            if resident_mb() > args.limit_mb:
                print(f"stopping: the process has grown to {args.limit_mb:.0f} MB", flush=True)
                return
        if step == args.steps:
            return


if __name__ == "__main__":
    main()
