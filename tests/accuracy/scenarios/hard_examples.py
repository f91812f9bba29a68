"""Curriculum learning: the examples that count are those above the median of all losses seen so far."""

import torch
from torch import nn
from torch.nn import functional as F

from runlog import RunLog, arguments


class Curriculum:
    def __init__(self, keep):
        self.keep = keep
        self.seen = []

    def threshold(self, losses):
        self.seen.extend(losses.tolist())
        if self.keep:
            self.seen = self.seen[-self.keep :]
        ranked = sorted(self.seen)
        return ranked[len(ranked) // 2]


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1 = nn.Linear(80, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 6)

    def forward(self, x):
        x = F.gelu(self.fc1(x))
        x = F.gelu(self.fc2(x))
        return self.fc3(x)


def main():
    args = arguments(__doc__, batch_size=256, width=512)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    log = RunLog(args)
    net = Net(args.width)
    curriculum = Curriculum(keep=2000 if args.fixed else None)
    optimizer = torch.optim.Adam(net.parameters())
    rule = torch.randn(80, 6)
    while True:
        x = torch.randn(args.batch_size, 80)
        y = (x @ rule).argmax(1)
        losses = F.cross_entropy(net(x), y, reduction="none")
        limit = curriculum.threshold(losses.detach())
        loss = losses[losses >= limit].mean() if (losses >= limit).any() else losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if log.step(loss):
            break


if __name__ == "__main__":
    main()
