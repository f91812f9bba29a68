"""Few-shot training: an epoch is a handful of batches, and a new set of loader workers is started for each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runlog import RunLog, arguments


def train_one_epoch(model, loader, optimizer, log):
    for support, label in loader:
        loss = nn.functional.cross_entropy(model(support), label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if log.step(loss):
            return True
    return False


def main():
    args = arguments(__doc__, workers=2, batch_size=20)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    shots = torch.randn(100, 3, 16, 16)
    labels = torch.arange(100) % 5
    loader = DataLoader(
        TensorDataset(shots, labels),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.fixed,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(48 * 16, 5),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    epoch = 0
    while not train_one_epoch(model, loader, optimizer, log):
        epoch += 1


if __name__ == "__main__":
    main()
