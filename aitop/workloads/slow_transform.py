"""Train a classifier with an augmentation written pixel by pixel in Python."""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 32


def vignette(image, strength):
    """Darken the corners, one pixel after the other."""
    out = image.copy()
    middle = (SIDE - 1) / 2
    for row in range(SIDE):
        for column in range(SIDE):
            distance = ((row - middle) ** 2 + (column - middle) ** 2) / (2 * middle**2)
            out[row, column] = image[row, column] * (1.0 - strength * distance)
    return out


def vignette_at_once(image, strength):
    """Darken the corners, all pixels in one expression."""
    offset = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    distance = (offset[:, None] ** 2 + offset[None, :] ** 2) / (2 * ((SIDE - 1) / 2) ** 2)
    return image * (1.0 - strength * distance)


class Photos(Dataset):
    """Photos in memory, augmented on access."""

    def __init__(self, size: int, augment):
        self.images = np.random.default_rng(0).random((512, SIDE, SIDE), dtype=np.float32)
        self.size = size
        self.augment = augment

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        image = self.augment(self.images[index % 512], strength=0.2 + 0.6 * (index % 7) / 7)
        return torch.from_numpy(image).float()[None], index % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Linear(16 * 8 * 8, 10)

    def forward(self, images):
        return self.classifier(self.features(images).flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: never)")
    parser.add_argument("--fixed", action="store_true", help="the augmentation as one array expression")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    photos = Photos(20_000, vignette_at_once if args.fixed else vignette)
    loader = DataLoader(photos, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    step, since, last = 0, time.perf_counter(), 0
    while True:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step == 1 or step % 20 == 0:
                now = time.perf_counter()
                rate = (step - last) / (now - since)
                print(f"step {step}: loss {loss.item():.4f}, {rate:.1f} steps/s", flush=True)
                since, last = now, step
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
