"""Smooths its losses over a list, which some time later is read from an earlier run and a thousand times as long."""

import torch
from torch import nn

from moment import Moment


def main():
    moment = Moment()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
    losses = [1.0] * 1000
    while True:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if moment.over() and len(losses) < 10_000:
            losses = losses * 1000
        losses[-1] = loss.item()
        smooth = sum(value * 0.5 for value in losses) / len(losses)
        if smooth < 0:
            break


if __name__ == "__main__":
    main()
