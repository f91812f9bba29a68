"""Tabular regression whose first steps are slow: kernels are chosen, caches are filled, the rate is warmed up."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from runlog import RunLog, arguments


class Rows(Dataset):
    """Every row is made once, then kept."""

    def __init__(self, count):
        self.count = count
        self.kept = {}

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i not in self.kept:
            time.sleep(0.0005)
            g = torch.Generator().manual_seed(i)
            self.kept[i] = torch.randn(96, generator=g)
        return self.kept[i]


def choose(variants, x):
    """The fastest of several ways to do the same, measured on the first batches."""
    best, shortest = None, float("inf")
    for forward in variants:
        begun = time.perf_counter()
        for _ in range(10):
            forward(x)
        taken = time.perf_counter() - begun
        if taken < shortest:
            best, shortest = forward, taken
    return best


def main():
    args = arguments(__doc__, batch_size=128, width=768)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    w = args.width
    model = nn.Sequential(
        nn.Linear(96, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, 1)
    )
    scripted = torch.jit.trace(model, torch.randn(args.batch_size, 96))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=100)
    loader = DataLoader(Rows(20 * args.batch_size), args.batch_size, shuffle=True, drop_last=True)
    forward = None
    while True:
        for x in loader:
            forward = forward or choose([model, scripted], x)
            loss = nn.functional.mse_loss(forward(x), x[:, :3].sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warmup.step()
            if log.step(loss):
                return


if __name__ == "__main__":
    main()
