"""A convolutional net with everything a careful person does: workers, a rare validation, a rare checkpoint, metrics."""

import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from runlog import RunLog, arguments


class Patches(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.images = torch.randn(n, 3, 24, 24, generator=g)
        self.labels = torch.randint(0, 10, (n,), generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        if i % 2:
            image = image.flip(-1)
        return image, self.labels[i]


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def validate(model, loader):
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in loader:
            hits += (model(x).argmax(1) == y).sum().item()
    model.train()
    return hits / len(loader.dataset)


def main():
    args = arguments(__doc__, batch_size=32)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    train_set, valid_set = Patches(4096, 1), Patches(256, 2)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    valid_loader = DataLoader(valid_set, 64)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    running = 0.0
    step = 0
    with tempfile.TemporaryDirectory() as folder:
        while True:
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                scheduler.step()
                running = 0.98 * running + 0.02 * loss.item()
                step += 1
                if step % 400 == 0:
                    validate(model, valid_loader)
                    torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
                if log.step(loss):
                    return


if __name__ == "__main__":
    main()
