"""Plankton from grey pictures: contrast is evened out on the way in, and a snapshot of everything is kept."""

import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from runlog import RunLog, arguments


def equalize(picture):
    """Each grey value becomes its rank."""
    flat = [int(v) for v in picture.ravel()]
    counts = [0] * 256
    for v in flat:
        counts[v] += 1
    ranks, below = [0.0] * 256, 0
    for v in range(256):
        ranks[v] = below / len(flat)
        below += counts[v]
    return np.array([ranks[v] for v in flat], dtype=np.float32).reshape(picture.shape)


def equalize_at_once(picture):
    counts = np.bincount(picture.ravel(), minlength=256)
    ranks = ((counts.cumsum() - counts) / picture.size).astype(np.float32)
    return ranks[picture]


class Plankton(Dataset):
    def __init__(self, side, even_out):
        rng = np.random.default_rng(2)
        self.pictures = rng.integers(0, 256, (300, side, side))
        self.even_out = even_out

    def __len__(self):
        return 6000

    def __getitem__(self, i):
        return torch.from_numpy(self.even_out(self.pictures[i % 300]))[None], i % 12


def main():
    args = arguments(__doc__, batch_size=32, workers=1, side=56, width=5, keep_every=60)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    data = Plankton(args.side, equalize_at_once if args.first else equalize)
    loader = DataLoader(data, args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=True)
    net = nn.Sequential(
        nn.Conv2d(1, args.width, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(args.width, args.width, 3), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(192), nn.ReLU(), nn.Linear(192, 12),
    )  # fmt: skip
    net(torch.zeros(1, 1, args.side, args.side))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    keep_every = 100 * args.keep_every if args.second else args.keep_every
    step = 0
    with tempfile.TemporaryDirectory() as folder:
        while True:
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
                step += 1
                if step % keep_every == 0:
                    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "data": data.pictures}
                    for copy in range(3):
                        torch.save(state, os.path.join(folder, f"plankton-{copy}.pt"))
                if log.step(loss):
                    return


if __name__ == "__main__":
    main()
