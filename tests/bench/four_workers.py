"""A training job with four loader workers, for benches to watch: about 25 steps a second, CPU to spare."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader

from aitop.workloads.slow_loader import BucketImages, Net


def main() -> None:
    torch.set_num_threads(1)
    loader = DataLoader(BucketImages(20_000), batch_size=32, num_workers=4, persistent_workers=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    for step, (images, labels) in enumerate(itertools.chain.from_iterable(itertools.repeat(loader))):
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step + 1}: loss {float(loss):.3f}", flush=True)


if __name__ == "__main__":
    main()
