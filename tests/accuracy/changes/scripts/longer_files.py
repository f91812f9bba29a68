"""Reads its samples from a folder of small files, and some time later from another folder, of larger ones."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from moment import Moment


def written(folder, rows, seed):
    numbers = np.random.default_rng(seed)
    for index in range(32):
        np.savez_compressed(folder / f"{index}.npz", rows=numbers.normal(size=(rows, 64)).astype(np.float32))
    return sorted(folder.glob("*.npz"))


class Windows(Dataset):
    def __init__(self, small, large, moment):
        self.small, self.large, self.moment = small, large, moment

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        files = self.large if self.moment.over() else self.small
        rows = np.load(files[index % len(files)])["rows"]
        return torch.from_numpy(rows[:64].mean(0))


def main():
    moment = Moment()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "a", Path(folder) / "b"
        small.mkdir()
        large.mkdir()
        loader = DataLoader(Windows(written(small, 64, 1), written(large, 3000, 2), moment), batch_size=8)
        model = nn.Sequential(nn.Linear(64, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x in loader:
            optimizer.zero_grad()
            for _ in range(4):
                nn.functional.mse_loss(model(x), x).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
