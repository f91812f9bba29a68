"""Train a classifier on images that lie in an object store. Two loader workers cannot hide its latency."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROUND_TRIP = 0.004  # seconds to get one object from the store


def fetch(key: int) -> torch.Tensor:
    """Get one image from the object store; the store is simulated, its latency is real."""
    time.sleep(ROUND_TRIP)
    generator = torch.Generator().manual_seed(key)
    return torch.rand(3, 32, 32, generator=generator)


class BucketImages(Dataset):
    """Images of a bucket, with their labels."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        image = fetch(index)
        return (image - 0.5) / 0.25, index % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(32 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images):
        return self.classifier(self.features(images).flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (default: never)")
    parser.add_argument("--fixed", action="store_true", help="8 loader workers instead of 2")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        BucketImages(20_000),
        batch_size=16,
        shuffle=True,
        num_workers=8 if args.fixed else 2,
        persistent_workers=True,
    )
    model = Net()
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
            if step == 1 or step % 20 == 0:
                now = time.perf_counter()
                rate = (step - last) / (now - since)
                print(f"step {step}: loss {loss.item():.4f}, {rate:.1f} steps/s", flush=True)
                since, last = now, step
            if step == args.steps:
                return


if __name__ == "__main__":
    main()
